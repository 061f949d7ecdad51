"""A router's group limit: fewer nodes and bytes for kernels that send once per node, none for a message per expert."""

from __future__ import annotations

import pytest

from moeplan.errors import InputError
from moeplan.explain.group_limit import GroupLimitEffect, group_limit_effect, has_limit
from moeplan.kernels.sources import ALL
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Precision

CATALOG = Catalog.standard()
MODEL = CATALOG.model("deepseek-v3")


def effect(gpus: int, *, gpu: str = "h200", per_node: int = 8) -> GroupLimitEffect:
    device, card = CATALOG.gpu(gpu), CATALOG.nic("cx7")
    cluster = Cluster(gpu=device, nic=card, gpus_per_node=per_node, nics_per_node=per_node)
    return group_limit_effect(MODEL, Machine.of(cluster, CATALOG, ALL), Precision.of(MODEL), gpus=gpus)


@pytest.mark.parametrize("gpus", [16, 32, 64])
def test_the_limit_saves_nodes_bytes_and_time_of_normal_kernels_only(gpus: int) -> None:
    found = effect(gpus)
    limited, free = found.limited, found.free
    assert found.nodes == gpus // 8
    assert limited.nodes < free.nodes <= min(found.nodes, 8)
    assert limited.ranks < free.ranks <= 8
    assert limited.fullest > free.fullest > 1
    for one, other in zip(limited.sent, free.sent, strict=True):
        if one.backend == "deepep-normal":
            assert one.nic_bytes < other.nic_bytes
            assert one.seconds < other.seconds
        else:
            assert (one.nic_bytes, one.seconds) == (other.nic_bytes, other.seconds)


def test_a_token_of_deepseek_reaches_at_most_four_of_eight_nodes() -> None:
    """Each group of experts is a node's: 4 of 8 groups, so at most 4 nodes; free 8·(1 − C(224,8)/C(256,8)) = 5.29."""
    found = effect(64)
    assert found.limited.nodes < 4
    assert found.free.nodes == pytest.approx(5.29, abs=0.005)


def test_bytes_follow_the_nodes() -> None:
    """A GPU's token crosses to every node but its own: bytes go with nodes reached, as the own one is as likely."""
    found = effect(32)
    ratio = found.limited.sent[0].nic_bytes / found.free.sent[0].nic_bytes
    assert ratio == pytest.approx(found.limited.nodes / found.free.nodes)


def test_a_domain_filled_in_part_has_no_even_share_of_the_groups() -> None:
    assert (effect(144, gpu="gb200", per_node=4).nodes, effect(144, gpu="gb200", per_node=4).places) == (
        2,
        "scale-up domains",
    )
    with pytest.raises(InputError, match="96 fill no whole scale-up domains of 72"):
        effect(96, gpu="gb200", per_node=4)


def test_models_without_a_limit_have_no_effect_to_show() -> None:
    assert has_limit(MODEL)
    assert not has_limit(CATALOG.model("kimi-k2"))
    assert not has_limit(CATALOG.model("llama-3.1-8b"))
