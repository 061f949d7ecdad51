"""Collectives as operators ask for them: bytes, backends, and what lies beyond the measured rows."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.errors import InputError
from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.origin import Origin
from moeplan.kernels.sources import ARTICLE, KernelSources
from moeplan.kernels.wire import AllToAll, Fabric, all_reduce, all_to_all, collective
from moeplan.kinds import Real
from moeplan.routing.coverage import GroupLimit
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.exchange import Direction, Mode

CATALOG = Catalog.standard()
ALONE = KernelSources(allowed=("fitted", "assumed"))


def cluster(gpu: str, nic: str = "cx7", nics: int = 8) -> Cluster:
    return Cluster(gpu=CATALOG.gpu(gpu), nic=CATALOG.nic(nic), gpus_per_node=8, nics_per_node=nics)


def library(gpu: str, sources: KernelSources = ALONE) -> KernelLibrary:
    return KernelLibrary.of(CATALOG.gpu(gpu), CATALOG, sources)


def sent(
    gpu: str,
    *,
    mode: Mode = "low-latency",
    direction: Direction = "dispatch",
    ep: Real = 16.0,
    tokens: Real = 128.0,
    sources: KernelSources = ALONE,
    limit: GroupLimit | None = None,
    backend: str = "deepep",
    wire: str = "",
    fabric: Fabric | None = None,
) -> AllToAll:
    found = all_to_all(
        library(gpu, sources),
        fabric or Fabric.of(cluster(gpu)),
        mode=mode,
        direction=direction,
        wire=wire or ("fp8_block" if direction == "dispatch" else "bf16"),
        tokens=tokens,
        hidden=7168.0,
        top_k=8.0,
        experts=256.0,
        ep=ep,
        backend=backend,
        limit=limit or GroupLimit(),
    )
    assert found is not None
    return found


def test_low_latency_sends_every_message_and_normal_one_per_place() -> None:
    low, normal = sent("h200", ep=64.0), sent("h200", mode="normal", ep=64.0)
    size = 128 * (7168 * (1 + 4 / 128) + 16)
    assert float(low.traffic.copies) == 8
    assert float(low.traffic.payload) == pytest.approx(size * 8 * 63 / 64)
    assert float(low.traffic.nic) == pytest.approx(size * 8 * 56 / 64)
    assert float(low.traffic.payload + low.traffic.stays) == pytest.approx(size * 8)
    assert float(normal.traffic.copies) == pytest.approx(7.68, abs=0.01)
    nodes = 8 * (1 - np.prod([(224 - j) / (256 - j) for j in range(8)]))
    assert float(normal.traffic.nic) == pytest.approx(size * nodes * 7 / 8)
    assert (low.sms, normal.sms) == (0.0, 20.0)


def test_a_router_limit_saves_nics() -> None:
    free, limited = (
        sent("h200", mode="normal", ep=64.0, limit=limit) for limit in (None, GroupLimit(count=8, taken=4))
    )
    assert float(limited.traffic.nic) < float(free.traffic.nic)
    assert float(limited.timed.seconds) < float(free.timed.seconds)


def test_half_the_cards_take_up_to_twice_as_long() -> None:
    half = sent("h20", ep=64.0, tokens=512.0, fabric=Fabric.of(cluster("h20", nics=4)))
    whole = sent("h20", ep=64.0, tokens=512.0)
    assert 1.7 < float(half.timed.seconds) / float(whole.timed.seconds) < 2.0


def test_an_efa_fabric_starts_later_than_infiniband() -> None:
    near, far = (sent("h200", tokens=1.0, fabric=Fabric.of(cluster("h200", nic))) for nic in ("cx7", "efa-p5en"))
    assert float(far.timed.seconds) > 2.0 * float(near.timed.seconds)


@pytest.mark.parametrize("direction", ["dispatch", "combine"])
@pytest.mark.parametrize("mode", ["low-latency", "normal"])
def test_several_nodes_of_b200_are_no_faster_than_hopper_and_marked(mode: Mode, direction: Direction) -> None:
    """No row of several B200 nodes was measured."""
    blackwell, hopper = (sent(gpu, mode=mode, direction=direction, ep=32.0) for gpu in ("b200", "h200"))
    assert float(blackwell.timed.seconds) >= float(hopper.timed.seconds) * (1 - 1e-9)
    assert blackwell.timed.beyond == pytest.approx(2.0)
    assert "extrapolated by 2 doublings of ep" in blackwell.timed.source
    assert "no row of several nodes, no faster than h200" in blackwell.timed.source


def test_an_error_grows_with_the_distance() -> None:
    inside, once, twice = (sent("h200", ep=ep).timed for ep in (64.0, 128.0, 256.0))
    assert inside.error is not None
    assert once.error is not None
    assert twice.error is not None
    assert (inside.beyond, once.beyond, twice.beyond) == (0.0, 1.0, 2.0)
    assert once.error.median == pytest.approx(1.6 * inside.error.median)
    assert twice.error.median == pytest.approx(1.6**2 * inside.error.median)
    assert twice.error.p90 == pytest.approx(1.6**2 * inside.error.p90)


def test_several_ep_sizes_at_once() -> None:
    sizes = np.array([8.0, 16.0, 128.0])
    found = sent("h800", ep=sizes, tokens=np.array([[64.0], [128.0]]), sources=KernelSources())
    each = [[sent("h800", ep=ep, tokens=t, sources=KernelSources()).timed for ep in sizes] for t in (64.0, 128.0)]
    assert np.shape(found.timed.seconds) == (2, 3)
    np.testing.assert_allclose(found.timed.seconds, [[float(one.seconds) for one in row] for row in each])
    assert found.timed.origin == max(one.origin for row in each for one in row)
    assert found.timed.beyond == max(one.beyond for row in each for one in row)


def test_a_published_row_comes_back() -> None:
    """DeepEP's README: 128 tokens at EP128 on H800 take 192 µs and 369 µs."""
    for direction, measured in (("dispatch", 192e-6), ("combine", 369e-6)):
        found = sent("h800", direction=direction, ep=128.0, sources=KernelSources()).timed  # type: ignore[arg-type]
        assert found.origin is Origin.MEASURED
        assert float(found.seconds) == pytest.approx(measured)
        assert float(found.network + found.floor) == pytest.approx(measured)


