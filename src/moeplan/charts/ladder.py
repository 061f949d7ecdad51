"""From the limit to the prediction, one rung a loss."""

from __future__ import annotations

from moeplan.charts.style import Spec, bar_labels, chart
from moeplan.explain.ladder import Rung


def ladder_chart(rungs: list[Rung], *, subtitle: str) -> Spec:
    """A waterfall: each bar starts where the last one ended; the first is the limit, the last the step."""
    values, reached = [], 0.0
    for rung in rungs:
        values.append(
            {"rung": rung.name, "from": reached * 1e3, "to": (reached + rung.seconds) * 1e3, "ms": rung.seconds * 1e3}
        )
        reached += rung.seconds
    values.append({"rung": "predicted step", "from": 0.0, "to": reached * 1e3, "ms": reached * 1e3})
    kinds = ["limit", *["loss"] * (len(values) - 2), "step"]
    values = [{**value, "kind": kind} for value, kind in zip(values, kinds, strict=True)]
    order = [value["rung"] for value in values]
    y: Spec = {"field": "rung", "type": "nominal", "sort": order, "title": None}
    body: Spec = {
        "data": {"values": values},
        "layer": [
            {
                "mark": {"type": "bar"},
                "encoding": {
                    "y": y,
                    "x": {"field": "from", "type": "quantitative", "title": "ms per step"},
                    "x2": {"field": "to"},
                    "color": {
                        "field": "kind",
                        "type": "nominal",
                        "scale": {"domain": ["limit", "loss", "step"], "range": ["#009E73", "#D55E00", "#0072B2"]},
                        "legend": None,
                    },
                    "tooltip": [{"field": "rung"}, {"field": "ms"}],
                },
            },
            bar_labels(y, end="to", shown="ms", number=".2f"),
        ],
    }
    return chart("From the limit to the prediction", subtitle, body, height={"step": 26})
