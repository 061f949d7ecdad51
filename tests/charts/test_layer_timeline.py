"""The picture of a layer: every bar where the scheduler puts it, exposed time marked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moeplan.charts.layer_timeline import COMPUTE, EXPOSED, HIDDEN, KINDS, SLOWED, layer_timeline_chart
from moeplan.charts.render import page
from moeplan.charts.style import NEGATIVE
from moeplan.cli.options import cluster_of
from moeplan.predict import Prediction, Predictor
from moeplan.schedules.intervals import Interval, intervals
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision
from moeplan.specs.schedule import schedule_names


def step(name: str, ep: int = 72) -> Prediction:
    catalog = Catalog.standard()
    model = catalog.model("deepseek-v3")
    target = Predictor.of(model, cluster_of(catalog, "h100", "cx7", None), catalog)
    acceptance = Acceptance.geometric(0.85, 1, "this test")
    return target.predict(
        Deployment(batch=128, ep=ep, context=2000, precision=Precision.of(model), acceptance=acceptance, schedule=name)
    )


def bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = found["data"]["values"]
    return values


@pytest.mark.parametrize("name", schedule_names())
@pytest.mark.parametrize("ep", [8, 72])
def test_the_bars_add_up_to_the_layer(name: str, ep: int) -> None:
    """Compute, what it is slowed by, and exposed network fill the layer without a gap."""
    found = step(name, ep)
    group = found.groups[-1]
    spec = layer_timeline_chart(intervals(group.layer, name), schedule=name, subtitle="what")
    filled = [bar for bar in bars(spec) if bar["kind"] != HIDDEN]
    layer = float(group.timeline.seconds) * 1e6
    assert sum(bar["µs"] for bar in filled) == pytest.approx(layer)
    at = 0.0
    for bar in sorted(filled, key=lambda bar: bar["from"]):
        assert bar["from"] == pytest.approx(at, abs=1e-6)
        at = bar["to"]
    exposed = sum(float(group.timeline.exposed[stage]) for stage in ("dispatch", "combine")) * 1e6
    lost = sum(bar["µs"] for bar in filled if bar["kind"] != COMPUTE)
    assert lost == pytest.approx(exposed)
    busy = sum(float(group.layer.stages[stage].seconds) for stage in ("dispatch", "combine"))
    wires = sum(bar["µs"] for bar in bars(spec) if bar["lane"] == "network")
    assert wires == pytest.approx(busy * group.timeline.micro_batches * 1e6)
    assert {bar["micro-batch"] for bar in bars(spec)} == {str(i + 1) for i in range(group.timeline.micro_batches)}
    assert name in spec["title"]["subtitle"][0]
    assert "what" in spec["title"]["subtitle"]
    json.dumps(spec, allow_nan=False)
    assert "One layer" in page([spec])


def test_the_legend_tells_the_kinds_of_time_apart() -> None:
    """No two look alike; what is lost to the network, and nothing else, has the edge that says so."""
    assert len(set(KINDS.values())) == len(KINDS)
    assert {kind for kind, (_, edge) in KINDS.items() if edge == NEGATIVE} == {EXPOSED, SLOWED}
    group = step("single-batch", 16).groups[-1]
    spec = layer_timeline_chart(intervals(group.layer, "single-batch"), schedule="single-batch", subtitle="what")
    fill, edge = (spec["layer"][0]["encoding"][channel] for channel in ("opacity", "stroke"))
    assert set(fill["scale"]["domain"]) == {bar["kind"] for bar in bars(spec)} == set(KINDS)
    for part in ("field", "title", "legend"):  # alike, so that both share one legend
        assert fill[part] == edge[part]
    shown = zip(fill["scale"]["range"], edge["scale"]["range"], strict=True)
    assert dict(zip(fill["scale"]["domain"], shown, strict=True)) == KINDS


def test_stages_of_the_next_layer_have_a_dash() -> None:
    group = step("two-batch").groups[-1]
    spec = layer_timeline_chart(intervals(group.layer, "two-batch"), schedule="two-batch", subtitle="what")
    words = [word["word"] for word in spec["layer"][1]["data"]["values"]]
    assert "attention back" in words
    assert "attention back′" in words


def test_names_stand_on_bars_that_are_wide_enough() -> None:
    def task(lane: Any, stage: Any, start: float, end: float) -> Interval:
        return Interval(
            lane=lane, micro_batch=1, layer=0, stage=stage, part=0, parts=1, start=start, end=end, alone=end - start
        )

    shown = [task("compute", "attention_front", 0.0, 1e-6), task("network", "dispatch", 1e-6, 1e-4)]
    spec = layer_timeline_chart(shown, schedule="naive", subtitle="what")
    assert [word["word"] for word in spec["layer"][1]["data"]["values"]] == ["dispatch"]
    with pytest.raises(ValueError, match="no task"):
        layer_timeline_chart([], schedule="naive", subtitle="what")
