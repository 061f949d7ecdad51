"""The roofline with every operator on it."""

from __future__ import annotations

from moeplan.charts.style import Spec, chart
from moeplan.explain.operators import StepOperator
from moeplan.specs.gpu import Gpu


def roofline_chart(operators: list[StepOperator], gpu: Gpu, *, subtitle: str) -> Spec:
    """Arithmetic intensity against reached FLOP/s, both logarithmic; a roof per precision; area: time in the step."""
    points = [
        {
            "operator": operator.name,
            "FLOP per byte": operator.flops / operator.bytes_,
            "TFLOP/s": operator.flops / operator.seconds / 1e12,
            "ms per step": operator.seconds * 1e3,
        }
        for operator in operators
        if operator.flops > 0 and operator.bytes_ > 0
    ]
    low = min([p["FLOP per byte"] for p in points if isinstance(p["FLOP per byte"], float)] + [1.0]) / 2
    high = max([p["FLOP per byte"] for p in points if isinstance(p["FLOP per byte"], float)] + [1.0]) * 2
    roofs = [
        {"precision": precision, "FLOP per byte": x, "TFLOP/s": min(peak, x * gpu.memory.bandwidth) / 1e12}
        for precision, peak in gpu.compute.items()
        if precision in ("bf16", "fp8", "fp4")
        for x in (low, peak / gpu.memory.bandwidth, max(high, 2 * peak / gpu.memory.bandwidth))
    ]
    x: Spec = {
        "field": "FLOP per byte",
        "type": "quantitative",
        "scale": {"type": "log"},
        "title": "arithmetic intensity, FLOP per byte",
    }
    y: Spec = {"field": "TFLOP/s", "type": "quantitative", "scale": {"type": "log"}, "title": "reached, TFLOP/s"}
    body: Spec = {
        "layer": [
            {
                "data": {"values": roofs},
                "mark": {"type": "line", "strokeWidth": 1.5},
                "encoding": {"x": x, "y": y, "color": {"field": "precision", "type": "nominal", "title": "roof"}},
            },
            {
                "data": {"values": points},
                "mark": {"type": "circle", "color": "#D55E00", "opacity": 0.75},
                "encoding": {
                    "x": x,
                    "y": y,
                    "size": {"field": "ms per step", "type": "quantitative", "title": "ms per step"},
                    "tooltip": [{"field": key} for key in ("operator", "FLOP per byte", "TFLOP/s", "ms per step")],
                },
            },
            {
                "data": {"values": points},
                "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 11},
                "encoding": {"x": x, "y": y, "text": {"field": "operator"}},
            },
        ]
    }
    return chart("Roofline", subtitle, body, height=440)
