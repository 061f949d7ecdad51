"""What every rank carries before and after balancing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moeplan.charts.style import Spec, chart
from moeplan.kinds import Array

COLOURS = {"before": "#D55E00", "after": "#0072B2"}


def rank_loads_chart(panels: Mapping[str, Mapping[str, Array]], *, subtitle: str) -> Spec:
    """A panel per layer named, ranks from the fullest to the emptiest, load over the mean; panels: before and after."""
    values: list[dict[str, Any]] = [
        {"panel": panel, "when": when, "rank": place + 1, "load": round(float(load / loads.mean()), 4)}
        for panel, found in panels.items()
        for when, loads in found.items()
        for place, load in enumerate(np.sort(loads)[::-1])
    ]
    body: Spec = {
        "data": {"values": values},
        "facet": {
            "column": {
                "field": "panel",
                "type": "nominal",
                "title": None,
                "sort": list(panels),
                "header": {"labelFontSize": 12},
            }
        },
        "spec": {
            "width": 300,
            "height": 260,
            "layer": [
                {
                    "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
                    "encoding": {
                        "x": {
                            "field": "rank",
                            "type": "quantitative",
                            "title": "ranks, fullest first",
                            "scale": {"nice": False},
                        },
                        "y": {"field": "load", "type": "quantitative", "title": "load over the mean rank"},
                        "color": {
                            "field": "when",
                            "type": "nominal",
                            "title": None,
                            "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
                        },
                        "tooltip": [{"field": "when"}, {"field": "rank"}, {"field": "load"}],
                    },
                },
                {
                    "mark": {"type": "rule", "strokeDash": [4, 4], "color": "#555555"},
                    "encoding": {"y": {"datum": 1.0}},
                },
            ],
        },
    }
    spec = chart("Load of every rank, before and after", subtitle, body)
    del spec["width"], spec["height"]
    return spec
