"""Layouts over the requests in all: the step and where it crosses; throughput against speed; a panel per question."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from moeplan.charts.style import Spec, chart, log_scale
from moeplan.explain.layout_curves import LayoutPanel, LayoutPoint

COLOURS = {"dep": "#0072B2", "dep-ag": "#56B4E9", "dtp-ag": "#009E73", "tep": "#D55E00", "tp": "#E69F00"}
OTHER = ["#CC79A7", "#999999", "#000000", "#F0E442"]  # of layouts with several GPUs per attention rank
WIDTH, HEIGHT, COLUMNS = 300, 230, 4


def layout_curves_chart(panels: Sequence[LayoutPanel], *, subtitle: str) -> Spec:
    """Ms per step over the requests in all, log-log; the rule is where by heads and by requests cross.

    Shaded: the p10–p90 band of the fastest layout; as a column, where that of the ratio of the two holds 1.
    """
    names = _names(panels)
    notes = [subtitle, "grey band: p10–p90 of the fastest; column: undecided between by heads and by requests"]
    return _grid("Decode step by layout", notes, [_steps(panel, names) for panel in panels], panels)


def layout_fronts_chart(panels: Sequence[LayoutPanel], *, subtitle: str) -> Spec:
    """tok/s per GPU against tok/s per user of each layout, log-log, a point per number of requests."""
    names = _names(panels)
    return _grid("Throughput against speed, by layout", [subtitle], [_fronts(panel, names) for panel in panels], panels)


def _grid(title: str, subtitle: list[str], cells: list[Spec], panels: Sequence[LayoutPanel]) -> Spec:
    """A row per size where its contexts have room beside each other."""
    across = len({panel.context for panel in panels})
    across = across if 1 < across <= COLUMNS else min(COLUMNS, len(cells))
    spec = chart(title, subtitle, {"columns": across, "concat": cells})
    del spec["width"], spec["height"]
    return spec


def _names(panels: Sequence[LayoutPanel]) -> list[str]:
    return list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))


def _colour(names: Sequence[str]) -> Spec:
    others = [name for name in names if name not in COLOURS]
    spare = {name: OTHER[index % len(OTHER)] for index, name in enumerate(others)}
    return {
        "field": "layout",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(names), "range": [COLOURS.get(name) or spare[name] for name in names]},
    }


def _title(panel: LayoutPanel) -> Spec:
    return {"text": f"{panel.gpus} GPUs, context {panel.context:,}", "fontSize": 12, "anchor": "middle"}


def _points(panel: LayoutPanel) -> Iterator[tuple[str, LayoutPoint]]:
    """Powers of two and the last that fits, of every layout."""
    for curve in panel.curves:
        for count in sorted({*(2**power for power in range(curve.most.bit_length())), curve.most}):
            if (point := curve.at(count)) is not None:
                yield curve.name, point


def _values(panel: LayoutPanel) -> list[dict[str, Any]]:
    return [
        {
            "layout": name,
            "requests": point.requests,
            "ms": round(float(point.step.seconds) * 1e3, 4),
            "low": round(point.band.low * 1e3, 4),
            "high": round(point.band.high * 1e3, 4),
            "tok/s per user": round(float(point.step.tps_per_user), 3),
            "tok/s per GPU": round(point.tps_per_gpu, 2),
            "schedule": point.step.deployment.schedule,
        }
        for name, point in _points(panel)
    ]


def _steps(panel: LayoutPanel, names: Sequence[str]) -> Spec:
    values = _values(panel)
    most = max(value["requests"] for value in values)
    x: Spec = {
        "field": "requests",
        "type": "quantitative",
        "title": "requests in all",
        "scale": {"type": "log", "base": 2, "nice": False, "domain": [0.9, most * 1.1]},
        "axis": {"grid": True, "values": [4**power for power in range(12) if 4**power <= most], "format": ",d"},
    }
    y: Spec = {
        "field": "ms",
        "type": "quantitative",
        "title": "ms per step",
        "scale": log_scale([value[key] for value in values for key in ("ms", "low")]),
        "axis": {"grid": True, "values": _ticks(values, "ms"), "format": ",.0f"},
    }
    band: Spec = {
        "data": {"values": _band(panel, {value["requests"] for value in values})},
        "mark": {"type": "area", "color": "#999999", "opacity": 0.25, "clip": True},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    line: Spec = {
        "data": {"values": values},
        "mark": {"type": "line", "point": {"size": 14}, "clip": True},
        "encoding": {
            "x": x,
            "y": y,
            "color": _colour(names),
            "tooltip": [{"field": key} for key in values[0]],
        },
    }
    layers = [*_undecided(panel), band, line, *_crossing(panel)]
    return {"title": _title(panel), "width": WIDTH, "height": HEIGHT, "layer": layers}


def _band(panel: LayoutPanel, requests: Collection[int]) -> list[dict[str, Any]]:
    """The band of the fastest layout at each number of requests."""
    found = []
    for count in sorted(requests):
        curve = panel.fastest(count)
        point = None if curve is None else curve.at(count)
        if point is not None:
            found.append({"requests": count, "low": point.band.low * 1e3, "high": point.band.high * 1e3})
    return found


def _undecided(panel: LayoutPanel) -> list[Spec]:
    if panel.crossing is None or panel.crossing.undecided is None:
        return []
    low, high = panel.crossing.undecided
    return [
        {
            "data": {"values": [{"from": low * 0.98, "to": high * 1.02}]},
            "mark": {"type": "rect", "color": "#F0E442", "opacity": 0.3},
            "encoding": {"x": {"field": "from", "type": "quantitative"}, "x2": {"field": "to"}},
        }
    ]


def _crossing(panel: LayoutPanel) -> list[Spec]:
    """A rule between the last by heads and the first by requests, named."""
    found = panel.crossing
    if found is None or found.upto is None or found.start is None:
        return []
    at = math.sqrt(found.upto * found.start)
    label = f"{found.heads} to {found.upto:,}, {found.requests} from {found.start:,}"
    left = at**2 > max(curve.most for curve in panel.curves)  # in the right half: its text goes to the left
    place: Spec = {"align": "right" if left else "left", "dx": -5 if left else 5}
    return [
        {
            "data": {"values": [{"at": at, "label": label}]},
            "encoding": {"x": {"field": "at", "type": "quantitative"}},
            "layer": [
                {"mark": {"type": "rule", "strokeDash": [5, 4], "color": "#555"}},
                {
                    "mark": {"type": "text", "baseline": "top", "color": "#333", "fontSize": 12, **place},
                    "encoding": {"text": {"field": "label"}, "y": {"value": 4}},
                },
            ],
        }
    ]


def _fronts(panel: LayoutPanel, names: Sequence[str]) -> Spec:
    values = _values(panel)

    def axis(field: str, title: str) -> Spec:
        return {
            "field": field,
            "type": "quantitative",
            "title": title,
            "scale": log_scale([value[field] for value in values]),
            "axis": {"grid": True, "values": _ticks(values, field), "format": ",.0f"},
        }

    return {
        "title": _title(panel),
        "width": WIDTH,
        "height": HEIGHT,
        "data": {"values": values},
        "mark": {"type": "line", "point": {"size": 14}},
        "encoding": {
            "x": axis("tok/s per user", "tok/s per user"),
            "y": axis("tok/s per GPU", "tok/s per GPU"),
            "color": _colour(names),
            "order": {"field": "requests"},
            "tooltip": [{"field": key} for key in values[0]],
        },
    }


def _ticks(values: Sequence[dict[str, Any]], field: str) -> list[float]:
    """1, 2 and 5 times powers of ten within the values: labels of a log axis that do not collide."""
    low, high = (pick(value[field] for value in values) for pick in (min, max))
    steps = [factor * 10**power for power in range(6) for factor in (1, 2, 5)]
    return [step for step in steps if low / 1.25 <= step <= high * 1.25]
