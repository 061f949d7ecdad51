"""One layer under its schedule: what each lane runs when, and where compute waits for the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeplan.charts.style import COLOURS, NEGATIVE, Spec, chart
from moeplan.schedules.intervals import Interval
from moeplan.specs.schedule import TaskStage

WIDTH = 760
LETTER = 6.6  # pixels of a letter of a bar's name
PALE = [COLOURS[4], COLOURS[1], COLOURS[2], COLOURS[3]]  # on which a bar's name can be read
COMPUTE, SLOWED, HIDDEN, EXPOSED = (
    "compute",
    "compute, longer by SMs lent to the network",
    "network, hidden behind compute",
    "network, exposed: compute waits",
)
STRONG, FAINT = 0.95, 0.45
KINDS = {COMPUTE: (STRONG, "white"), HIDDEN: (FAINT, "white"), SLOWED: (FAINT, NEGATIVE), EXPOSED: (STRONG, NEGATIVE)}
WORDS: dict[TaskStage, str] = {
    "attention_front": "attention front",
    "attention_back": "attention back",
    "shared": "shared",
    "routed": "experts",
    "routed_up": "gate and up",
    "routed_down": "down",
    "dispatch": "dispatch",
    "combine": "combine",
}


def layer_timeline_chart(tasks: Sequence[Interval], *, schedule: str, subtitle: str) -> Spec:
    """Lanes as rows over microseconds, micro-batches in colours.

    Strong and without an edge: compute that gets on. Pale: a network task beside compute. A red edge: time lost to the
    network, strong where compute waits for it, the pale end of a compute bar where it is longer by the SMs taken.
    """
    if not tasks:
        raise ValueError("no task to draw")
    end = max(task.end for task in tasks)
    values = [piece for task in tasks for piece in _pieces(task, tasks)]
    lost = sum(piece["µs"] for piece in values if piece["kind"] in (EXPOSED, SLOWED))
    x: Spec = {
        "field": "from",
        "type": "quantitative",
        "title": "µs",
        "scale": {"domain": [0, end * 1e6], "nice": False},
    }
    y: Spec = {"field": "lane", "type": "nominal", "sort": ["compute", "network"], "title": None}
    colour = {"domain": sorted({piece["micro-batch"] for piece in values}), "range": PALE}
    kinds = [kind for kind in KINDS if any(piece["kind"] == kind for piece in values)]
    bars: Spec = {
        "mark": {"type": "bar", "height": {"band": 0.7}, "strokeWidth": 2},
        "encoding": {
            "x": x,
            "x2": {"field": "to"},
            "y": y,
            "color": {"field": "micro-batch", "type": "nominal", "scale": colour},
            # One legend of both: what is strong, and what has the edge of lost time.
            "opacity": _by_kind(kinds, [KINDS[kind][0] for kind in kinds], type="ordinal"),
            "stroke": _by_kind(kinds, [KINDS[kind][1] for kind in kinds]),
            "tooltip": [{"field": key} for key in ("stage", "micro-batch", "kind", "µs", "from", "to")],
        },
    }
    words: Spec = {
        "data": {"values": list(_words(tasks, end))},
        "mark": {"type": "text", "fontSize": 11, "clip": True},
        "encoding": {"x": {"field": "middle", "type": "quantitative"}, "y": y, "text": {"field": "word"}},
    }
    said = f"{schedule}: {end * 1e6:,.0f} µs, of which compute loses {lost:,.0f} µs to the network"
    body = {"data": {"values": values}, "layer": [bars, words]}
    return chart("One layer, lane by lane", [said, subtitle], body, width=WIDTH, height={"step": 70})


def _pieces(task: Interval, tasks: Sequence[Interval]) -> Iterator[Spec]:
    """A task's bar, cut where it becomes exposed or slowed."""
    if task.lane == "compute":
        middle = min(task.start + task.alone, task.end)
        yield from _bar(task, COMPUTE, task.start, middle)
        yield from _bar(task, SLOWED, middle, task.end)
        return
    at = task.start
    for other in tasks:
        if other.lane == "compute" and other.end > at and other.start < task.end:
            yield from _bar(task, EXPOSED, at, max(at, other.start))
            yield from _bar(task, HIDDEN, max(at, other.start), min(other.end, task.end))
            at = min(other.end, task.end)
    yield from _bar(task, EXPOSED, at, task.end)


def _by_kind(kinds: Sequence[str], values: Sequence[object], **scale: str) -> Spec:
    """A channel that tells the kinds apart; channels alike in field and legend share one legend."""
    symbol = {"symbolType": "square", "symbolSize": 180, "symbolFillColor": "#777777", "symbolStrokeWidth": 2}
    return {
        "field": "kind",
        "type": "nominal",
        "title": "time",
        "legend": symbol,
        "scale": {"domain": list(kinds), "range": list(values), **scale},
    }


def _bar(task: Interval, kind: str, start: float, end: float) -> Iterator[Spec]:
    if end - start > 1e-12:
        yield {
            "lane": task.lane,
            "stage": task.stage,
            "micro-batch": str(task.micro_batch),
            "kind": kind,
            "from": start * 1e6,
            "to": end * 1e6,
            "µs": (end - start) * 1e6,
        }


def _words(tasks: Sequence[Interval], whole: float) -> Iterator[Spec]:
    """The names of the bars that are wide enough for them, with a dash where it is already the next layer."""
    for task in tasks:
        next_layer = "′" if task.layer else ""
        word, wide = WORDS[task.stage], (task.end - task.start) / whole * WIDTH if whole else 0.0
        if wide < LETTER * len(word):
            word = word.rpartition(" ")[2]
        if wide >= LETTER * len(word):
            yield {"lane": task.lane, "middle": (task.start + task.end) / 2 * 1e6, "word": word + next_layer}
