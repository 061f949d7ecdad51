"""All-to-alls: bytes on each link and the time of both, by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from moeplan.errors import InputError
from moeplan.kernels.origin import Origin
from moeplan.ops.cost import Cost
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster

CATALOG = Catalog.standard()
DISPATCH, COMBINE = 7168 + 56 * 4 + 16, 2 * 7168  # bytes per message
NVLINK, SHARE_DISPATCH, SHARE_COMBINE, LATENCY = 200e9, 0.49, 0.61, 10e-6


def cluster(gpu: str = "h800", nic: str = "cx7", nics_per_node: int = 8) -> Cluster:
    return Cluster(gpu=CATALOG.gpu(gpu), nic=CATALOG.nic(nic), gpus_per_node=8, nics_per_node=nics_per_node)


def dispatch(target: Cluster, *, ep: float, tokens: float = 128, wire: str = "fp8") -> Cost:
    machine = Machine.of(target, CATALOG)
    return all_to_all("dispatch", machine, tokens=tokens, hidden=7168, top_k=8, ep=ep, dispatch=wire)


def combine(target: Cluster, *, ep: float, tokens: float = 128) -> Cost:
    machine = Machine.of(target, CATALOG)
    return all_to_all("combine", machine, tokens=tokens, hidden=7168, top_k=8, ep=ep, dispatch="fp8")


def terms(cost: Cost) -> dict[str, float]:
    return {name: float(amount) for name, (amount, _) in cost.terms.items()}


def test_inside_a_node_only_the_scale_up_link_works() -> None:
    """8 ranks: 7 of 8 messages cross NVLink; DeepEP's table says 77 µs and 114 µs."""
    cost = dispatch(cluster(), ep=8)
    assert terms(cost)["across"] == 0
    assert terms(cost)["payload"] == 128 * 8 * DISPATCH
    assert terms(cost)["inside"] == pytest.approx(7 / 8)
    assert cost.seconds == pytest.approx(LATENCY + 128 * 8 * DISPATCH * 7 / 8 / (NVLINK * SHARE_DISPATCH))
    assert float(cost.seconds) == pytest.approx(77e-6, rel=0.03)
    back = combine(cluster(), ep=8)
    assert back.seconds == pytest.approx(LATENCY + 128 * 8 * COMBINE * 7 / 8 / (NVLINK * SHARE_COMBINE))
    assert float(back.seconds) == pytest.approx(114e-6, rel=0.03)


@pytest.mark.parametrize(("ep", "microseconds"), [(16, 173), (32, 182), (64, 186), (128, 192)])
def test_across_nodes_the_nics_share_is_deepeps_measurement(ep: int, microseconds: float) -> None:
    """The table was measured with all traffic on the NIC: bytes / (time − latency) is its rate."""
    payload = 128 * 8 * DISPATCH
    rate = payload / (microseconds * 1e-6 - LATENCY)
    cost = dispatch(cluster(), ep=ep)
    across, inside = payload * (ep - 8) / ep, payload * 7 / ep
    assert cost.seconds == pytest.approx(LATENCY + across / rate + inside / (NVLINK * SHARE_DISPATCH))
    assert cost.bytes_ == pytest.approx(payload * (ep - 1) / ep)
    assert cost.bound_by == "network"
    assert cost.origin is Origin.INTERPOLATED
    assert cost.lane == "network"


def test_beyond_the_table_is_extrapolated_with_its_last_rate() -> None:
    last, far = dispatch(cluster(), ep=128), dispatch(cluster(), ep=1024)
    assert terms(far)["share"] == terms(last)["share"]
    assert far.origin is Origin.EXTRAPOLATED
    between = dispatch(cluster(), ep=144)
    assert between.origin is Origin.EXTRAPOLATED


def test_another_card_has_its_files_rate() -> None:
    """E810: 10 GiB/s effective."""
    cost = dispatch(cluster(nic="e810"), ep=16)
    payload = 128 * 8 * DISPATCH
    by_hand = LATENCY + payload / 2 / (10 * 2**30) + payload * 7 / 16 / (NVLINK * SHARE_DISPATCH)
    assert cost.seconds == pytest.approx(by_hand)
    assert cost.origin is Origin.ASSUMED


def test_half_the_cards_double_the_nics_time() -> None:
    whole, half = dispatch(cluster(), ep=32), dispatch(cluster(nics_per_node=4), ep=32)
    across = 128 * 8 * DISPATCH * 24 / 32 / (terms(whole)["NIC rate"] * terms(whole)["share"])
    assert float(half.seconds) - float(whole.seconds) == pytest.approx(across)


def test_a_chip_without_a_link_sends_everything_over_the_nic() -> None:
    cost = dispatch(cluster("l40s"), ep=4)
    assert terms(cost)["inside"] == 0
    assert terms(cost)["across"] == pytest.approx(3 / 4)


def test_one_rank_sends_nothing() -> None:
    for cost in (dispatch(cluster(), ep=1), combine(cluster(), ep=1)):
        assert cost.seconds == 0
        assert cost.bytes_ == 0


def test_bf16_dispatch_and_combine_cost_two_bytes_per_element() -> None:
    fp8, bf16 = dispatch(cluster(), ep=8), dispatch(cluster(), ep=8, wire="bf16")
    assert bf16.bytes_ / fp8.bytes_ == pytest.approx((2 * 7168 + 16) / DISPATCH)
    assert combine(cluster(), ep=8).bytes_ / fp8.bytes_ == pytest.approx(COMBINE / DISPATCH)


def test_an_open_axis_of_sizes_with_one_rank_among_them() -> None:
    sizes = np.array([1.0, 4.0, 8.0, 16.0, 144.0])
    together = dispatch(cluster(), ep=sizes)  # type: ignore[arg-type]  # the helper is annotated for scalars
    assert together.seconds == pytest.approx([dispatch(cluster(), ep=float(ep)).seconds for ep in sizes], rel=1e-12)


def test_bytes_grow_with_the_ranks_that_hold_no_copy() -> None:
    sent = [float(dispatch(cluster(), ep=ep).bytes_) for ep in (1, 2, 8, 16, 64, 320)]
    assert sent == sorted(sent)
    assert sent[-1] < 128 * 8 * DISPATCH


@pytest.mark.parametrize("latency", ["163 µs", "1 ms"])
def test_a_latency_longer_than_the_measured_call_is_refused(tmp_path: Path, latency: str) -> None:
    """Otherwise the rate left for the bytes would be infinite or negative."""
    text = CATALOG.path("nics", "cx7").read_text(encoding="utf-8")
    assert text.count("latency: 10 µs") == 1
    (tmp_path / "nics").mkdir()
    (tmp_path / "nics" / "cx7.yaml").write_text(text.replace("latency: 10 µs", f"latency: {latency}"), encoding="utf-8")
    mine = Catalog.standard(tmp_path)
    machine = Machine.of(mine.cluster("h800-cx7"), mine)
    with pytest.raises(InputError, match="longer than a call"):
        all_to_all("dispatch", machine, tokens=128, hidden=7168, top_k=8, ep=16, dispatch="fp8")


def test_a_slower_card_adds_its_latency_and_nothing_else() -> None:
    slow = dataclasses.replace(cluster(), nic=dataclasses.replace(CATALOG.nic("cx7"), latency=500e-6))
    difference = float(dispatch(slow, ep=16).seconds) - float(dispatch(cluster(), ep=16).seconds)
    assert difference == pytest.approx(490e-6)
