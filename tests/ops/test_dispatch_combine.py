"""All-to-alls: bytes on each link, the time of a backend, what they take from compute; the article's by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.errors import InputError, Unsupported
from moeplan.kernels.origin import Origin
from moeplan.kernels.sources import KernelSources, read_sources
from moeplan.ops.cost import Cost
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.ops.machine import Machine
from moeplan.routing.coverage import GroupLimit
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.exchange import exchange, exchange_names

CATALOG = Catalog.standard()
DISPATCH, COMBINE = 7168 + 56 * 4 + 16, 2 * 7168  # bytes per message
ARTICLE = read_sources("article")
NVLINK, SHARE_DISPATCH, SHARE_COMBINE, LATENCY = 200e9, 0.49, 0.61, 10e-6


def cluster(gpu: str = "h800", nic: str = "cx7", nics_per_node: int = 8) -> Cluster:
    return Cluster(gpu=CATALOG.gpu(gpu), nic=CATALOG.nic(nic), gpus_per_node=8, nics_per_node=nics_per_node)


def sent(
    direction: str,
    target: Cluster,
    *,
    ep: float,
    tokens: float = 128,
    precision: str = "fp8",
    by: str = "deepep-low-latency",
    sources: KernelSources | None = None,
    **more: object,
) -> Cost:
    machine = Machine.of(target, CATALOG, sources) if sources is not None else Machine.of(target, CATALOG)
    return all_to_all(
        direction,  # type: ignore[arg-type]
        machine,
        exchange(by),
        tokens=tokens,
        hidden=7168,
        top_k=8,
        experts=256,
        ep=ep,
        precision=precision,
        **more,  # type: ignore[arg-type]
    )


def dispatch(target: Cluster, *, ep: float, **more: object) -> Cost:
    return sent("dispatch", target, ep=ep, **more)  # type: ignore[arg-type]


def combine(target: Cluster, *, ep: float, **more: object) -> Cost:
    return sent("combine", target, ep=ep, **more)  # type: ignore[arg-type]


def terms(cost: Cost) -> dict[str, float]:
    return {name: float(amount) for name, (amount, _) in cost.terms.items()}


@pytest.mark.parametrize(("ep", "out", "back"), [(8, 77, 114), (32, 155, 273), (64, 173, 314), (256, 194, 360)])
def test_deepeps_tables_come_back(ep: int, out: float, back: float) -> None:
    """DeepEP's README, June 2025 (NVLink inside a node) and February (256 ranks, all RDMA): H800, 128 tokens."""
    assert float(dispatch(cluster(), ep=ep).seconds) == pytest.approx(out * 1e-6, rel=0.1)
    assert float(combine(cluster(), ep=ep).seconds) == pytest.approx(back * 1e-6, rel=0.1)


def test_bytes_by_link() -> None:
    """Every one of k messages counts; at EP32, 7 of 32 cross NVLink, 24 the NIC, one stays."""
    cost, payload = dispatch(cluster(), ep=32), 128 * 8 * DISPATCH
    assert terms(cost)["over the link"] == pytest.approx(payload * 7 / 32)
    assert terms(cost)["over the NIC"] == pytest.approx(payload * 24 / 32)
    assert cost.bytes_ == pytest.approx(payload * 31 / 32)
    assert combine(cluster(), ep=32).bytes_ == pytest.approx(cost.bytes_ * COMBINE / DISPATCH)
    assert cost.lane == "network"


def test_a_normal_kernel_sends_a_token_once_per_node_and_rank() -> None:
    """8 experts of 256 lie on 5.30 of 8 ranks and 7.27 of 32, at most 4 of 4 nodes; a limit keeps them closer."""
    low, normal = (dispatch(cluster(), ep=32, by=f"deepep-{mode}") for mode in ("low-latency", "normal"))
    assert terms(low)["copies of a token"] == 8
    assert terms(normal)["copies of a token"] == pytest.approx(7.27, abs=0.01)
    assert terms(normal)["over the NIC"] < terms(low)["over the NIC"] / 2
    near = dispatch(cluster(), ep=64, by="deepep-normal", limit=GroupLimit(count=8, taken=4))
    assert terms(near)["over the NIC"] < terms(dispatch(cluster(), ep=64, by="deepep-normal"))["over the NIC"]


