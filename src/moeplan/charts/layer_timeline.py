"""One layer under its schedule: what each lane runs when, and where compute waits for the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeplan.charts.style import COLOURS, NEGATIVE, Spec, chart
from moeplan.schedules.intervals import Interval
from moeplan.specs.schedule import TaskStage

WIDTH = 760
LETTER = 6.6  # pixels of a letter of a bar's name
PALE = [COLOURS[4], COLOURS[1], COLOURS[2], COLOURS[3]]  # on which a bar's name can be read
KINDS = {"compute": 0.95, "compute, slowed": 0.35, "network, hidden": 0.35, "network, exposed": 0.95}
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

    A network task is strong where compute waits for it and pale where compute runs beside it; what compute is longer
    by because the network takes SMs is the pale end of its bar.
    """
    if not tasks:
        raise ValueError("no task to draw")
    end = max(task.end for task in tasks)
    values = [piece for task in tasks for piece in _pieces(task, tasks)]
    lost = sum(piece["µs"] for piece in values if piece["kind"] in ("network, exposed", "compute, slowed"))
    x: Spec = {
        "field": "from",
        "type": "quantitative",
        "title": "µs",
        "scale": {"domain": [0, end * 1e6], "nice": False},
    }
    y: Spec = {"field": "lane", "type": "nominal", "sort": ["compute", "network"], "title": None}
    colour = {"domain": sorted({piece["micro-batch"] for piece in values}), "range": PALE}
    bars: Spec = {
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "x": x,
            "x2": {"field": "to"},
            "y": y,
            "color": {"field": "micro-batch", "type": "nominal", "scale": colour},
            "opacity": {
                "field": "kind",
                "type": "nominal",
                "title": None,
                "scale": {"type": "ordinal", "domain": list(KINDS), "range": list(KINDS.values())},
            },
            "stroke": {
                "condition": {"test": "datum.kind == 'network, exposed'", "value": NEGATIVE},
                "value": "white",
            },
            "strokeWidth": {"condition": {"test": "datum.kind == 'network, exposed'", "value": 2}, "value": 1},
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
        yield from _bar(task, "compute", task.start, middle)
        yield from _bar(task, "compute, slowed", middle, task.end)
        return
    at = task.start
    for other in tasks:
        if other.lane == "compute" and other.end > at and other.start < task.end:
            yield from _bar(task, "network, exposed", at, max(at, other.start))
            yield from _bar(task, "network, hidden", max(at, other.start), min(other.end, task.end))
            at = min(other.end, task.end)
    yield from _bar(task, "network, exposed", at, task.end)


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
    """The names of the bars that are wide enough for them."""
    for task in tasks:
        word, wide = WORDS[task.stage], (task.end - task.start) / whole * WIDTH if whole else 0.0
        if wide < LETTER * len(word):
            word = word.rpartition(" ")[2]
        if wide >= LETTER * len(word):
            yield {"lane": task.lane, "middle": (task.start + task.end) / 2 * 1e6, "word": word}
