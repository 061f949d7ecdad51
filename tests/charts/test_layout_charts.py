"""Charts of layouts: every figure is in the data, the crossing is marked, and they can be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeplan.charts.layout_curves import layout_curves_chart, layout_fronts_chart
from moeplan.charts.render import write_chart
from moeplan.explain.layout_curves import LayoutPanel, layout_panel, requests_grid
from moeplan.predict import Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Acceptance, Deployment, Precision
from moeplan.specs.spread import spreads

CATALOG = Catalog.standard()
MODEL = CATALOG.model("deepseek-v3")
CLUSTER = Cluster(gpu=CATALOG.gpu("h200"), nic=CATALOG.nic("cx7"), gpus_per_node=8, nics_per_node=8)


def panel(context: int, layouts: tuple[str, ...] = ("dep", "tep")) -> LayoutPanel:
    base = Deployment(
        batch=1, ep=1, context=context, precision=Precision.of(MODEL), acceptance=Acceptance.geometric(1.0, 1, "none")
    )
    found = [(spread.layout, spread) for spread in spreads(MODEL, (8,), layouts, (1,))]
    return layout_panel(Predictor.of(MODEL, CLUSTER, CATALOG), base, found, requests_grid(8, 64), gpus=8)


PANELS = [panel(2000), panel(64000)]


def layers(cell: dict[str, Any], mark: str) -> list[dict[str, Any]]:
    return [layer for layer in cell["layer"] if "mark" in layer and layer["mark"]["type"] == mark]


def test_every_layout_has_its_points_and_its_band() -> None:
    spec = layout_curves_chart(PANELS, subtitle="x")
    assert [cell["title"]["text"] for cell in spec["concat"]] == ["8 GPUs, context 2,000", "8 GPUs, context 64,000"]
    for cell, asked in zip(spec["concat"], PANELS, strict=True):
        (line,), (band,) = layers(cell, "line"), layers(cell, "area")
        for curve in asked.curves:
            points = {value["requests"]: value for value in line["data"]["values"] if value["layout"] == curve.name}
            assert max(points) == curve.most
            for requests, value in points.items():
                assert value["ms"] == pytest.approx((curve.seconds_at(requests) or 0) * 1e3, rel=1e-3)
                assert value["low"] < value["ms"] < value["high"]
        for value in band["data"]["values"]:
            best = asked.fastest(value["requests"])
            assert best is not None
            assert value["low"] < (best.seconds_at(value["requests"]) or 0) * 1e3 < value["high"]


def test_the_crossing_is_marked_and_the_undecided_range_is_shaded() -> None:
    for cell, asked in zip(layout_curves_chart(PANELS, subtitle="x")["concat"], PANELS, strict=True):
        crossing = asked.crossing
        assert crossing is not None
        assert crossing.undecided is not None
        (shade,) = layers(cell, "rect")
        (value,) = shade["data"]["values"]
        assert value["from"] == pytest.approx(crossing.undecided[0], rel=0.03)
        assert value["to"] == pytest.approx(crossing.undecided[1], rel=0.03)
        (rule,) = [layer for layer in cell["layer"] if "layer" in layer]
        (mark,) = rule["data"]["values"]
        assert crossing.upto is not None
        assert crossing.start is not None
        assert crossing.upto < mark["at"] < crossing.start
        assert mark["label"] == f"tep to {crossing.upto}, dep from {crossing.start}"


def test_without_a_crossing_nothing_is_marked() -> None:
    (cell,) = layout_curves_chart([panel(2000, ("dep", "dep-ag"))], subtitle="x")["concat"]
    assert not layers(cell, "rect")
    assert not [layer for layer in cell["layer"] if "layer" in layer]


def test_fronts_hold_speed_and_throughput_of_the_same_points() -> None:
    (cell, _) = layout_fronts_chart(PANELS, subtitle="x")["concat"]
    for value in cell["data"]["values"]:
        assert value["tok/s per GPU"] == pytest.approx(value["requests"] * value["tok/s per user"] / 8, rel=2e-3)


def test_a_layout_keeps_its_colour() -> None:
    alone = layout_curves_chart([panel(2000, ("tep",))], subtitle="x")["concat"][0]
    both = layout_curves_chart(PANELS, subtitle="x")["concat"][0]
    scales = [layers(cell, "line")[0]["encoding"]["color"]["scale"] for cell in (alone, both)]
    colours = [dict(zip(scale["domain"], scale["range"], strict=True)) for scale in scales]
    assert colours[0]["tep"] == colours[1]["tep"]
    assert len(set(colours[1].values())) == 2


def test_they_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="pip install 'moeplan[charts]'")
    specs = [layout_curves_chart(PANELS, subtitle="x"), layout_fronts_chart(PANELS, subtitle="x")]
    written = write_chart(specs, tmp_path / "c.png")
    assert [path.stat().st_size > 20_000 for path in written] == [True, True]