def test_what_an_exchange_takes_from_compute() -> None:
    """Batch article: NVLink moved by SMs hides a fifth to a quarter, RDMA all; normal kernels take 20 of 132 SMs."""
    assert dispatch(cluster(), ep=8).sm_share == pytest.approx(0.765)
    assert float(dispatch(cluster(), ep=144).sm_share) < 0.05
    assert dispatch(cluster(), ep=144, by="deepep-normal").sm_share == pytest.approx(20 / 132)
    assert dispatch(cluster("gb200"), ep=8, by="nvlink-one-sided").sm_share == 1.0


def test_half_the_cards_nearly_double_the_time_between_nodes() -> None:
    """A user's report (DeepEP, issue 183): 16 H20, four cards for eight GPUs, 873 µs for both, 22.27 MB at 25 GB/s."""
    card = replace(CATALOG.nic("cx7"))
    four, eight = (
        sum(
            float(kind(Cluster(gpu=CATALOG.gpu("h20"), nic=card, gpus_per_node=8, nics_per_node=nics), ep=16).seconds)
            for kind in (dispatch, combine)
        )
        for nics in (4, 8)
    )
    # With NVLink inside a node half of the messages cross the cards; the report's were all over RDMA.
    assert 1.4 < four / eight < 2.0


def test_a_busy_receiver_sets_the_time() -> None:
    """A user's report (DeepEP, issue 343): nodes in balance, GPUs at twice the mean: half the bandwidth."""
    even, skewed = (dispatch(cluster(), ep=32, by="deepep-normal", tokens=4096, skew=skew) for skew in (1.0, 2.0))
    assert float(skewed.seconds / even.seconds) == pytest.approx(2.0, rel=0.1)


def test_a_newer_gpu_is_not_taken_to_be_faster_over_the_wire() -> None:
    """A user's report (DeepEP, issue 576): B200 below H100 in the low-latency all-to-all of two nodes."""
    for kind in (dispatch, combine):
        new, old = (kind(cluster(gpu), ep=16) for gpu in ("b200", "h100"))
        assert float(new.seconds) >= float(old.seconds) * 0.97
        assert new.origin >= Origin.EXTRAPOLATED


def test_a_fabric_whose_messages_a_cpu_posts_starts_later() -> None:
    """A user's report (awsome-distributed-ai, PR 1144): without RDMA from the GPU every message has a host in it."""
    infiniband, efa = (dispatch(cluster("h200", nic), ep=16, tokens=1) for nic in ("cx7", "efa-p5en"))
    assert float(efa.seconds) > 2 * float(infiniband.seconds)


def test_beyond_the_measured_ranks_the_error_grows() -> None:
    near, far, farther = (dispatch(cluster("h200"), ep=ep) for ep in (64, 256, 1024))
    medians = [cost.error.median for cost in (near, far, farther) if cost.error is not None]
    assert len(medians) == 3
    assert medians[0] < medians[1] < medians[2]
    assert "extrapolated" in far.source


def test_one_rank_sends_nothing() -> None:
    for cost in (dispatch(cluster(), ep=1), combine(cluster(), ep=1)):
        assert cost.seconds == 0
        assert cost.bytes_ == 0


def test_bf16_dispatch_costs_two_bytes_per_element() -> None:
    fp8, bf16 = dispatch(cluster(), ep=8), dispatch(cluster(), ep=8, precision="bf16")
    assert bf16.bytes_ / fp8.bytes_ == pytest.approx((2 * 7168 + 16) / DISPATCH)


