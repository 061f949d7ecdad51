"""All-to-alls as data: which clusters can have which, the usual one, memory rules named."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.errors import InputError
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import LOW_LATENCY
from moeplan.specs.exchange import exchange, exchange_names, named_exchanges, usual, usual_reach

CATALOG = Catalog.standard()


def cluster(gpu: str, nic: str) -> Cluster:
    return cluster_of(CATALOG, gpu, nic, None)


def test_every_file_says_what_it_needs_and_where_that_was_read() -> None:
    vendors = {CATALOG.gpu(name).vendor for name in CATALOG.names("gpus")}
    for name in exchange_names():
        item = exchange(name)
        assert item.setup_source
        assert set(item.vendors) <= vendors
        assert (item.network == "none") == (item.mode == "one domain")
        assert item.capturable or item.mode == "normal"
        if item.buffer == "low-latency":
            assert item.mode == "low-latency"
    assert vendors == {vendor for name in exchange_names() for vendor in exchange(name).vendors}


def test_the_first_of_the_usual_ones_is_the_default_of_a_deployment() -> None:
    """`usual` asks for it before it reads the others."""
    orders = {exchange(name).order: name for name in exchange_names() if exchange(name).order}
    assert orders[min(orders)] == LOW_LATENCY
    assert sorted(orders) == list(range(1, len(orders) + 1))


@pytest.mark.parametrize(
    ("gpu", "nic", "ranks", "name"),
    [
        ("h200", "cx7", 64, "deepep-low-latency"),
        ("h200", "efa", 8, "deepep-low-latency"),  # NVLink alone: the card does not matter
        ("h200", "efa", 16, "uccl-low-latency"),
        ("gb200", "efa", 72, "deepep-low-latency"),
        ("h200", "thor2", 16, "uccl-low-latency"),
        ("h200", "e810", 64, "deepep-low-latency"),  # a stand-in for a class: not stated
        ("mi300x", "thor2", 16, "mori-low-latency"),
        ("mi300x", "efa", 16, "uccl-low-latency"),
        ("ascend-910c", "cx7", 768, "ascend-fuseep"),
        ("l40s", "cx7", 8, "deepep-low-latency"),
    ],
)
def test_the_usual_one_of_a_cluster(gpu: str, nic: str, ranks: int, name: str) -> None:
    assert usual(cluster(gpu, nic), ranks) == name
    assert not list(exchange(name).faults(cluster(gpu, nic), ranks))


def test_usual_ones_part_the_sizes_of_a_cluster_at_its_domain() -> None:
    assert usual_reach(cluster("h200", "cx7")) == {"deepep-low-latency": (0.0, inf)}
    assert usual_reach(cluster("h200", "efa")) == {"deepep-low-latency": (0.0, 8.0), "uccl-low-latency": (8.0, inf)}


@pytest.mark.parametrize(
    ("name", "gpu", "nic", "said"),
    [
        (
            "deepep-low-latency",
            "h200",
            "efa",
            "GPUs drive by ibgda.*use uccl-low-latency, or at most 8",
        ),
        (
            "nvlink-one-sided",
            "h200",
            "cx7",
            "in one domain.*16 ranks are more than the 8.*use deepep-low-latency",
        ),
        ("mori-low-latency", "h200", "cx7", "runs on GPUs of AMD, H200.* is of NVIDIA — use deepep-low-latency"),
        ("deepep-normal", "mi300x", "cx7", "runs on GPUs of NVIDIA, MI300X is of AMD — use mori-low-latency"),
        ("ascend-fuseep", "h200", "cx7", "runs on GPUs of Huawei"),
    ],
)
def test_what_a_cluster_cannot_have_is_said_with_what_it_can(name: str, gpu: str, nic: str, said: str) -> None:
    (fault,) = exchange(name).faults(cluster(gpu, nic), 16)
    with pytest.raises(InputError, match=said):
        raise InputError("options", [fault])


def test_what_is_not_stated_rules_nothing_out() -> None:
    own = cluster("h200", "efa")
    own = replace(own, gpu=replace(own.gpu, vendor="me"), nic=replace(own.nic, gpu_initiated=None))
    assert usual(own, 64) == LOW_LATENCY
    for name in exchange_names():
        most = exchange(name).most(own)
        assert most == (8 if exchange(name).network == "none" else inf)


def test_names_are_read_once_each_and_all_unknown_ones_are_said() -> None:
    assert named_exchanges(["deepep-ll", "low-latency", "mori"]) == ("deepep-low-latency", "mori-low-latency")
    with pytest.raises(InputError, match=r"deepep-nrmal(.|\n)*moor") as caught:
        named_exchanges(["deepep-nrmal", "moor"])
    assert [fault.path for fault in caught.value.faults] == ["--exchange", "--exchange"]
