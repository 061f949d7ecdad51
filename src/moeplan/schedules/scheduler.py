"""The list scheduler of every schedule: each lane runs its program in order, a task starts when all before it ended.

All times are scalars or arrays on open axes: which task waits for which does not depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from moeplan.kinds import Real
from moeplan.schedules.graph import Graph, Task
from moeplan.specs.schedule import TaskStage

Times = Mapping[TaskStage, Real]
NEVER = 1e-30  # share of the SMs that is left beside a task that takes them all


class Span(Struct, frozen=True, kw_only=True, eq=False):
    """When a task runs, in seconds."""

    task: Task
    start: Real
    end: Real


def simulate(graph: Graph, seconds: Times, shares: Times) -> list[Span]:
    """When every task of the graph runs, from 0 on.

    seconds: of a stage of one micro-batch, none where it is not named. shares: of the SMs that a network stage takes
    while it runs. Compute beside it is slowed by that share: side by side the two take max(D, t + s·D).
    """
    spans: list[Span] = []
    for index, task in enumerate(graph.tasks):
        start: Real = 0.0
        for number, before in enumerate(graph.after[index]):
            ended = spans[before].end
            start = np.maximum(start, ended) if number else ended
        end = start + seconds.get(task.stage, 0.0) / task.parts
        if task.lane == "compute":
            for other in graph.beside(index):
                share = shares.get(spans[other].task.stage, 0.0)
                if not (np.ndim(share) == 0 and share == 0):
                    end = end + _slowed(start, end, spans[other], share)
        spans.append(Span(task=task, start=start, end=end))
    return spans


def exposed(graph: Graph, spans: Sequence[Span], shares: Times, layer: int | None = None) -> dict[TaskStage, Real]:
    """Seconds by network stage in which it keeps compute from running: compute waits for it, or is slowed by it.

    layer: of that layer's tasks alone.
    """
    found: dict[TaskStage, Real] = {}
    for index, span in enumerate(spans):
        if span.task.lane == "network" and layer in (None, span.task.layer):
            beside: Real = 0.0
            for other, ran in enumerate(spans):
                if ran.task.lane == "compute" and other not in graph.ancestors[index]:
                    both = np.minimum(span.end, ran.end) - np.maximum(span.start, ran.start)
                    beside = beside + np.maximum(both, 0.0)
            alone = span.end - span.start - (1.0 - shares.get(span.task.stage, 0.0)) * beside
            found[span.task.stage] = found.get(span.task.stage, 0.0) + alone
    return found


def _slowed(start: Real, end: Real, beside: Span, share: Real) -> Real:
    """What a network task adds to a compute task that would run from start to end without it.

    Tasks of the network are asked in time's order. Work is done at a rate of 1 − share while it runs.
    """
    met = np.maximum(start, beside.start)
    work = np.maximum(end - met, 0.0)
    length = np.maximum(beside.end - met, 0.0)
    return np.minimum(share * length, work * (share / np.maximum(1.0 - share, NEVER)))
