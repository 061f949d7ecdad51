"""What redundant expert slots buy, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moeplan.charts.style import Spec, chart
from moeplan.explain.placement_gain import ServedPoint
from moeplan.explain.replica_curve import ReplicaPoint

WIDTH = 560
LEAST_TOP = 1.1  # of the axis: a tenth of a percent from placement to placement is nothing to look at
COLOURS = {"worst layer": "#D55E00", "mean of the layers": "#0072B2"}
WORTH_COLOUR = "#009E73"


def replica_curve_chart(
    points: Sequence[ReplicaPoint], *, worth: ReplicaPoint, subtitle: str, served: Sequence[ServedPoint] = ()
) -> Spec:
    """Max over mean (mean and worst of the layers) over the redundant slots; below it what they cost.

    The GiB that a GPU holds for them and, where steps were predicted, what is left for it to serve.
    """
    possible = [point for point in points if point.possible]
    first, last = possible[0].redundant, possible[-1].redundant
    margin = max(last - first, 1) / 30
    x: Spec = {
        "field": "redundant",
        "type": "quantitative",
        "title": "redundant slots per layer, over all ranks",
        "axis": {"values": [point.redundant for point in possible], "format": "d", "grid": True},
        "scale": {"nice": False, "zero": False, "padding": 0, "domain": [first - margin, last + margin]},
    }
    panels = [{"width": WIDTH, "height": 260, "layer": [_lines(possible, x), _mark(worth), _gains(possible)]}]
    if all(point.bytes_ is not None for point in possible):
        panels.append(_memory(possible, x))
    if served:
        panels.append(_served(served, x))
    spec = chart("What redundant experts buy", subtitle, {"vconcat": panels})
    del spec["width"], spec["height"]
    return spec


def _lines(points: Sequence[ReplicaPoint], x: Spec) -> Spec:
    values: list[dict[str, Any]] = [
        {"redundant": point.redundant, "line": line, "skew": round(skew, 5)}
        for point in points
        for line, skew in zip(COLOURS, (point.worst, point.mean), strict=True)
    ]
    top = max(LEAST_TOP, max(point.worst for point in points) * 1.03)
    return {
        "data": {"values": values},
        "mark": {"type": "line", "point": {"size": 30}},
        "encoding": {
            "x": x,
            "y": {
                "field": "skew",
                "type": "quantitative",
                "title": ["fullest rank over the mean", "(label: gain of the step)"],
                "scale": {"zero": False, "nice": False, "domain": [1.0, top]},
            },
            "color": {
                "field": "line",
                "type": "nominal",
                "title": None,
                "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
            },
            "tooltip": [{"field": "line"}, {"field": "redundant"}, {"field": "skew"}],
        },
    }


def _mark(worth: ReplicaPoint) -> Spec:
    """A ring around the number worth having, named."""
    text = {"type": "text", "align": "left", "dx": 4, "dy": -30, "color": WORTH_COLOUR, "fontSize": 12}
    halo = text | {"stroke": "white", "strokeWidth": 4}  # curves may run under its name, which is above their labels
    return {
        "data": {"values": [{"redundant": worth.redundant, "skew": worth.mean, "label": "worth having"}]},
        "layer": [
            {"mark": {"type": "point", "size": 170, "strokeWidth": 1.8, "color": WORTH_COLOUR}},
            {"mark": halo, "encoding": {"text": {"field": "label"}}},
            {"mark": text, "encoding": {"text": {"field": "label"}}},
        ],
        "encoding": {
            "x": {"field": "redundant", "type": "quantitative"},
            "y": {"field": "skew", "type": "quantitative"},
        },
    }


def _gains(points: Sequence[ReplicaPoint]) -> Spec:
    """Above every point of the mean, how many times as fast a step is as before."""
    values = [{"redundant": point.redundant, "skew": point.worst, "gain": f"{point.gain:.2f}×"} for point in points]
    return {
        "data": {"values": values},
        "mark": {"type": "text", "dx": 9, "dy": -11, "fontSize": 10, "color": "#555555"},
        "encoding": {
            "x": {"field": "redundant", "type": "quantitative"},
            "y": {"field": "skew", "type": "quantitative"},
            "text": {"field": "gain"},
        },
    }


def _memory(points: Sequence[ReplicaPoint], x: Spec) -> Spec:
    memory = [{"redundant": point.redundant, "GiB": (point.bytes_ or 0.0) / 2**30} for point in points]
    return {
        "width": WIDTH,
        "height": 90,
        "data": {"values": memory},
        "mark": {"type": "bar", "size": 14, "color": "#E69F00"},
        "encoding": {
            "x": x,
            "y": {"field": "GiB", "type": "quantitative", "title": "GiB per GPU"},
            "tooltip": [{"field": "redundant"}, {"field": "GiB", "format": ".2f"}],
        },
    }


def _served(points: Sequence[ServedPoint], x: Spec) -> Spec:
    """Output tokens per second and GPU at the best batch that fits."""
    values = [
        {"redundant": point.redundant, "tok/s/GPU": point.tps_per_gpu, "batch": point.batch, "label": f"{point.batch}"}
        for point in points
    ]
    label = {"type": "text", "dy": -10, "fontSize": 10, "color": "#555555"}
    return {
        "width": WIDTH,
        "height": 120,
        "data": {"values": values},
        "encoding": {
            "x": x,
            "y": {"field": "tok/s/GPU", "type": "quantitative", "title": ["tok/s/GPU", "(label: batch)"]},
            "tooltip": [{"field": "redundant"}, {"field": "tok/s/GPU", "format": ",.0f"}, {"field": "batch"}],
        },
        "layer": [
            {"mark": {"type": "line", "point": {"size": 30, "color": WORTH_COLOUR}, "color": WORTH_COLOUR}},
            {"mark": label, "encoding": {"text": {"field": "label"}}},
        ],
    }
