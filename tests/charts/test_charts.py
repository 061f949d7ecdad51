"""Charts: what is drawn is what was given, with titles and units; a dictionary that JSON can hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from moeplan.charts.breakdown import breakdown_chart
from moeplan.charts.ladder import ladder_chart
from moeplan.charts.pareto import pareto_chart
from moeplan.charts.roofline import LABELLED, roofline_chart
from moeplan.charts.style import RESOURCE_COLOURS, Spec, log_scale
from moeplan.charts.tornado import tornado_chart
from moeplan.cli.options import cluster_of
from moeplan.explain.ladder import ladder
from moeplan.explain.operators import step_operators
from moeplan.explain.sensitivity import Elasticity, sensitivity
from moeplan.predict import Prediction, Predictor
from moeplan.search.pareto import FrontPoint
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision

CATALOG = Catalog.standard()
UNITS = ("ms", "tok/s", "FLOP", "%")


@cache
def predictor(gpu: str = "h800") -> Predictor:
    return Predictor.of(CATALOG.model("deepseek-v3"), cluster_of(CATALOG, gpu, "cx7", None), CATALOG)


@cache
def step(gpu: str = "h800", drafts: int = 1) -> Prediction:
    target = predictor(gpu)
    return target.predict(
        Deployment(
            batch=128,
            ep=128,
            context=4096,
            drafts=drafts,
            schedule="two-batch",
            precision=Precision.of(target.model),
            acceptance=Acceptance.geometric(0.85, 2, "this test"),
        )
    )


def front(scale: float, count: int = 4) -> list[FrontPoint]:
    return [
        FrontPoint(
            tps_per_user=scale * number,
            tps_per_gpu=scale * 1000 / number,
            batch=100 // number,
            count=8 * number,
            drafts=number % 2,
            schedule="naive",
            kv="bf16",
            core="bf16",
        )
        for number in range(1, count + 1)
    ]


FRONTS = {"H800, cx7": front(1.0), "H20, cx7": front(0.3)}


@cache
def charts() -> dict[str, Spec]:
    found, target = step(), predictor()
    operators = step_operators(found)
    elasticities = sensitivity(target, found.deployment, min_tps=float(found.tps_per_user))
    return {
        "pareto": pareto_chart(FRONTS, subtitle="what", min_tps=2.0),
        "ladder": ladder_chart(ladder(target, found), subtitle="what"),
        "breakdown": breakdown_chart(operators, subtitle="what"),
        "roofline": roofline_chart(operators, found.cluster.gpu, subtitle="what"),
        "tornado": tornado_chart(elasticities, subtitle="what"),
    }


NAMES = ("pareto", "ladder", "breakdown", "roofline", "tornado")


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Every dictionary inside a chart."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


def rows(spec: Spec, layer: int | None = None) -> list[dict[str, Any]]:
    part = spec if layer is None else spec["layer"][layer]
    found: list[dict[str, Any]] = part["data"]["values"]
    return found


# --- every chart ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_it_is_json(name: str) -> None:
    assert json.loads(json.dumps(charts()[name], allow_nan=False)) == charts()[name]


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_title_a_size_and_the_version_of_its_language(name: str) -> None:
    spec = charts()[name]
    assert spec["$schema"] == "https://vega.github.io/schema/vega-lite/v5.json"
    assert spec["title"]["text"]
    assert spec["title"]["subtitle"].startswith("what")
    assert spec["width"] >= 400
    assert isinstance(spec["height"], int | dict)
    assert spec["background"] == "white"


@pytest.mark.parametrize("name", NAMES)
def test_every_axis_of_numbers_has_its_unit(name: str) -> None:
    for part in walk(charts()[name]):
        encoding = part.get("encoding", {})
        for axis in ("x", "y"):
            given = encoding.get(axis, {})
            if given.get("type") == "quantitative" and "field" in given and "title" in given:
                assert any(unit in given["title"] for unit in UNITS), given
    titled = [
        part["encoding"][axis]["title"]
        for part in walk(charts()[name])
        for axis in ("x", "y")
        if part.get("encoding", {}).get(axis, {}).get("title")
    ]
    assert titled


@pytest.mark.parametrize("name", NAMES)
def test_every_field_that_is_drawn_is_in_the_data(name: str) -> None:
    spec = charts()[name]

    def check(part: Spec, inherited: list[dict[str, Any]]) -> None:
        data = part.get("data", {}).get("values", inherited)
        fields = [
            item["field"]
            for channel in part.get("encoding", {}).values()
            for item in (channel if isinstance(channel, list) else [channel])
            if "field" in item
        ]
        for row in data:
            assert set(fields) <= set(row), name
        for layer in part.get("layer", []):
            check(layer, data)

    check(spec, [])


# --- each by itself -------------------------------------------------------------------------------------------------


def test_the_fronts_are_the_points_given() -> None:
    spec = charts()["pareto"]
    drawn = [(row["GPU"], row["tok/s per user"], row["tok/s per GPU"]) for row in rows(spec, 0)]
    assert drawn == [(name, p.tps_per_user, p.tps_per_gpu) for name, points in FRONTS.items() for p in points]
    for row, point in zip(rows(spec, 0), FRONTS["H800, cx7"], strict=False):
        given = (point.batch, point.count, point.drafts, point.schedule, point.kv)
        assert (row["batch per GPU"], row["GPUs"], row["MTP drafts"], row["schedule"], row["KV"]) == given
    assert rows(spec, 1) == [{"x": 2.0, "label": "promised 2 tok/s"}]
    low, high = spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert low < 0.3
    assert high > 4.0


def test_fronts_without_a_promise_or_without_points() -> None:
    assert len(pareto_chart(FRONTS, subtitle="x")["layer"]) == 1
    nothing: list[FrontPoint] = []
    for name in ((), ("H800, cx7",)):
        spec = pareto_chart(dict.fromkeys(name, nothing), subtitle="x", min_tps=20)
        assert rows(spec, 0) == []
        json.dumps(spec, allow_nan=False)


def test_the_promise_is_inside_the_axis() -> None:
    for promise in (0.01, 1000.0):
        spec = pareto_chart(FRONTS, subtitle="x", min_tps=promise)
        low, high = spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
        assert low < promise < high


def test_the_ladder_is_a_waterfall() -> None:
    rungs = ladder(predictor(), step())
    drawn = rows(charts()["ladder"])
    assert [row["rung"] for row in drawn] == [*(rung.name for rung in rungs), "predicted step"]
    assert [row["kind"] for row in drawn] == ["limit", *["loss"] * (len(rungs) - 1), "step"]
    for row, rung in zip(drawn, rungs, strict=False):
        assert row["ms"] == pytest.approx(1e3 * rung.seconds)
        assert row["to"] - row["from"] == pytest.approx(row["ms"], abs=1e-9)
    for before, after in pairwise(drawn[:-1]):
        assert after["from"] == before["to"]
    total = 1e3 * float(step().seconds)
    assert drawn[-1]["from"] == 0
    assert drawn[-1]["to"] == drawn[-1]["ms"] == pytest.approx(total)


def test_the_breakdown_shows_exposed_and_hidden_time() -> None:
    operators = step_operators(step())
    drawn = rows(charts()["breakdown"])
    exposed = {row["operator"]: row["ms"] for row in drawn if row["part"] == "exposed"}
    hidden = {row["operator"]: row["ms"] for row in drawn if row["part"] == "hidden"}
    assert exposed == {item.name: pytest.approx(1e3 * item.exposed) for item in operators}
    assert sum(exposed.values()) == pytest.approx(1e3 * float(step().seconds))
    assert set(hidden) == {"dispatch", "combine"}
    for item in operators:
        assert hidden.get(item.name, 0) == pytest.approx(1e3 * (item.seconds - item.exposed), abs=1e-9)
    colours = charts()["breakdown"]["encoding"]["color"]["scale"]
    assert dict(zip(colours["domain"], colours["range"], strict=True)) == RESOURCE_COLOURS
    assert {row["bound by"] for row in drawn} <= set(RESOURCE_COLOURS)
    assert charts()["breakdown"]["encoding"]["y"]["sort"] == [item.name for item in operators]


@pytest.mark.parametrize("gpu", ["h800", "b200", "a100", "mi300x"])
def test_the_roofline_has_no_point_above_its_roofs(gpu: str) -> None:
    found = step(gpu)
    operators, chip = step_operators(found), found.cluster.gpu
    spec = roofline_chart(operators, chip, subtitle="x")
    points = {row["operator"]: row for row in rows(spec, 1)}
    assert set(points) == {item.name for item in operators if item.flops > 0 and item.bytes_ > 0}
    for item in operators:
        if item.name in points:
            drawn = points[item.name]
            assert drawn["FLOP per byte"] == pytest.approx(item.flops / item.bytes_)
            assert drawn["TFLOP/s"] == pytest.approx(item.flops / item.seconds / 1e12)
            assert drawn["ms per step"] == pytest.approx(item.seconds * 1e3)
            bandwidth = drawn["FLOP per byte"] * chip.memory.bandwidth / 1e12
            assert drawn["TFLOP/s"] <= min(max(chip.compute.values()) / 1e12, bandwidth) * (1 + 1e-9)
    named = [row["operator"] for layer in (2, 3) for row in rows(spec, layer)]
    assert sorted(named) == sorted(sorted(points, key=lambda name: -points[name]["ms per step"])[:LABELLED])


def test_the_roofs_are_bandwidth_and_then_peak() -> None:
    chip = step().cluster.gpu
    roofs = rows(charts()["roofline"], 0)
    assert {row["precision"] for row in roofs} == {"bf16", "fp8"}
    for row in roofs:
        roof = min(chip.compute[row["precision"]], row["FLOP per byte"] * chip.memory.bandwidth)
        assert row["TFLOP/s"] == pytest.approx(roof / 1e12)
    for precision in ("bf16", "fp8"):
        ridge = chip.compute[precision] / chip.memory.bandwidth
        assert any(
            row["FLOP per byte"] == pytest.approx(ridge) for row in roofs if row["precision"] == precision
        )  # the corner


def test_a_roofline_without_operators() -> None:
    json.dumps(roofline_chart([], CATALOG.gpu("h20"), subtitle="x"), allow_nan=False)


def test_the_tornado_is_sorted_by_size() -> None:
    given = [
        Elasticity(knob="a", value=0.1, meaning=""),
        Elasticity(knob="b", value=-0.7, meaning=""),
        Elasticity(knob="c", value=0.5, meaning=""),
    ]
    spec = tornado_chart(given, subtitle="x")
    assert rows(spec) == [{"knob": "b", "percent": -0.7}, {"knob": "c", "percent": 0.5}, {"knob": "a", "percent": 0.1}]
    assert spec["layer"][0]["encoding"]["y"]["sort"] == ["b", "c", "a"]
    assert rows(tornado_chart([], subtitle="x")) == []


def test_a_logarithmic_scale_holds_its_positive_values() -> None:
    for values in ([1.0, 100.0], [0.0, 5.0], [3.0]):
        low, high = log_scale(values)["domain"]
        positive = [value for value in values if value > 0]
        assert 0 < low < min(positive)
        assert max(positive) < high
    assert log_scale([])["domain"][0] > 0


def test_the_ring_is_where_the_winner_is() -> None:
    ring = pareto_chart(FRONTS, subtitle="x", winner=(21.5, 1700.0))["layer"][-1]
    assert ring["data"]["values"] == [{"tok/s per user": 21.5, "tok/s per GPU": 1700.0}]
    assert {axis: ring["encoding"][axis]["field"] for axis in "xy"} == {"x": "tok/s per user", "y": "tok/s per GPU"}
