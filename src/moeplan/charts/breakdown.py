"""Where a step's time goes: operators as bars, by the resource that binds them."""

from __future__ import annotations

from moeplan.charts.style import RESOURCE_COLOURS, Spec, chart
from moeplan.explain.operators import StepOperator


def breakdown_chart(operators: list[StepOperator], *, subtitle: str) -> Spec:
    """Exposed milliseconds per step, the hidden part of a bar pale; operators in the order of the step."""
    values = []
    for operator in operators:
        shared = {"operator": operator.name, "bound by": operator.resource}
        values.append({**shared, "ms": operator.exposed * 1e3, "part": "exposed"})
        if operator.seconds - operator.exposed > 1e-12:
            values.append({**shared, "ms": (operator.seconds - operator.exposed) * 1e3, "part": "hidden"})
    body: Spec = {
        "data": {"values": values},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "operator", "type": "nominal", "sort": [o.name for o in operators], "title": None},
            "x": {"field": "ms", "type": "quantitative", "title": "ms per step", "stack": "zero"},
            "color": {
                "field": "bound by",
                "type": "nominal",
                "scale": {"domain": list(RESOURCE_COLOURS), "range": list(RESOURCE_COLOURS.values())},
            },
            "opacity": {
                "field": "part",
                "type": "nominal",
                "scale": {"domain": ["exposed", "hidden"], "range": [1.0, 0.3]},
                "title": "",
            },
            "order": {"field": "part", "sort": "ascending"},
            "tooltip": [{"field": key} for key in ("operator", "ms", "part", "bound by")],
        },
    }
    return chart("Where the step goes", subtitle, body, height={"step": 18})
