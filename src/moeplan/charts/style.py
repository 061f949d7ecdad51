"""The look of every chart: readable sizes, colours that colour-blind readers can tell apart (Okabe and Ito)."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442"]
RESOURCE_COLOURS = {
    "compute": "#0072B2",
    "memory": "#E69F00",
    "network": "#CC79A7",
    "launches and floors": "#999999",
    "vector": "#56B4E9",
}
POSITIVE, NEGATIVE = "#0072B2", "#D55E00"


def log_scale(values: list[float]) -> Spec:
    """A logarithmic scale a little wider than the values, not rounded out to whole decades."""
    positive = [value for value in values if value > 0] or [1.0]
    return {"type": "log", "domain": [min(positive) / 1.25, max(positive) * 1.25], "nice": False}


def bar_labels(y: Spec, *, end: str, shown: str, number: str) -> Spec:
    """The figure of each horizontal bar beside its end; end, shown: fields, number: a d3 format."""
    return {
        "mark": {"type": "text", "align": "left", "dx": 4},
        "encoding": {
            "y": y,
            "x": {"field": end, "type": "quantitative"},
            "text": {"field": shown, "type": "quantitative", "format": number},
        },
    }


def chart(title: str, subtitle: str | list[str], body: Spec, *, width: int = 640, height: int | Spec = 400) -> Spec:
    """Wrap marks and encodings: title, size, fonts."""
    return {
        "$schema": SCHEMA,
        "title": {"text": title, "subtitle": subtitle, "anchor": "start", "fontSize": 16, "subtitleFontSize": 12},
        "width": width,
        "height": height,
        "background": "white",
        "padding": 12,
        "config": {
            "font": "Helvetica, Arial, sans-serif",
            "axis": {"labelFontSize": 12, "titleFontSize": 13, "labelLimit": 260},
            "legend": {"labelFontSize": 12, "titleFontSize": 12, "labelLimit": 320},
            "range": {"category": COLOURS},
            "view": {"stroke": None},
        },
        **body,
    }
