"""Layouts beside each other, for people and as JSON: steps over the requests in all, where they cross, how sure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from moeplan.explain.group_limit import TOKENS, GroupLimitEffect
from moeplan.explain.layout_curves import Crossing, LayoutCurve, LayoutPanel, LayoutPoint
from moeplan.explain.step_band import Band
from moeplan.predict import Predictor
from moeplan.report.document import Json
from moeplan.report.tables import Console, Table, table
from moeplan.specs.deployment import Deployment


def heading(predictor: Predictor, base: Deployment) -> str:
    """What is compared: model, machine, drafts, formats."""
    cluster, drafts = predictor.machine.cluster, int(base.drafts)
    return (
        f"{predictor.model.name} on {cluster.gpu.name} with {cluster.nic.name}, {drafts} MTP "
        f"draft{'s' * (drafts != 1)}, KV {base.precision.kv.name}"
    )


def shown_requests(panel: LayoutPanel, asked: Sequence[int]) -> list[int]:
    """The requests in all of a table: those asked for, else powers of two and each layout's most by memory."""
    most = max((curve.most for curve in panel.curves), default=0)
    powers = [2**power for power in range(most.bit_length())]
    return sorted({*(asked or (*powers, *(curve.most for curve in panel.curves if curve.ends == "memory")))})


def print_layouts(
    out: Console,
    panels: Sequence[LayoutPanel],
    effects: Sequence[GroupLimitEffect],
    unanswered: Sequence[tuple[int, str]],
    *,
    heading: str,
    requests: Sequence[int],
    refused: Sequence[tuple[int, str]],
) -> None:
    """A table per size and context with the crossing under it; what was refused; what a group limit does.

    unanswered: sizes at which nothing says what the limit does, and why.
    """
    out.print(
        f"{heading}. ms per step by requests in all, the faster of naive and two-batch; - : does not fit. p10–p90: "
        "about 8 of 10 measured steps lie in it (docs/layouts.md)."
    )
    for panel in panels:
        out.print()
        if panel.curves:
            out.print(_table(panel, shown_requests(panel, requests)))
            out.print(crossing_text(panel))
        else:
            out.print(f"{panel.gpus} GPUs, context {panel.context:,}: no layout fits.")
        for name, why in panel.refused:
            out.print(f"Not {name}: {why}.")
    if refused:
        out.print()
    for why, sizes in groupby(refused, key=lambda item: item[1]):
        out.print(f"Not {', '.join(str(gpus) for gpus, _ in sizes)} GPUs: {why}.")
    for effect in effects:
        out.print()
        _print_effect(out, effect)
    if unanswered:
        out.print()
    for gpus, why in unanswered:
        out.print(f"Node-limited routing, {gpus} GPUs: not compared: {why}.")


def _table(panel: LayoutPanel, requests: Sequence[int]) -> Table:
    names = [curve.name for curve in panel.curves]
    rows = []
    for count in requests:
        best = panel.fastest(count)
        point = None if best is None else best.at(count)
        cells = [f"{count:,}", *(_ms(curve, count) for curve in panel.curves)]
        if point is None or best is None:
            rows.append([*cells, *["-"] * 6])
            continue
        rows.append(
            [
                *cells,
                best.name,
                _range(point.band, 1e3, ".1f"),
                f"{float(point.step.tps_per_user):.1f}",
                _range(point.user_band, 1.0, ".0f"),
                f"{point.tps_per_gpu:,.0f}",
                _range(point.gpu_band, 1.0, ",.0f"),
            ]
        )
    headers = ("requests", *names, "fastest", "ms p10–p90", "tok/s/user", "p10–p90", "tok/s/GPU", "p10–p90")
    return table(headers, rows, title=f"{panel.gpus} GPUs, context {panel.context:,}")


def _ms(curve: LayoutCurve, requests: int) -> str:
    seconds = curve.seconds_at(requests)
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _range(band: Band, scale: float, form: str) -> str:
    return f"{band.low * scale:{form}}–{band.high * scale:{form}}"


def crossing_text(panel: LayoutPanel) -> str:
    """Up to how many requests by heads is fastest, from how many on by requests, and where it is undecided."""
    crossing = panel.crossing
    if crossing is None:
        return "Attention by heads and by requests cannot be compared: one of them is refused or was not asked for."
    return f"{_who(crossing)}; {_undecided(crossing)}."


