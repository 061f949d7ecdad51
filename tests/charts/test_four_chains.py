"""The chart of the four chains: six panels over the batch, what they draw, and the limits on it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from moeplan.charts.four_chains import LIMIT_COLOURS, MOST_POINTS, four_chains_chart
from moeplan.charts.render import page
from moeplan.charts.style import Spec
from moeplan.cli.options import cluster_of
from moeplan.explain.operating_point import PROMISE, TURNING, Budget, budget
from moeplan.predict import Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision

CATALOG = Catalog.standard()


@cache
def answer(
    model: str = "deepseek-v3", gpu: str = "h800", ep: int = 128, first: int = 1, last: int = 1024, tps: float = 20.0
) -> Budget:
    target = Predictor.of(CATALOG.model(model), cluster_of(CATALOG, gpu, "cx7", None), CATALOG)
    asked = Deployment(
        batch=np.arange(first, last + 1.0),
        ep=ep,
        context=5000,
        precision=Precision.of(target.model),
        acceptance=Acceptance.geometric(0.85, 1, "this test"),
    )
    return budget(target, asked, schedule="auto", min_tps=tps, host_launch=1e-4)


def drawn(found: Budget, tps: float = 20.0) -> Spec:
    spec = four_chains_chart(found, subtitle="this test", min_tps=tps)
    json.dumps(spec, allow_nan=False)
    return spec


def lines(spec: Spec, panel: int) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for value in spec["concat"][panel]["layer"][0]["data"]["values"]:
        found.setdefault(value["line"], []).append((value["batch"], value["value"]))
    return found


def rules(spec: Spec, panel: int) -> dict[str, Any]:
    return {value["limit"]: value["batch"] for value in spec["concat"][panel]["layer"][1]["data"]["values"]}


def test_six_panels_draw_the_chains() -> None:
    found = answer()
    spec = drawn(found)
    assert [panel["title"]["text"] for panel in spec["concat"]] == [
        "Weights: coverage and intensity",
        "Rows per expert and tiles",
        "All-to-all",
        "KV cache, GiB per GPU",
        "Speed of a user",
        "Throughput",
    ]
    assert {len(panel["layer"]) for panel in spec["concat"]} == {2}
    assert "width" not in spec  # a concatenation has none of its own
    at = found.chains.at(64)
    rows = dict(lines(spec, 1)["rows per expert"])
    near = min(rows, key=lambda batch: abs(batch - 64))
    assert near == 64
    assert rows[64] == found.chains.rows[at]
    assert dict(lines(spec, 2)["exposed"])[64] == found.chains.wire_share[at]
    assert dict(lines(spec, 3)["asked"])[64] == pytest.approx(found.chains.kv_bytes[at] / 2**30)
    assert {value for _, value in lines(spec, 4)["promised"]} == {20.0}


def test_limits_are_rules_and_their_values_the_legend() -> None:
    found = answer()
    for index in range(6):
        spec = drawn(found)
        assert rules(spec, index) == {
            "B* = 42": pytest.approx(found.point.turning),
            f"B_SLA = {found.point.promise}": found.point.promise,
            f"B_max_mem = {found.point.memory}": found.point.memory,
        }
    assert f"{TURNING}, at {found.point.at.batch if found.point.at else 0} requests" in spec["title"]["text"]


def test_a_limit_outside_of_the_picture_is_named_and_not_drawn() -> None:
    spec = drawn(answer(last=64))
    assert list(rules(spec, 0)) == ["B* = 42"]
    domain = spec["concat"][0]["layer"][1]["encoding"]["stroke"]["scale"]["domain"]
    assert len(domain) == len(LIMIT_COLOURS)


def test_batches_are_thinned_to_even_ones_on_a_logarithmic_axis() -> None:
    """Odd batches run without overlap and would zigzag beside the even ones."""
    batches = [batch for batch, _ in lines(drawn(answer()), 0)["coverage of experts"]]
    assert len(batches) <= MOST_POINTS
    assert (batches[0], batches[-1]) == (1, 1024)
    assert all(batch % 2 == 0 for batch in batches[1:])
    assert len(lines(drawn(answer(last=64)), 0)["coverage of experts"]) == 64


def test_throughput_tells_what_fits_from_what_does_not() -> None:
    found = answer()
    parts = lines(drawn(found), 5)
    assert max(batch for batch, _ in parts["where it fits"]) <= found.point.memory
    assert min(batch for batch, _ in parts["no room"]) > found.point.memory - 2


def test_a_dense_model_has_no_panel_of_experts_and_all_to_all() -> None:
    names = [panel["title"]["text"] for panel in drawn(answer("llama-3.1-8b", "h100", ep=1, last=32))["concat"]]
    assert len(names) == 4
    assert not any("expert" in name or "All-to-all" in name for name in names)


def test_it_is_a_page_and_a_picture() -> None:
    """Also of a single batch, which has no line, of a dense model, and where nothing is feasible."""
    convert = pytest.importorskip("vl_convert")
    dense = answer("llama-3.1-8b", "h100", ep=1, last=32)
    for found in (answer(), answer(first=8, last=8), dense, answer(ep=8, last=8)):
        spec = drawn(found)
        assert "vegaEmbed" in page([spec])
        svg = convert.vegalite_to_svg(spec, vl_version="5.21")
        assert "requests per GPU" in svg
        assert "Infinity" not in svg
        assert "NaN" not in svg


def test_no_operating_point_is_said_in_the_title() -> None:
    assert f"{PROMISE} leaves none" in drawn(answer(tps=5000.0), 5000.0)["title"]["text"]
