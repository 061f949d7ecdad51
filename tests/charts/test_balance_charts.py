"""Charts of balanced experts: every figure is in the data, and they can be drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moeplan.charts.expert_heat import expert_heat_chart
from moeplan.charts.rank_loads import rank_loads_chart
from moeplan.charts.render import write_chart
from moeplan.charts.replica_curve import replica_curve_chart
from moeplan.explain.placement_gain import ServedPoint
from moeplan.explain.replica_curve import replica_curve, worth_having
from moeplan.routing.load_laws import law_loads

LOADS = law_loads("lognormal:1", layers=3, experts=64).total
POINTS = replica_curve(LOADS, ranks=16, before=2.0, share=0.6, expert_bytes=1e9)


def test_the_heat_map_has_a_cell_per_expert_and_says_where_colours_end() -> None:
    spec = expert_heat_chart(LOADS, (3, 4, 5), subtitle="x")
    cells = spec["data"]["values"]
    assert len(cells) == 3 * 64
    of_layer = [cell["heat"] for cell in cells if cell["layer"] == 4]
    assert np.mean(of_layer) == pytest.approx(1.0, abs=1e-2)
    assert of_layer == pytest.approx(LOADS[1] / LOADS[1].mean(), abs=1e-3)
    assert spec["width"] % 64 == 0
    assert "ends at" in spec["encoding"]["color"]["title"][2]
    assert expert_heat_chart(np.zeros((1, 4)), (0,), subtitle="x")["data"]["values"][0]["heat"] == 0.0


def test_ranks_from_the_fullest_on() -> None:
    panels = {"worst: layer 3": {"before": np.array([1.0, 3.0]), "after": np.array([2.0, 2.0])}}
    values = rank_loads_chart(panels, subtitle="x")["data"]["values"]
    assert [(one["when"], one["rank"], one["load"]) for one in values] == [
        ("before", 1, 1.5),
        ("before", 2, 0.5),
        ("after", 1, 1.0),
        ("after", 2, 1.0),
    ]


def test_the_curve_marks_what_is_worth_having() -> None:
    worth = worth_having(POINTS)
    spec = replica_curve_chart(POINTS, worth=worth, subtitle="x")
    top, memory = spec["vconcat"]
    assert top["layer"][1]["data"]["values"][0]["redundant"] == worth.redundant
    assert [round(one["GiB"] * 2**30 / 1e9) for one in memory["data"]["values"]] == list(range(9))
    gains = [one["gain"] for one in top["layer"][2]["data"]["values"]]
    assert gains == [f"{point.gain:.2f}×" for point in POINTS if point.possible]
    domain = top["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert domain[0] == 1.0
    assert domain[1] >= 1.1  # a tenth of a percent, as near as placements go, is no wiggle to look at
    bare = replica_curve(LOADS, ranks=16, before=2.0, share=0.6, expert_bytes=None, upto=32)
    assert len(replica_curve_chart(bare, worth=bare[0], subtitle="x")["vconcat"]) == 1


def test_they_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="pip install 'moeplan[charts]'")
    panels = {"worst": {"before": np.array([1.0, 3.0]), "after": np.array([2.0, 2.0])}}
    specs = [
        expert_heat_chart(LOADS, (3, 4, 5), subtitle="x"),
        rank_loads_chart(panels, subtitle="x"),
        replica_curve_chart(POINTS, worth=worth_having(POINTS), subtitle="x"),
    ]
    written = write_chart(specs, tmp_path / "c.png")
    assert [path.stat().st_size > 5_000 for path in written] == [True] * 3


def test_what_is_left_to_serve_is_a_panel_of_its_own() -> None:
    served = [
        ServedPoint(redundant=16 * at, batch=64 - at, tps_per_gpu=900.0 - at, tps_per_user=20.0, kv_bytes=1e9)
        for at in range(3)
    ]
    spec = replica_curve_chart(POINTS, worth=worth_having(POINTS), subtitle="x", served=served)
    assert len(spec["vconcat"]) == 3
    values = spec["vconcat"][2]["data"]["values"]
    assert [(one["redundant"], one["tok/s/GPU"], one["label"]) for one in values] == [
        (0, 900.0, "64"),
        (16, 899.0, "63"),
        (32, 898.0, "62"),
    ]