def test_an_unknown_backend_is_named_with_those_there_are() -> None:
    with pytest.raises(InputError, match="no carrier-pigeon-dispatch is known to deepep_low_latency"):
        sent("h200", backend="carrier-pigeon")


def test_another_format_is_an_assumption_with_its_own_bytes() -> None:
    narrow, usual = (sent("h200", wire=wire, ep=64.0, tokens=512.0).timed for wire in ("nvfp4", "fp8_block"))
    assert narrow.origin is Origin.ASSUMED
    assert "another precision's kernel" in narrow.source
    assert float(narrow.seconds) < 0.7 * float(usual.seconds)


def test_collectives_of_a_domain() -> None:
    kernels = library("h200")
    ours, theirs = (
        all_reduce(kernels, bytes_=2.0**20, ranks=8.0),
        collective(kernels, "all-reduce", bytes_=2.0**20, ranks=8.0),
    )
    assert ours is not None
    assert theirs is not None
    assert float(ours.seconds) < float(theirs.seconds)  # an engine's own kernel is why it has one
    scatter = collective(kernels, "reduce-scatter", bytes_=2.0**28, ranks=8.0)
    both = collective(kernels, "all-reduce", bytes_=2.0**28, ranks=8.0)
    assert scatter is not None
    assert both is not None
    assert 1.3 < float(both.seconds) / float(scatter.seconds) < 2.1
    assert all_reduce(kernels, bytes_=2.0**20, ranks=8.0, engine="trtllm") is not None


def test_the_articles_figures_hold_no_collective() -> None:
    kernels = library("h200", ARTICLE)
    assert all_reduce(kernels, bytes_=2.0**20, ranks=8.0) is None
    found = all_to_all(
        kernels,
        replace(Fabric.of(cluster("h200")), nic_rate=1e9),
        mode="normal",
        direction="combine",
        wire="bf16",
        tokens=128.0,
        hidden=7168.0,
        top_k=8.0,
        experts=256.0,
        ep=16.0,
    )
    assert found is None


def test_uplinks_of_a_switch() -> None:
    """Oversubscription slows what leaves a switch: nothing inside it, by its ratio far beyond it."""
    plain = Fabric(per_node=8.0, nic_rate=50e9, nic_latency=5e-6)
    shared = replace(plain, leaf=32.0, oversubscription=4.0)
    assert shared.rate(32) == plain.rate(32) == 50e9
    assert shared.rate(64) == pytest.approx(50e9 / (4 * 32 / 56))
    assert shared.rate(10_000) == pytest.approx(50e9 / 4, rel=0.01)
    assert replace(shared, oversubscription=1.1).rate(40) == 50e9  # a quarter leaves: the NIC is slower
    ep = np.array([16.0, 32.0, 64.0, 144.0])
    assert np.all(np.diff(np.broadcast_to(shared.rate(ep), ep.shape)) <= 0)
    assert [float(one) for one in np.broadcast_to(shared.rate(ep), ep.shape)] == [float(shared.rate(one)) for one in ep]