def test_an_open_axis_of_sizes_with_one_rank_among_them() -> None:
    sizes = np.array([1.0, 4.0, 8.0, 16.0, 144.0])
    for by in ("deepep-low-latency", "deepep-normal"):
        together = dispatch(cluster(), ep=sizes, by=by)  # type: ignore[arg-type]  # annotated for scalars
        apart = [float(dispatch(cluster(), ep=float(ep), by=by).seconds) for ep in sizes]
        assert together.seconds == pytest.approx(apart, rel=1e-12)


def test_one_domain_is_not_left() -> None:
    with pytest.raises(Unsupported, match="reaches the 8 GPUs of one domain"):
        dispatch(cluster("b200"), ep=16, by="nvlink-one-sided")


@pytest.mark.parametrize("name", exchange_names())
def test_every_backend_answers_somewhere_and_grows_with_its_tokens(name: str) -> None:
    gpu = "gb200" if name.startswith("nvlink") else "mi355x" if name.startswith("mori") else "h200"
    found = [dispatch(cluster(gpu), ep=8, by=name, tokens=tokens) for tokens in (16, 128, 1024)]
    assert all(a.seconds < b.seconds for a, b in itertools.pairwise(found))
    assert all(0 <= float(cost.sm_share) <= 1 for cost in found)


def test_the_articles_figures_know_rates_only() -> None:
    """8 ranks: 7 of 8 messages cross NVLink; DeepEP's table says 77 µs and 114 µs."""
    for kind, message, share, measured in ((dispatch, DISPATCH, 0.49, 77e-6), (combine, COMBINE, 0.61, 114e-6)):
        cost = kind(cluster(), ep=8, sources=ARTICLE)
        assert cost.seconds == pytest.approx(LATENCY + 128 * 8 * message * 7 / 8 / (NVLINK * share))
        assert float(cost.seconds) == pytest.approx(measured, rel=0.03)
    payload = 128 * 8 * DISPATCH
    rate = payload / (192e-6 - LATENCY)
    across = dispatch(cluster(), ep=128, sources=ARTICLE)
    by_hand = LATENCY + payload * 120 / 128 / rate + payload * 7 / 128 / (NVLINK * SHARE_DISPATCH)
    assert across.seconds == pytest.approx(by_hand)


@pytest.mark.parametrize("latency", ["163 µs", "1 ms"])
def test_a_latency_longer_than_the_measured_call_is_refused(tmp_path: Path, latency: str) -> None:
    """Otherwise the rate left for the bytes would be infinite or negative."""
    text = CATALOG.path("nics", "cx7").read_text(encoding="utf-8")
    assert text.count("latency: 10 µs") == 1
    (tmp_path / "nics").mkdir()
    (tmp_path / "nics" / "cx7.yaml").write_text(text.replace("latency: 10 µs", f"latency: {latency}"), encoding="utf-8")
    mine = Catalog.standard(tmp_path)
    machine = Machine.of(mine.cluster("h800-cx7"), mine, ARTICLE)
    with pytest.raises(InputError, match="longer than a call"):
        all_to_all(
            "dispatch",
            machine,
            exchange("deepep-low-latency"),
            tokens=128,
            hidden=7168,
            top_k=8,
            experts=256,
            ep=16,
            precision="fp8",
        )


@pytest.mark.parametrize(("packages", "out", "back"), [(4, 116e-6, 118e-6), (128, 152e-6, 149e-6)])
def test_what_stands_in_for_ascend_is_near_its_published_operators(packages: int, out: float, back: float) -> None:
    """CloudMatrix384 (arXiv 2506.12708): 128 tokens a die, two dies a package; no fit has seen them."""
    chip = CATALOG.gpu("ascend-910c")
    cluster = Cluster(gpu=chip, nic=CATALOG.nic("cx7"), gpus_per_node=8, nics_per_node=8)
    asked: dict[str, Any] = {"ep": packages, "tokens": 256, "by": "ascend-fuseep", "precision": "int8"}
    for cost, measured in ((dispatch(cluster, **asked), out), (combine(cluster, **asked), back)):
        assert float(cost.seconds) == pytest.approx(measured, rel=0.13)
        assert cost.origin is Origin.ASSUMED
