"""How hot every expert of every layer is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moeplan.charts.style import Spec, chart
from moeplan.kinds import Array

CELL_HEIGHT, WIDTH, LEAST_HEIGHT = 7, 1000, 60
TOP = 0.998  # quantile at which the colours end


def expert_heat_chart(loads: Array, layers: Sequence[int], *, subtitle: str) -> Spec:
    """A cell per layer and expert, coloured by load over the layer's mean; loads: (layers, experts).

    Colours end at the 99.8th percentile, which the legend says: a few far hotter ones would leave all others alike.
    """
    mean = loads.mean(axis=1, keepdims=True)
    heat = np.divide(loads, mean, out=np.zeros_like(loads), where=mean > 0)
    top = max(float(np.quantile(heat, TOP)), 1.5)
    values: list[dict[str, Any]] = [
        {"layer": int(layer), "expert": expert, "heat": round(float(value), 3)}
        for layer, row in zip(layers, heat, strict=True)
        for expert, value in enumerate(row)
    ]
    body: Spec = {
        "data": {"values": values},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {
                "field": "expert",
                "type": "ordinal",
                "title": "expert",
                "axis": {"values": list(range(0, loads.shape[1], max(loads.shape[1] // 16, 1))), "labelAngle": 0},
            },
            "y": {
                "field": "layer",
                "type": "ordinal",
                "title": "layer",
                "axis": {"values": list(layers[:: max(len(layers) // 12, 1)])},
            },
            "color": {
                "field": "heat",
                "type": "quantitative",
                "title": ["load over", "the mean", f"(ends at {top:.1f})"],
                "scale": {"scheme": "inferno", "domain": [0, top], "clamp": True},
            },
        },
    }
    height = max(CELL_HEIGHT * len(layers), LEAST_HEIGHT)
    width = loads.shape[1] * max(WIDTH // loads.shape[1], 1)  # whole pixels, or seams show between the columns
    return chart("How hot every expert is", subtitle, body, width=width, height=height)
