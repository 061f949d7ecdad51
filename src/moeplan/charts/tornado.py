"""What one more percent of each thing gives: the elasticities as bars, the longest on top."""

from __future__ import annotations

from moeplan.charts.style import NEGATIVE, POSITIVE, Spec, bar_labels, chart
from moeplan.explain.sensitivity import Elasticity


def tornado_chart(elasticities: list[Elasticity], *, subtitle: str) -> Spec:
    """Percent of throughput per percent of the knob."""
    ranked = sorted(elasticities, key=lambda item: -abs(item.value))
    values = [{"knob": item.knob, "percent": item.value} for item in ranked]
    y: Spec = {"field": "knob", "type": "nominal", "sort": [item.knob for item in ranked], "title": None}
    body: Spec = {
        "data": {"values": values},
        "layer": [
            {
                "mark": {"type": "bar"},
                "encoding": {
                    "y": y,
                    "x": {"field": "percent", "type": "quantitative", "title": "% more tok/s per GPU for 1 % better"},
                    "color": {"condition": {"test": "datum.percent < 0", "value": NEGATIVE}, "value": POSITIVE},
                },
            },
            bar_labels(y, end="percent", shown="percent", number="+.2f"),
        ],
    }
    return chart("What one more percent gives", subtitle, body, height={"step": 26})
