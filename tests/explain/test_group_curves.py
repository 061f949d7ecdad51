"""Curves of the experts' products, the EP size at which they turn, and the grouped-GEMM article's claims."""

from __future__ import annotations

import numpy as np
import pytest

from moeplan.charts.group_curves import group_chart, turn_chart
from moeplan.cli.options import cluster_of
from moeplan.errors import InputError
from moeplan.explain.group_claims import group_claims
from moeplan.explain.group_curves import PRODUCTS, both_products, group_curves, turns
from moeplan.explain.measured_experts import measured_experts
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
V3 = CATALOG.model("deepseek-v3")
BATCHES = (1, 16, 128, 512)
EPS = (4, 8, 32, 144)


def machine(gpu: str) -> Machine:
    return Machine.of(cluster_of(CATALOG, gpu, "cx7", None), CATALOG)


def test_a_curve_per_product_q_len_and_ep_size() -> None:
    curves = group_curves(machine("h200"), V3, batches=BATCHES, q_lens=(1, 4), eps=EPS)
    assert {(curve.product, curve.q_len, curve.ep) for curve in curves} == {
        (product, q_len, ep) for product in PRODUCTS for q_len in (1, 4) for ep in EPS
    }
    for curve in curves:
        assert curve.seconds.shape == curve.mfu.shape == curve.m.shape == (len(BATCHES),)
        assert np.all((curve.mfu > 0) & (curve.mfu < 1))
        assert np.all(np.diff(curve.seconds) >= -0.02 * curve.seconds[1:])


def test_rows_and_groups_are_the_articles() -> None:
    """E = 256, K = 8: m = B·Q·D/32 where every expert is active, and 256/D groups of a rank (eqs. 6 and 7)."""
    for curve in group_curves(machine("h200"), V3, batches=(128,), q_lens=(1, 2), eps=(8, 32)):
        assert curve.m[0] == pytest.approx(128 * curve.q_len * curve.ep / 32, rel=1e-6)
        assert curve.groups[0] == pytest.approx(256 / curve.ep, rel=1e-6)


def test_q_len_is_as_good_as_batch() -> None:
    """Two tokens of 64 requests are 128 rows, as one token of 128 requests."""
    two = group_curves(machine("h800"), V3, batches=(64,), q_lens=(2,), eps=(32,))
    one = group_curves(machine("h800"), V3, batches=(128,), q_lens=(1,), eps=(32,))
    assert [curve.seconds[0] for curve in two] == pytest.approx([curve.seconds[0] for curve in one])


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_measured_expert_layers_lie_on_the_curves(gpu: str) -> None:
    """With every expert active: both products, without the activation and quantisation that were measured with them."""
    _, points = measured_experts(CATALOG)
    errors = []
    for point in points:
        if point.gpu == gpu and point.batch >= 8:
            curves = group_curves(machine(gpu), V3, batches=(int(point.batch),), q_lens=(1,), eps=(point.ep,))
            errors.append(float(both_products(curves)[0].seconds[0]) / point.seconds - 1)
    assert len(errors) >= 20
    assert -0.15 < np.median(errors) < 0.0
    assert np.quantile(np.abs(errors), 0.9) < 0.35  # short layers have most beside their products


def test_where_products_and_all_to_all_turn() -> None:
    """Batch per rank held: one node is best, since the network starts beyond it. Global batch held: m stays."""
    held = turns(machine("h200"), V3, batch=128, q_len=1, eps=(4, 8, 16, 32))
    assert min(held, key=lambda turn: turn.seconds).ep == 8
    assert [turn.batch for turn in held] == [128] * 4
    shared = turns(machine("h200"), V3, batch=4096, q_len=1, eps=(8, 16, 32), global_batch=True)
    assert [turn.batch for turn in shared] == [512, 256, 128]
    assert [turn.products for turn in shared] == sorted((turn.products for turn in shared), reverse=True)
    assert turns(machine("h200"), V3, batch=8, q_len=1, eps=(1,))[0].all_to_all == 0


def test_a_dense_model_has_no_groups() -> None:
    with pytest.raises(InputError, match="no experts"):
        group_curves(machine("h200"), CATALOG.model("llama-3.1-8b"), batches=(1,), q_lens=(1,), eps=(1,))


def test_the_articles_claims() -> None:
    """The first holds (739, 385, 207, 124 µs and 6.2, 11.8, 22.0, 36.7 % as measured), the other two do not."""
    _, points = measured_experts(CATALOG)
    claims = group_claims(machine("h200"), machine("b200"), V3, points, peak=CATALOG.gpu("h200").peak("fp8"))
    assert [claim.holds for claim in claims] == [True, False, False]
    assert "739, 385, 207, 124" in claims[0].evidence
    assert "6.2, 11.8, 22.0, 36.7" in claims[0].evidence
    assert "of the time" in claims[1].evidence
    assert "measured at" in claims[2].evidence


def test_the_charts_hold_every_point() -> None:
    curves = both_products(group_curves(machine("h200"), V3, batches=BATCHES, q_lens=(1, 2), eps=EPS))
    points = [{"GPU": "H200-SXM-141GB", "EP": 8, "batch": 16.0, "seconds": 4e-4, "MFU": 0.02}]
    spec = group_chart(curves, "time", subtitle="x", measured=points)
    values = spec["data"]["values"]
    assert sum(not value["measured"] for value in values) == len(BATCHES) * 2 * len(EPS)
    assert [value["value"] for value in values if value["measured"]] == [pytest.approx(400.0)]
    found = {"H200": turns(machine("h200"), V3, batch=128, q_len=1, eps=(1, 8))}
    drawn = turn_chart(found, subtitle="x")["data"]["values"]
    assert sum("least" not in value for value in drawn) == 5  # one GPU exchanges nothing
    best = min(found["H200"], key=lambda turn: turn.seconds)
    assert [(value["EP"], value["µs"]) for value in drawn if "least" in value] == [(best.ep, best.seconds * 1e6)]
