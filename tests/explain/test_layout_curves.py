"""Layouts over the requests: what a curve says is what a prediction says, and the crossing lies where they turn."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.explain.layout_curves import LayoutPanel, layout_curve, layout_panel, requests_grid
from moeplan.explain.step_band import ratio_band
from moeplan.kernels.sources import ALL
from moeplan.predict import Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Acceptance, Deployment, Precision
from moeplan.specs.spread import LAYOUTS, spreads

CATALOG = Catalog.standard()
MODEL = CATALOG.model("deepseek-v3")
CHIP = CATALOG.gpu("h200")
PREDICTOR = Predictor.of(MODEL, Cluster(gpu=CHIP, nic=CATALOG.nic("cx7"), gpus_per_node=8, nics_per_node=8), CATALOG)
BASE = Deployment(
    batch=1, ep=1, context=2000, precision=Precision.of(MODEL), acceptance=Acceptance.geometric(1.0, 1, "none")
)


def panel(gpus: int = 8, context: int = 2000, layouts: tuple[str, ...] = tuple(LAYOUTS)) -> LayoutPanel:
    found = [(spread.layout, spread) for spread in spreads(MODEL, (gpus,), layouts, (1,))]
    return layout_panel(PREDICTOR, replace(BASE, context=context), found, requests_grid(gpus, 512), gpus=gpus)


@pytest.fixture(scope="module")
def eight() -> LayoutPanel:
    return panel()


def test_the_grid_has_full_ranks_powers_and_what_was_asked() -> None:
    grid = requests_grid(24, 8, (33,))
    assert set(range(1, 65)) <= set(grid)
    assert {33, 72, 96, 128, 192} <= set(grid)
    assert grid.max() == 192
    assert np.all(np.diff(grid) > 0)


def test_tp_wins_with_one_request_and_dep_with_many_on_eight_h200(eight: LayoutPanel) -> None:
    first, last = eight.fastest(1), eight.fastest(1024)
    assert first is not None
    assert last is not None
    assert (first.name, last.name) == ("tp", "dep")
    assert first.by_heads
    assert not last.by_heads


def test_a_point_of_a_curve_is_the_prediction(eight: LayoutPanel) -> None:
    for curve in eight.curves:
        for requests in (1, 8, 64, 256):
            point = curve.at(requests)
            assert point is not None
            assert float(point.step.seconds) == pytest.approx(curve.seconds_at(requests), rel=1e-9)
            assert point.batch == -(-requests // int(point.step.deployment.dp))
            assert bool(point.step.fits)
            assert point.gpu_band.holds(point.tps_per_gpu)
            assert point.user_band.holds(float(point.step.tps_per_user))


def test_the_faster_schedule_is_taken(eight: LayoutPanel) -> None:
    dep = next(curve for curve in eight.curves if curve.name == "dep")
    for requests in (16, 512):
        point = dep.at(requests)
        assert point is not None
        for schedule in ("naive", "two-batch"):
            other = PREDICTOR.predict(replace(point.step.deployment, schedule=schedule))
            assert float(other.seconds) >= float(point.step.seconds) * (1 - 1e-12)


def test_the_last_that_fits_is_followed_by_one_that_does_not(eight: LayoutPanel) -> None:
    for curve in eight.curves:
        point = curve.at(curve.most)
        assert point is not None
        assert curve.ends == "memory"
        more = PREDICTOR.predict(replace(point.step.deployment, batch=point.batch + 8))
        assert not bool(more.fits)


@pytest.mark.parametrize(("gpus", "context"), [(8, 2000), (8, 16000), (32, 16000)])
def test_either_side_of_the_crossing_direct_predictions_agree(gpus: int, context: int) -> None:
    found = panel(gpus, context)
    crossing = found.crossing
    assert crossing is not None
    assert crossing.upto is not None
    assert crossing.start is not None
    assert crossing.upto < crossing.start
    for requests, by_heads in ((crossing.upto, True), (crossing.start, False)):
        best = found.fastest(requests)
        assert best is not None
        assert best.by_heads == by_heads
        assert best.name == (crossing.heads if by_heads else crossing.requests)


def test_the_undecided_range_is_where_the_ratios_band_holds_one(eight: LayoutPanel) -> None:
    assert eight.crossing is not None
    assert eight.crossing.undecided is not None
    low, high = eight.crossing.undecided
    assert eight.crossing.upto is not None
    assert low <= eight.crossing.upto <= high
    for requests, open_ in ((low - 1, False), (low, True), (high, True), (high + 8, False)):
        points = []
        for side in (True, False):
            curves = [curve for curve in eight.curves if curve.by_heads == side]
            best = min(curves, key=lambda curve: curve.seconds_at(requests) or np.inf)
            points.append(best.at(requests))
        one, other = points
        assert one is not None
        assert other is not None
        assert ratio_band(one.step, other.step).holds(1.0) == open_, requests


def test_longer_contexts_cross_earlier() -> None:
    """Every GPU of a TP group reads the whole latent cache."""
    ends = [panel(8, context).crossing for context in (2000, 16000, 64000)]
    upto = [crossing.upto or 0 for crossing in ends if crossing is not None]
    assert upto == sorted(upto, reverse=True)
    assert upto[0] > 4 * upto[-1]


def test_one_kind_of_layout_crosses_nothing_and_what_does_not_fit_is_said() -> None:
    assert panel(layouts=("dep", "dep-ag")).crossing is None
    nothing = panel(gpus=4)
    assert not nothing.curves
    assert {name for name, _ in nothing.refused} == set(LAYOUTS)
    assert all("fits in memory" in why for _, why in nothing.refused)


def test_where_memory_ends_attention_by_heads() -> None:
    """Without the crossing by speed, by heads ends where its caches no longer fit."""
    found = panel(8, 64000, ("tep", "dtp-ag"))
    assert found.crossing is not None
    curve = next(curve for curve in found.curves if curve.by_heads)
    assert found.crossing.upto is not None
    assert found.crossing.upto <= curve.most
    assert found.crossing.fits == ((found.crossing.start or 0) <= curve.most)


def test_a_rank_of_more_requests_is_no_faster(eight: LayoutPanel) -> None:
    for curve in eight.curves:
        assert np.all(np.diff(curve.seconds[np.isfinite(curve.seconds)]) > -2e-3), curve.name


def test_a_curve_ends_with_what_was_asked_for() -> None:
    spread = spreads(MODEL, (8,), ("tep",), (1,))[0]
    curve = layout_curve(PREDICTOR, BASE, spread, requests_grid(8, 4), name="tep", gpus=8)
    assert curve.by_heads
    assert (curve.ends, curve.most) == ("largest asked", 32)
    assert curve.at(32) is not None


def test_a_refusal_by_the_sources_is_of_one_layout() -> None:
    """Nobody measured an all-reduce across nodes: strict sources refuse it, and keep the all-to-all."""
    strict = Predictor.of(MODEL, PREDICTOR.machine.cluster, CATALOG, replace(ALL, strict=True))
    found = [(spread.layout, spread) for spread in spreads(MODEL, (16,), ("dep", "tep"), (1,))]
    asked = layout_panel(strict, BASE, found, requests_grid(16, 4), gpus=16)
    assert [curve.name for curve in asked.curves] == ["dep"]
    ((name, why),) = asked.refused
    assert name == "tep"
    assert "attention_sum is assumed" in why
