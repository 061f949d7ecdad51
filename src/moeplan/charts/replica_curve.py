"""What redundant expert slots buy, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moeplan.charts.style import Spec, chart
from moeplan.explain.replica_curve import ReplicaPoint


def replica_curve_chart(points: Sequence[ReplicaPoint], *, worth: ReplicaPoint, subtitle: str) -> Spec:
    """Max over mean (mean and worst of the layers) over the redundant slots; below it the GiB that a GPU holds."""
    possible = [point for point in points if point.possible]
    values: list[dict[str, Any]] = [
        {"redundant": point.redundant, "line": line, "skew": round(skew, 5)}
        for point in possible
        for line, skew in (("worst layer", point.worst), ("mean of the layers", point.mean))
    ]
    last = possible[-1].redundant
    margin = max(last - possible[0].redundant, 1) / 30
    x: Spec = {
        "field": "redundant",
        "type": "quantitative",
        "title": "redundant slots per layer, over all ranks",
        "axis": {"values": [point.redundant for point in possible], "format": "d", "grid": True},
        "scale": {"nice": False, "zero": False, "domain": [possible[0].redundant - margin, last + margin]},
    }
    top: Spec = {
        "width": 560,
        "height": 260,
        "layer": [
            {
                "data": {"values": values},
                "mark": {"type": "line", "point": {"size": 30}},
                "encoding": {
                    "x": x,
                    "y": {
                        "field": "skew",
                        "type": "quantitative",
                        "title": "fullest rank over the mean",
                        "scale": {"zero": False},
                    },
                    "color": {
                        "field": "line",
                        "type": "nominal",
                        "title": None,
                        "scale": {"domain": ["worst layer", "mean of the layers"], "range": ["#D55E00", "#0072B2"]},
                    },
                    "tooltip": [{"field": "line"}, {"field": "redundant"}, {"field": "skew"}],
                },
            },
            {
                "data": {"values": [{"redundant": worth.redundant, "skew": worth.mean, "label": "worth having"}]},
                "layer": [
                    {"mark": {"type": "point", "size": 170, "strokeWidth": 1.8, "color": "#009E73"}},
                    {
                        "mark": {
                            "type": "text",
                            "align": "left",
                            "dx": 12,
                            "dy": -12,
                            "color": "#009E73",
                            "fontSize": 12,
                        },
                        "encoding": {"text": {"field": "label"}},
                    },
                ],
                "encoding": {
                    "x": {"field": "redundant", "type": "quantitative"},
                    "y": {"field": "skew", "type": "quantitative"},
                },
            },
        ],
    }
    panels = [top]
    if all(point.bytes_ is not None for point in possible):
        memory = [{"redundant": point.redundant, "GiB": (point.bytes_ or 0.0) / 2**30} for point in possible]
        panels.append(
            {
                "width": 560,
                "height": 90,
                "data": {"values": memory},
                "mark": {"type": "bar", "size": 14, "color": "#E69F00"},
                "encoding": {
                    "x": x,
                    "y": {"field": "GiB", "type": "quantitative", "title": "GiB per GPU"},
                    "tooltip": [{"field": "redundant"}, {"field": "GiB", "format": ".2f"}],
                },
            }
        )
    spec = chart("What redundant experts buy", subtitle, {"vconcat": panels})
    del spec["width"], spec["height"]
    return spec
