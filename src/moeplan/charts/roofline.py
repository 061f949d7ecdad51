"""The roofline with every operator on it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from moeplan.charts.style import Spec, chart, log_scale
from moeplan.explain.operators import StepOperator
from moeplan.specs.gpu import Gpu

LABELLED = 5
ROOM = 2.5  # right of the last point, for its name


class Point(NamedTuple):
    """An operator on the chart: FLOP per byte, TFLOP/s reached, milliseconds per step."""

    operator: str
    intensity: float
    reached: float
    milliseconds: float

    def row(self) -> dict[str, str | float]:
        """The point as data of the chart."""
        return {
            "operator": self.operator,
            "FLOP per byte": self.intensity,
            "TFLOP/s": self.reached,
            "ms per step": self.milliseconds,
        }


def roofline_chart(operators: list[StepOperator], gpu: Gpu, *, subtitle: str) -> Spec:
    """Arithmetic intensity against reached FLOP/s, both logarithmic; a roof per precision; area: time in the step."""
    points = [
        Point(
            operator.name,
            operator.flops / operator.bytes_,
            operator.flops / operator.seconds / 1e12,
            operator.seconds * 1e3,
        )
        for operator in operators
        if operator.flops > 0 and operator.bytes_ > 0
    ]
    ridge = max(gpu.compute.values()) / gpu.memory.bandwidth
    across = [point.intensity for point in points] + [ridge]
    low, high = min(across) / 1.5, max(across) * ROOM
    roofs: list[dict[str, Any]] = [
        {"precision": precision, "FLOP per byte": at, "TFLOP/s": min(peak, at * gpu.memory.bandwidth) / 1e12}
        for precision, peak in sorted(gpu.compute.items(), key=lambda item: item[1])
        if precision in ("bf16", "fp8", "fp4")
        for at in sorted({low, min(peak / gpu.memory.bandwidth, high), high})
    ]
    longest = sorted(points, key=lambda point: -point.milliseconds)[:LABELLED]
    x: Spec = {
        "field": "FLOP per byte",
        "type": "quantitative",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "title": "arithmetic intensity, FLOP per byte",
    }
    y: Spec = {
        "field": "TFLOP/s",
        "type": "quantitative",
        "scale": log_scale([point.reached for point in points] + [float(roof["TFLOP/s"]) for roof in roofs]),
        "title": "reached, TFLOP/s",
    }
    body: Spec = {
        "layer": [
            {
                "data": {"values": roofs},
                "mark": {"type": "line", "strokeWidth": 1.5},
                "encoding": {"x": x, "y": y, "color": {"field": "precision", "type": "nominal", "title": "roof"}},
            },
            {
                "data": {"values": [point.row() for point in points]},
                "mark": {"type": "circle", "color": "#D55E00", "opacity": 0.75},
                "encoding": {
                    "x": x,
                    "y": y,
                    "size": {"field": "ms per step", "type": "quantitative", "title": "ms per step"},
                    "tooltip": [{"field": key} for key in ("operator", "FLOP per byte", "TFLOP/s", "ms per step")],
                },
            },
            *_names(longest, x, y),
        ]
    }
    return chart("Roofline", f"{subtitle}; the {LABELLED} longest named", body, height=440)


def _names(points: list[Point], x: Spec, y: Spec) -> list[Spec]:
    """Names right of their points, below where the next point to the right is higher: neighbours keep theirs apart."""
    ordered = sorted(points, key=lambda point: point.intensity)
    below = [one for one, right in pairwise(ordered) if right.reached > one.reached]
    above = [point for point in ordered if point not in below]
    mark = {"type": "text", "align": "left", "baseline": "middle", "dx": 14, "fontSize": 12}
    return [
        {
            "data": {"values": [point.row() for point in some]},
            "mark": {**mark, "dy": dy},
            "encoding": {"x": x, "y": y, "text": {"field": "operator"}},
        }
        for some, dy in ((below, 10), (above, -10))
    ]