def _who(crossing: Crossing) -> str:
    if crossing.upto is None:
        return f"By requests ({crossing.requests}) is fastest from {crossing.start} request on, by heads nowhere"
    heads = f"By heads ({crossing.heads}) is fastest up to {_many(crossing.upto)}"
    if crossing.start is None:
        return f"{heads}, by requests nowhere beyond"
    why = "" if crossing.fits else ", where by heads no longer fits in memory"
    return f"{heads}, by requests ({crossing.requests}) from {crossing.start:,} on{why}"


def _undecided(crossing: Crossing) -> str:
    if crossing.undecided is None:
        return "no number of requests is undecided: the p10–p90 band of the ratio nowhere holds 1"
    low, high = crossing.undecided
    return f"undecided from {low:,} to {_many(high)}: there the p10–p90 band of the ratio holds 1"


def _many(count: int) -> str:
    return f"{count:,} request{'s' * (count != 1)}"


def _print_effect(out: Console, effect: GroupLimitEffect) -> None:
    limited, free = effect.limited, effect.free
    limit = limited.limit
    rows = [
        [f"{effect.places} that a token's experts lie on", f"{limited.nodes:.2f}", f"{free.nodes:.2f}"],
        ["ranks that they lie on", f"{limited.ranks:.2f}", f"{free.ranks:.2f}"],
        [
            f"rows of the fullest rank over the mean, {TOKENS[0]} tokens",
            f"{limited.fullest:.3f}",
            f"{free.fullest:.3f}",
        ],
    ]
    for one, other in zip(limited.sent, free.sent, strict=True):
        what = f"{one.backend}, {one.tokens:,} tokens: "
        rows.append([f"{what}MB over the NIC", f"{one.nic_bytes / 1e6:.2f}", f"{other.nic_bytes / 1e6:.2f}"])
        rows.append([f"{what}µs", *(f"{side.seconds * 1e6:,.0f} {side.origin}" for side in (one, other))])
    title = (
        f"Node-limited routing, {effect.gpus} GPUs on {effect.nodes} {effect.places}: {limit.taken} of {limit.count} "
        "groups beside no limit; dispatch and combine of one layer, per GPU"
    )
    out.print(table(("use", "limited", "free"), rows, title=title))
    out.print("Low-latency kernels send a message per expert wherever it lies: the limit saves them nothing.")


def layouts_content(
    panels: Sequence[LayoutPanel],
    effects: Sequence[GroupLimitEffect],
    unanswered: Sequence[tuple[int, str]],
    *,
    requests: Sequence[int],
) -> Json:
    """Every panel with every layout's points, SI units; bands are pairs."""
    return {
        "panels": [_panel(panel, shown_requests(panel, requests)) for panel in panels],
        "group_limit": list(effects),
        "group_limit_unanswered": [{"gpus": gpus, "why": why} for gpus, why in unanswered],
    }


def _panel(panel: LayoutPanel, requests: Sequence[int]) -> Json:
    return {
        "gpus": panel.gpus,
        "context": panel.context,
        "layouts": [
            {
                "layout": curve.name,
                "by_heads": curve.by_heads,
                "most_requests": curve.most,
                "ends": curve.ends,
                "points": [_point(point) for point in _points(curve, requests)],
            }
            for curve in panel.curves
        ],
        "crossing": panel.crossing,
        "refused": [{"layout": name, "why": why} for name, why in panel.refused],
    }


def _points(curve: LayoutCurve, requests: Sequence[int]) -> Iterator[LayoutPoint]:
    for count in requests:
        if (point := curve.at(count)) is not None:
            yield point


def _point(point: LayoutPoint) -> Json:
    return {
        "requests": point.requests,
        "batch": point.batch,
        "schedule": point.step.deployment.schedule,
        "step_s": point.step.seconds,
        "tok_s_per_user": point.step.tps_per_user,
        "tok_s_per_gpu": point.tps_per_gpu,
        "step_s_p10_p90": _pair(point.band),
        "tok_s_per_user_p10_p90": _pair(point.user_band),
        "tok_s_per_gpu_p10_p90": _pair(point.gpu_band),
        "origin": str(point.step.origin),
    }


def _pair(band: Band) -> list[float]:
    return [band.low, band.high]
