"""The band of a step holds the point, widens as sources get less sure, and covers what was published."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from moeplan.explain.band_coverage import BandCoverage, band_coverage, calibrated
from moeplan.explain.step_band import (
    LONGER,
    NORMAL,
    PAIR,
    UNSTATED,
    Band,
    families,
    half_width,
    kernel_width,
    ratio_band,
    ratio_width,
    step_band,
)
from moeplan.kernels.fit import FitError
from moeplan.kernels.origin import Origin
from moeplan.ops.cost import Cost
from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import ALL_REDUCE, Acceptance, Deployment, Precision

CATALOG = Catalog.standard()
MODEL = CATALOG.model("deepseek-v3")


def step(gpu: str = "h200", **changes: object) -> Prediction:
    chip = CATALOG.gpu(gpu)
    cluster = Cluster(gpu=chip, nic=CATALOG.nic("cx7"), gpus_per_node=8, nics_per_node=8)
    base = Deployment(
        batch=32,
        ep=8,
        context=4096,
        precision=Precision.of(MODEL),
        acceptance=Acceptance.geometric(0.85, 1, "assumed"),
    )
    return Predictor.of(MODEL, cluster, CATALOG).predict(replace(base, **changes))


def cost(origin: Origin, error: FitError | None = None) -> Cost:
    return Cost(
        name="x",
        seconds=1.0,
        parts={"floor": 1.0},
        efficiencies={},
        origin=origin,
        source="s",
        formula="",
        error=error,
    )


@pytest.fixture(scope="module")
def coverage() -> BandCoverage:
    return band_coverage(CATALOG)


@pytest.mark.parametrize("gpu", ["h800", "h20", "h200", "b200", "ascend-910c"])
@pytest.mark.parametrize("changes", [{}, {"tp": 8, "exchange": ALL_REDUCE}, {"drafts": 1}, {"schedule": "two-batch"}])
def test_the_band_holds_the_point_and_leans_to_longer_steps(gpu: str, changes: dict[str, object]) -> None:
    found = step(gpu, **changes)
    band, seconds = step_band(found), float(found.seconds)
    assert band.low < seconds < band.high
    assert band.high / seconds > seconds / band.low
    assert band.high / seconds >= math.exp(LONGER)
    rates = band.of_rate(float(found.tokens_per_step))
    assert rates.low < float(found.tps_per_user) < rates.high


def test_shares_add_up_to_the_step() -> None:
    """With one half-width for all, the families' sum is that half-width: every exposed second is in one of them."""
    found = step(drafts=1, schedule="two-batch")
    widths = families(found)
    assert all(value > 0 for value in widths.values())
    assert UNSTATED[Origin.MEASURED] < sum(widths.values()) < UNSTATED[Origin.ASSUMED]
    assert max(widths.values()) < kernel_width(found) < sum(widths.values())


def test_less_sure_origins_are_wider() -> None:
    widths = [half_width(cost(origin)) for origin in Origin]
    assert widths == sorted(widths)
    assert len(set(widths)) == len(widths)
    stated = half_width(cost(Origin.FITTED, FitError(rows=9, median=0.05, p90=0.1, bias=0.0)))
    assert stated == pytest.approx(math.log1p(0.1 * NORMAL))
    assert (
        half_width(cost(Origin.ASSUMED, FitError(rows=9, median=0.05, p90=0.1, bias=0.0))) == UNSTATED[Origin.ASSUMED]
    )
    assert stated < half_width(cost(Origin.FITTED, FitError(rows=9, median=0.05, p90=0.3, bias=0.0)))


def test_a_step_on_less_sure_kernels_has_a_wider_band() -> None:
    """H800's kernels are measured, CloudMatrix's chip has none of its own."""
    assert kernel_width(step("h800", ep=128, batch=128)) < kernel_width(step("h200", ep=128, batch=128))
    assert kernel_width(step("h200", ep=128)) < kernel_width(step("ascend-910c", ep=128))
    by_hand = step(corrections={"mla_core": 1.0})
    assert kernel_width(by_hand) > kernel_width(step())


def test_what_two_steps_share_cancels_in_their_ratio() -> None:
    one, other = step(), step(batch=34)
    assert ratio_width(one, one) == 0.0
    assert ratio_width(one, other) < 0.1 * kernel_width(one)
    heads = step(batch=256, tp=8, exchange=ALL_REDUCE)
    assert ratio_width(one, heads) == pytest.approx(ratio_width(heads, one))
    assert ratio_width(one, heads) < math.hypot(kernel_width(one), kernel_width(heads))
    band, back = ratio_band(one, heads), ratio_band(heads, one)
    assert band.holds(float(one.seconds / heads.seconds))
    assert (band.low, band.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert band.high / band.low >= math.exp(2 * PAIR) * (1 - 1e-12)


def test_bands_of_rates_turn_around() -> None:
    band = Band(low=2.0, high=4.0)
    assert band.of_rate(8.0) == Band(low=2.0, high=4.0)
    assert band.holds(2.0)
    assert not band.holds(4.1)


def test_the_terms_of_whole_steps_are_what_the_published_rows_need(coverage: BandCoverage) -> None:
    assert pytest.approx(calibrated([row.needed for row in coverage.rows]), abs=0.01) == LONGER
    assert pytest.approx(calibrated(coverage.pairs), abs=0.01) == PAIR


def test_it_covers_the_published_steps(coverage: BandCoverage) -> None:
    """9 of 10 rows: less than a tenth runs longer than the band, none is shorter. As docs/layouts.md says."""
    assert len(coverage.rows) == 45
    assert coverage.inside in (41, 42)
    assert coverage.shorter == 0
    assert 0.88 < coverage.pairs_inside / len(coverage.pairs) < 0.92


def test_sources_left_out_of_the_calibration(coverage: BandCoverage) -> None:
    unseen = coverage.unseen()
    assert sum(inside for inside, _ in unseen.values()) >= 36  # 80 % of the rows
    missed = {group for group, (inside, rows) in unseen.items() if inside < rows}
    assert missed == {"SGLang MTP, 16 H200", "SGLang, GB200", "TensorRT-LLM, least latency", "CloudMatrix384"}
    assert all(rows - inside <= 1 for group, (inside, rows) in unseen.items() if "MTP" not in group)
    assert unseen["SGLang MTP, 16 H200"] == (0, 4)
