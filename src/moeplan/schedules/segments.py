"""A schedule cut where all lanes have met: a layer is the sum of short stretches, each worked out once."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.kinds import Real
from moeplan.schedules.graph import Graph, unroll
from moeplan.schedules.scheduler import Times, exposed, simulate
from moeplan.specs.schedule import Schedule, TaskStage

LAYERS = 4  # unrolled to find a steady one
UNMET_LAYERS = 8  # where lanes never meet

Amounts = tuple[tuple[TaskStage, float], ...]


class Segment(Struct, frozen=True, kw_only=True, eq=False):
    """Tasks between two moments at which nothing runs; count: how often a layer has it, micro-batches exchanged.

    compute, network: how much of each stage it has. pair: one network task, and compute that need not wait for it.
    """

    graph: Graph
    count: int
    compute: Amounts
    network: Amounts
    pair: bool

    @classmethod
    def of(cls, graph: Graph, count: int) -> Segment:
        """A segment of these tasks."""
        amounts: dict[tuple[str, TaskStage], float] = {}
        for task in graph.tasks:
            key = (task.lane, task.stage)
            amounts[key] = amounts.get(key, 0.0) + 1.0 / task.parts
        lone = [index for index, task in enumerate(graph.tasks) if task.lane == "network"]
        pair = len(lone) == 1 and not graph.ancestors[lone[0]] and all(lone[0] not in a for a in graph.ancestors)
        return cls(
            graph=graph,
            count=count,
            compute=tuple((stage, amount) for (lane, stage), amount in amounts.items() if lane == "compute"),
            network=tuple((stage, amount) for (lane, stage), amount in amounts.items() if lane == "network"),
            pair=pair,
        )

    def exposed(self, seconds: Times, shares: Times) -> dict[TaskStage, Real]:
        """Seconds by network stage in which compute waits for it or is slowed by it, once."""
        network = [(stage, amount) for stage, amount in self.network if stage in seconds]
        if not network:
            return {}
        if len(network) > 1:
            return exposed(self.graph, simulate(self.graph, seconds, shares), shares)
        (stage, amount), work = network[0], _total(self.compute, seconds)
        if not self.pair:
            return {stage: _end(self.graph, seconds, shares) - work}
        time, share = seconds[stage] if amount == 1.0 else amount * seconds[stage], shares.get(stage, 0.0)
        if np.ndim(work) == 0 and work == 0:
            return {stage: time}
        return {stage: np.maximum(time - work, share * time)}


class Period(Struct, frozen=True, kw_only=True, eq=False):
    """One steady layer: its segments in order, and the graph of all its tasks from a moment at which nothing runs.

    Where lanes never meet there are no segments, and the graph is of UNMET_LAYERS layers.
    """

    schedule: Schedule
    segments: tuple[Segment, ...]
    graph: Graph

    def exposed(self, seconds: Times, shares: Times) -> dict[TaskStage, Real]:
        """Seconds of a layer by network stage in which compute waits for it or is slowed by it."""
        if not self.segments:
            return exposed(self.graph, simulate(self.graph, seconds, shares), shares, layer=UNMET_LAYERS - 2)
        found: dict[TaskStage, Real] = {}
        for segment in self.segments:
            for stage, once in segment.exposed(seconds, shares).items():
                more = segment.count * once if segment.count > 1 else once
                found[stage] = found[stage] + more if stage in found else more
        return found


@lru_cache(maxsize=64)
def period(schedule: Schedule) -> Period:
    """Cut a steady layer of the schedule into its segments."""
    graph = unroll(schedule, LAYERS)
    cuts = _meetings(graph)
    whole = len(graph.tasks) // LAYERS
    for opening in (cut for cut in cuts if len(cut) >= whole):
        closing = _next_layer(graph, opening)
        if closing in cuts:
            inside = [cut for cut in cuts if opening <= cut <= closing]
            parts = [graph.part(end - start) for start, end in pairwise(inside)]
            return Period(schedule=schedule, segments=_merged(parts), graph=graph.part(closing - opening))
    return Period(schedule=schedule, segments=(), graph=unroll(schedule, UNMET_LAYERS))


def _meetings(graph: Graph) -> list[frozenset[int]]:
    """What has ended at every moment at which nothing runs, the earliest first.

    Then all that starts next waits for all that came before.
    """
    found = set()
    for done in set(graph.ancestors):
        if all(graph.ancestors[index] == done for index in _next(graph, done)):
            found.add(done)
    return sorted(found, key=len)


def _next(graph: Graph, done: frozenset[int]) -> list[int]:
    """The tasks not done that wait for none that is not done."""
    return [i for i, before in enumerate(graph.ancestors) if i not in done and before <= done]


def _next_layer(graph: Graph, done: frozenset[int]) -> frozenset[int] | None:
    """The same moment a layer later; None where the layers end before."""
    later = {replace(graph.tasks[index], layer=graph.tasks[index].layer + 1) for index in _next(graph, done)}
    places = [index for index, task in enumerate(graph.tasks) if task in later]
    return graph.ancestors[places[0]] if len(places) == len(later) else None


def _merged(parts: list[Graph]) -> tuple[Segment, ...]:
    """Segments that differ in the names of their micro-batches only are one."""
    counts: dict[Graph, int] = {}
    for part in parts:
        names: dict[int, int] = {}
        tasks = tuple(replace(task, batch=names.setdefault(task.batch, len(names)), layer=0) for task in part.tasks)
        alike = replace(part, tasks=tasks)
        counts[alike] = counts.get(alike, 0) + 1
    return tuple(Segment.of(graph, count) for graph, count in counts.items())


def _total(amounts: Amounts, seconds: Times) -> Real:
    total: Real = 0.0
    for number, (stage, amount) in enumerate(item for item in amounts if item[0] in seconds):
        more = seconds[stage] if amount == 1.0 else amount * seconds[stage]
        total = total + more if number else more
    return total


def _end(graph: Graph, seconds: Times, shares: Times) -> Real:
    """When the last task ends."""
    spans = simulate(graph, seconds, shares)
    waited = {index for after in graph.after for index in after}
    last = [span.end for index, span in enumerate(spans) if index not in waited]
    end = last[0]
    for other in last[1:]:
        end = np.maximum(end, other)
    return end
