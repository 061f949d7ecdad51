"""Speed per user against throughput per GPU: a line per GPU and NIC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeplan.charts.style import COLOURS, Spec, chart, log_scale
from moeplan.search.pareto import FrontPoint


def pareto_chart(
    fronts: Mapping[str, Sequence[FrontPoint]],
    *,
    subtitle: str,
    min_tps: float | None = None,
    winner: tuple[float, float] | None = None,
) -> Spec:
    """Each front is the best throughput at every speed; the rule marks the promised speed, the ring the winner.

    winner: its tok/s per user and per GPU.
    """
    values = [
        {
            "GPU": name,
            "tok/s per user": point.tps_per_user,
            "tok/s per GPU": point.tps_per_gpu,
            "batch per GPU": point.batch,
            "GPUs": point.count,
            "MTP drafts": point.drafts,
            "schedule": point.schedule,
            "KV": point.kv,
        }
        for name, front in fronts.items()
        for point in front
    ]
    speeds = [point.tps_per_user for front in fronts.values() for point in front]
    tooltip = [{"field": key} for key in (values[0] if values else {"GPU": ""})]
    line: Spec = {
        "mark": {"type": "line", "point": {"size": 18}, "interpolate": "linear"},
        "encoding": {
            "x": {
                "field": "tok/s per user",
                "type": "quantitative",
                "title": "speed per user, accepted tok/s",
                "scale": log_scale([*speeds, *([min_tps] if min_tps else [])]),
                "axis": {"grid": True, "tickCount": 8},
            },
            "y": {
                "field": "tok/s per GPU",
                "type": "quantitative",
                "title": "throughput, output tok/s per GPU",
                "scale": log_scale([point.tps_per_gpu for front in fronts.values() for point in front]),
                "axis": {"grid": True, "tickCount": 8},
            },
            # A legend without entries makes Vega draw a picture of infinite size.
            **({"color": {"field": "GPU", "type": "nominal", "title": None}} if values else {}),
            **({"strokeDash": {"field": "GPU", "type": "nominal"}} if len(fronts) > len(COLOURS) else {}),
            "order": {"field": "tok/s per user"},
            "tooltip": tooltip,
        },
        "data": {"values": values},
    }
    layers = [line]
    if min_tps is not None:
        layers.append(
            {
                "data": {"values": [{"x": min_tps, "label": f"promised {min_tps:g} tok/s"}]},
                "encoding": {"x": {"field": "x", "type": "quantitative"}},
                "layer": [
                    {"mark": {"type": "rule", "strokeDash": [5, 4], "color": "#555"}},
                    {
                        "mark": {"type": "text", "align": "left", "dx": 5, "baseline": "top", "color": "#555"},
                        "encoding": {"text": {"field": "label"}, "y": {"value": 4}},
                    },
                ],
            }
        )
    if winner is not None:
        point = {"tok/s per user": winner[0], "tok/s per GPU": winner[1]}
        layers.append(
            {
                "data": {"values": [point]},
                "mark": {"type": "point", "shape": "circle", "size": 180, "color": "#000", "strokeWidth": 2.5},
                "encoding": {
                    axis: {"field": name, "type": "quantitative"} for axis, name in zip("xy", point, strict=True)
                },
            }
        )
    return chart("Throughput against speed per user", subtitle, {"layer": layers})
