"""Single transfers and a cache's hand-over: rates, shares of heads, latents that are whole everywhere."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.explain.hand_over import kv_hand_over
from moeplan.kernels.origin import Origin
from moeplan.ops.machine import Machine
from moeplan.ops.point_to_point import point_to_point
from moeplan.predict import Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import ALL_REDUCE, Acceptance, Deployment, Precision
from moeplan.specs.parameters import kv_bytes

CATALOG = Catalog.standard(None)
CLUSTER = cluster_of(CATALOG, "h800", "cx7", None)
MACHINE = Machine.of(CLUSTER, CATALOG)


def test_the_link_inside_and_the_nic_outside() -> None:
    """H800: 160 of 200 GB/s over NVLink (DeepEP's README), ConnectX-7's effective rate across nodes."""
    inside, outside = (point_to_point("x", MACHINE, bytes_=1e9, inside=way) for way in (True, False))
    assert 1e9 / float(inside.seconds) == pytest.approx(160e9, rel=1e-3)
    assert 1e9 / float(outside.seconds) == pytest.approx(CLUSTER.nic.effective_rate, rel=1e-3)
    assert outside.origin is Origin.ASSUMED
    many = point_to_point("x", MACHINE, bytes_=1e9, inside=False, messages=61)
    assert float(many.seconds - outside.seconds) == pytest.approx(60 * CLUSTER.nic.latency)


def test_fewer_cards_and_shared_uplinks_slow_it() -> None:
    plain = float(point_to_point("x", MACHINE, bytes_=1e10, inside=False).seconds)
    for cluster in (
        replace(CLUSTER, nics_per_node=4),
        replace(CLUSTER, leaf_nodes=4, oversubscription=2.0),
    ):
        slower = point_to_point("x", Machine.of(cluster, CATALOG), bytes_=1e10, inside=False)
        assert float(slower.seconds) == pytest.approx(2 * plain, rel=1e-3)


@pytest.mark.parametrize(("name", "shared"), [("deepseek-v3", 1), ("qwen3-235b-a22b", 4)])
def test_heads_are_shared_and_latents_are_not(name: str, shared: int) -> None:
    """8k tokens: DeepSeek-V3's latents go whole to each of 8 GPUs, Qwen3's 4 KV heads to two GPUs each."""
    model = CATALOG.model(name)
    predictor = Predictor.of(model, cluster_of(CATALOG, "h200", "cx7", None), CATALOG)
    deployment = Deployment(
        batch=4,
        ep=8,
        tp=8,
        exchange=ALL_REDUCE,
        context=8192,
        precision=Precision.of(model),
        acceptance=Acceptance.geometric(1.0, 1, "none"),
    )
    cost = kv_hand_over(predictor.machine, predictor.predict(deployment))
    assert float(cost.bytes_) == pytest.approx(kv_bytes(model, 8192, kv="bf16") / shared)
    assert float(cost.seconds) > float(cost.bytes_) / predictor.machine.cluster.nic.line_rate
