"""When each task of a layer runs under a schedule: what a picture of it shows."""

from __future__ import annotations

from msgspec import Struct

from moeplan.layers.layer import Layer
from moeplan.schedules.scheduler import simulate
from moeplan.schedules.segments import UNMET_LAYERS, period
from moeplan.schedules.timeline import stage_times
from moeplan.specs.schedule import Lane, TaskStage, schedule


class Interval(Struct, frozen=True, kw_only=True):
    """A task of a steady layer: seconds from where the picture starts; micro-batches count from 1.

    layer: 1 where it is already of the next layer. alone: seconds that it takes when the network takes no SMs.
    """

    lane: Lane
    micro_batch: int
    layer: int
    stage: TaskStage
    part: int
    parts: int
    start: float
    end: float
    alone: float


def intervals(layer: Layer, name: str) -> list[Interval]:
    """The tasks of a steady layer, of scalars and with experts, in the order in which they start."""
    found = schedule(name)
    steady, (seconds, shares) = period(found), stage_times(layer, found)
    spans = [span for span in simulate(steady.graph, seconds, shares) if span.task.stage in seconds]
    if not steady.segments:  # lanes never meet: one layer out of several
        spans = [span for span in spans if span.task.layer == UNMET_LAYERS - 2]
    origin = min(float(span.start) for span in spans)
    first = min(span.task.layer for span in spans)
    shown = [
        Interval(
            lane=span.task.lane,
            micro_batch=span.task.batch,
            layer=span.task.layer - first,
            stage=span.task.stage,
            part=span.task.part,
            parts=span.task.parts,
            start=float(span.start) - origin,
            end=float(span.end) - origin,
            alone=float(seconds[span.task.stage]) / span.task.parts,
        )
        for span in spans
    ]
    return sorted(shown, key=lambda item: (item.start, item.lane))
