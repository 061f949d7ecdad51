"""Curves of the experts' products over the batch, and of the expert layer over the EP size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from moeplan.charts.style import Spec, chart, log_scale
from moeplan.explain.group_curves import GroupCurve, Turn

Quantity = Literal["time", "MFU"]
PANEL = {"width": 190, "height": 190}
TITLES = {"time": "time of one rank, µs", "MFU": "of the dense peak, FLOP asked for"}


def group_chart(
    curves: Sequence[GroupCurve],
    quantity: Quantity,
    *,
    subtitle: str,
    measured: Sequence[Mapping[str, Any]] = (),
) -> Spec:
    """A panel per GPU and q_len, a line per EP size, over the batch per rank; all curves of one product.

    measured: points with GPU, EP, batch, seconds and MFU, drawn at q_len 1.
    """
    product = curves[0].product
    values: list[dict[str, Any]] = [
        {"GPU": curve.gpu, "Q": f"Q = {curve.q_len}", "EP": curve.ep, "batch": float(batch), "value": value}
        for curve in curves
        for batch, value in zip(curve.batch, _values(curve, quantity), strict=True)
    ]
    points = [
        {
            "GPU": point["GPU"],
            "Q": "Q = 1",
            "EP": point["EP"],
            "batch": point["batch"],
            "value": point["seconds"] * 1e6 if quantity == "time" else point["MFU"],
        }
        for point in measured
    ]
    x: Spec = {
        "field": "batch",
        "type": "quantitative",
        "title": "batch per rank",
        "scale": log_scale([value["batch"] for value in values]),
        "axis": {"grid": True, "values": [1, 4, 16, 64, 256, 1024], "format": "d"},
    }
    y: Spec = {
        "field": "value",
        "type": "quantitative",
        "title": TITLES[quantity],
        "scale": log_scale([value["value"] for value in values]) if quantity == "time" else {"zero": True},
        "axis": {"grid": True, "tickCount": 5, **({"format": "%"} if quantity == "MFU" else {})},
    }
    colour: Spec = {"field": "EP", "type": "ordinal", "title": "EP size", "scale": {"scheme": "viridis"}}
    encoding: Spec = {"x": x, "y": y, "color": colour}
    layers: list[Spec] = [{"mark": {"type": "line", "strokeWidth": 1.8}, "encoding": encoding}]
    if points:
        tooltip = [{"field": key} for key in ("EP", "batch", "value")]
        mark = {"type": "point", "filled": True, "size": 22}
        layers.append(
            {"transform": [{"filter": "datum.measured"}], "mark": mark, "encoding": encoding | {"tooltip": tooltip}}
        )
        layers[0]["transform"] = [{"filter": "!datum.measured"}]
    data = [value | {"measured": False} for value in values] + [point | {"measured": True} for point in points]
    body: Spec = {
        "data": {"values": data},
        "facet": {
            "row": {"field": "GPU", "type": "nominal", "title": None, "header": {"labelFontSize": 12}},
            "column": {"field": "Q", "type": "nominal", "title": None, "header": {"labelFontSize": 12}},
        },
        "spec": {**PANEL, "layer": layers},
    }
    named = "the experts' two products" if product == "both" else product.replace("_", " and ")
    spec = chart(f"{'Time' if quantity == 'time' else quantity} of {named} over the batch", subtitle, body)
    del spec["width"], spec["height"]
    return spec


def turn_chart(turns: Mapping[str, Sequence[Turn]], *, subtitle: str) -> Spec:
    """Products, all-to-alls and their sum over the EP size, a panel per GPU; the least sum is ringed and named."""
    values: list[dict[str, Any]] = [
        {"GPU": gpu, "EP": turn.ep, "part": part, "µs": seconds * 1e6}
        for gpu, found in turns.items()
        for turn in found
        for part, seconds in (("products", turn.products), ("all-to-all", turn.all_to_all), ("sum", turn.seconds))
        if seconds > 0
    ]
    x: Spec = {
        "field": "EP",
        "type": "quantitative",
        "title": "EP size, ranks",
        "scale": {"type": "log", "base": 2, "nice": False},
        "axis": {"grid": True, "values": sorted({value["EP"] for value in values})},
    }
    times = [value["µs"] for value in values]
    y: Spec = {
        "field": "µs",
        "type": "quantitative",
        "title": "one rank, one layer, µs",
        "scale": log_scale(times),
        "axis": {"grid": True, "values": _steps(min(times), max(times)), "format": ",.0f"},
    }
    least = [
        {"GPU": gpu, "EP": best.ep, "part": "sum", "µs": best.seconds * 1e6, "least": f"least at EP{best.ep:.0f}"}
        for gpu, found in turns.items()
        for best in [min(found, key=lambda turn: turn.seconds)]
    ]
    body: Spec = {
        "data": {"values": [*values, *least]},
        "facet": {"column": {"field": "GPU", "type": "nominal", "title": None, "header": {"labelFontSize": 12}}},
        "spec": {
            "width": 300,
            "height": 260,
            "encoding": {"x": x, "y": y},
            "layer": [
                {
                    "transform": [{"filter": "!datum.least"}],
                    "mark": {"type": "line", "point": {"size": 24}},
                    "encoding": {
                        "color": {
                            "field": "part",
                            "type": "nominal",
                            "title": None,
                            "scale": {
                                "domain": ["products", "all-to-all", "sum"],
                                "range": ["#0072B2", "#CC79A7", "#000000"],
                            },
                        },
                        "tooltip": [{"field": key} for key in ("EP", "part", "µs")],
                    },
                },
                {
                    "transform": [{"filter": "datum.least"}],
                    "mark": {"type": "point", "size": 160, "strokeWidth": 1.8, "color": "#D55E00"},
                },
                {
                    "transform": [{"filter": "datum.least"}],
                    "mark": {"type": "text", "align": "left", "dx": -12, "dy": -46, "fontSize": 12, "color": "#D55E00"},
                    "encoding": {"text": {"field": "least"}},
                },
            ],
        },
    }
    spec = chart("Where the experts' products and the all-to-all turn", subtitle, body)
    del spec["width"], spec["height"]
    return spec


def _steps(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from low to high: labels of a log axis."""
    steps = [factor * 10.0**power for power in range(-3, 9) for factor in (1, 2, 5)]
    return [step for step in steps if low / 2 <= step <= high * 2]


def _values(curve: GroupCurve, quantity: Quantity) -> list[float]:
    found = curve.seconds * 1e6 if quantity == "time" else curve.mfu
    return [float(value) for value in found]
