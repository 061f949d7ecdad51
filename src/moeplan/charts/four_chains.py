"""The four chains over the batch, the limits on it, and what they come to."""

from __future__ import annotations

from typing import Any

import numpy as np

from moeplan.charts.style import COLOURS, Spec, chart
from moeplan.explain.operating_point import LARGEST, MEMORY, PROMISE, TURNING, Budget

LIMIT_COLOURS = {TURNING: "#555555", PROMISE: "#D55E00", MEMORY: "#CC79A7"}
PANEL_WIDTH, PANEL_HEIGHT = 300, 170
MOST_POINTS = 160

Lines = dict[str, Any]


def four_chains_chart(answer: Budget, *, subtitle: str, min_tps: float) -> Spec:
    """Six panels with the batch as their axis, four for a dense model; dashed: the limits, their values below."""
    chains = answer.chains
    shown = _thinned(chains.batch)
    batch = chains.batch[shown]
    limits = _limits(answer, float(batch.min()), float(batch.max()))
    numbers = [name for name in chains.__struct_fields__ if name != "schedule"]
    ready = {name: np.asarray(getattr(chains, name), dtype=float)[shown] for name in numbers}
    panels = [
        (
            "Weights: coverage and intensity",
            "ratio",
            {"coverage of experts": answer.coverage[shown], "intensity over ridge": ready["intensity"] / answer.ridge},
            "log",
        ),
        (
            "Rows per expert and tiles",
            "rows, or times",
            {"rows per expert": ready["rows"], "FLOP done over asked": ready["waste"]},
            "log",
        ),
        (
            "All-to-all",
            "share of the step",
            {"busy": ready["wire_seconds"] / ready["seconds"], "exposed": ready["wire_share"]},
            "linear",
        ),
        (
            "KV cache, GiB per GPU",
            "GiB",
            {"asked": ready["kv_bytes"] / 2**30, "free": ready["kv_room"] / 2**30},
            "log",
        ),
        (
            "Speed of a user",
            "tok/s per user",
            {
                "with CUDA graphs": ready["tps_per_user"],
                "eager": ready["tps_per_user"] * ready["seconds"] / ready["eager_seconds"],
                "promised": np.full(batch.shape, min_tps),
            },
            "log",
        ),
        ("Throughput", "tok/s per GPU", {"where it fits": _where(ready, 1.0), "no room": _where(ready, 0.0)}, "linear"),
    ]
    # A dense model has no rows per expert and no all-to-all, and a legend without entries makes Vega draw a picture of
    # infinite size.
    panels = [panel for panel in panels if any((series > 0).any() for series in panel[2].values())]
    drawn = [
        _panel(name, unit, batch, lines, limits, scale, last=index >= len(panels) - 2)
        for index, (name, unit, lines, scale) in enumerate(panels)
    ]
    body: Spec = {
        "concat": drawn,
        "columns": 2,
        "spacing": 26,
        "resolve": {"scale": {"color": "independent", "stroke": "shared"}},
    }
    title = _title(answer)
    spec = chart(title, subtitle, body)
    spec["title"]["offset"] = 14
    return {key: value for key, value in spec.items() if key not in ("width", "height")}


def _title(answer: Budget) -> str:
    point = answer.point
    if point.at is None:
        return f"What binds over the batch: no operating point, {point.binds} leaves none"
    return f"What binds over the batch: {point.binds}, at {point.at.batch} requests per GPU"


def _thinned(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Indices of at most MOST_POINTS batches, spaced evenly on a logarithmic axis.

    Even ones: odd ones run without overlap and would zigzag beside them where overlap is the faster.
    """
    if batch.size <= MOST_POINTS:
        return np.arange(batch.size)
    wanted = np.geomspace(batch.min(), batch.max(), MOST_POINTS)
    even = np.flatnonzero((batch % 2 == 0) | (batch == batch.min()))
    near = np.clip(np.searchsorted(batch[even], wanted), 0, even.size - 1)
    return even[np.unique(near)]


def _where(ready: Lines, fits: float) -> Any:
    return np.where(ready["fits"] == fits, ready["tps_per_gpu"], np.nan)


def _limits(answer: Budget, low: float, high: float) -> list[dict[str, Any]]:
    """The limits as the legend has them; those outside of the picture are only named."""
    limits = answer.point.limits
    return [
        {
            "limit": f"{name} {'≥' if limits[name] == LARGEST else '='} {limits[name]:,.0f}",
            "batch": limits[name],
            "drawn": low <= limits[name] <= high and limits[name] < LARGEST,
        }
        for name in LIMIT_COLOURS
    ]


def _panel(
    name: str, unit: str, batch: Any, lines: Lines, limits: list[dict[str, Any]], scale: str, *, last: bool
) -> Spec:
    values = [
        {"batch": float(at), "line": line, "value": float(value)}
        for line, series in lines.items()
        for at, value in zip(batch, series, strict=True)
        if np.isfinite(value) and (value > 0 or scale == "linear")
    ]
    x: Spec = {
        "field": "batch",
        "type": "quantitative",
        "scale": {
            "type": "log",
            "nice": False,
            "domain": [float(batch.min()), max(float(batch.max()), batch.min() + 1)],
        },
        "title": "requests per GPU" if last else None,
        "axis": {"values": [2.0**power for power in range(17)], "labelOverlap": True},
    }
    names = [line for line in lines if any(value["line"] == line for value in values)]
    colour: Spec = {
        "field": "line",
        "type": "nominal",
        "title": None,
        "scale": {"domain": names, "range": [COLOURS[list(lines).index(line)] for line in names]},
        "legend": {"orient": "top", "direction": "horizontal", "labelLimit": 200, "offset": 2},
    }
    line: Spec = {
        "data": {"values": values},
        "mark": {"type": "line", "point": len(batch) == 1},
        "encoding": {
            "x": x,
            "y": {"field": "value", "type": "quantitative", "title": unit, "scale": {"type": scale, "nice": True}},
            "color": colour,
            # The first line is thicker, so that it shows below another that runs along it.
            "strokeWidth": {"condition": {"test": f"datum.line === '{names[0]}'", "value": 3.5}, "value": 1.6},
            "tooltip": [{"field": key} for key in ("line", "batch", "value")],
        },
    }
    domain = [limit["limit"] for limit in limits]
    rules: Spec = {
        "data": {"values": [limit for limit in limits if limit["drawn"]]},
        "mark": {"type": "rule", "strokeDash": [5, 4], "strokeWidth": 1.5},
        "encoding": {
            "x": {"field": "batch", "type": "quantitative"},
            "stroke": {
                "field": "limit",
                "type": "nominal",
                "title": None,
                "scale": {"domain": domain, "range": list(LIMIT_COLOURS.values())},
                "legend": {"orient": "bottom", "direction": "horizontal", "symbolDash": [5, 4], "offset": 14},
            },
        },
    }
    return {
        "title": {"text": name, "fontSize": 13, "anchor": "start", "offset": 4},
        "width": PANEL_WIDTH,
        "height": PANEL_HEIGHT,
        "layer": [line, rules],
    }
