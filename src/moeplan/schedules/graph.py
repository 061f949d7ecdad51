"""A schedule's programs unrolled over layers: tasks, and which waits for which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import get_args

from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.specs.schedule import After, Lane, Run, Schedule, TaskStage

# What a stage waits for in its own micro-batch; the layer before where it is the first.
BEFORE: dict[TaskStage, tuple[TaskStage, ...]] = {
    "attention_front": ("combine", "shared"),
    "attention_back": ("attention_front",),
    "dispatch": ("attention_back",),
    "shared": ("attention_back",),
    "routed": ("dispatch",),
    "routed_up": ("dispatch",),
    "routed_down": ("routed_up",),
    "combine": ("routed", "routed_down"),
}
FIRST: TaskStage = "attention_front"


class Task(Struct, frozen=True, kw_only=True):
    """A stage, or one of its equal parts, of one micro-batch and layer."""

    lane: Lane
    batch: int
    layer: int
    stage: TaskStage
    part: int = 0
    parts: int = 1


class Graph(Struct, frozen=True, kw_only=True):
    """Tasks in an order in which they can run, network first; by index of a task, all that it waits for.

    after: the tasks whose ends it starts at, those left out that another of them waits for. ancestors: all before it.
    """

    tasks: tuple[Task, ...]
    after: tuple[tuple[int, ...], ...]
    ancestors: tuple[frozenset[int], ...]

    def beside(self, index: int) -> Iterator[int]:
        """The tasks of the other lane, among those before it in the order, that may run while it does."""
        lane, behind = self.tasks[index].lane, self.ancestors[index]
        return (other for other in range(index) if self.tasks[other].lane != lane and other not in behind)

    def part(self, chosen: Iterable[int]) -> Graph:
        """These tasks alone, in their order; all that they wait for besides has ended."""
        kept = sorted(chosen)
        place = {old: new for new, old in enumerate(kept)}
        return Graph(
            tasks=tuple(self.tasks[old] for old in kept),
            after=tuple(tuple(place[item] for item in self.after[old] if item in place) for old in kept),
            ancestors=tuple(frozenset(place[item] for item in self.ancestors[old] if item in place) for old in kept),
        )


@lru_cache(maxsize=64)
def unroll(schedule: Schedule, layers: int) -> Graph:
    """The programs repeated for so many layers, the first of which finds everything before it done.

    Raises InputError for programs whose tasks wait for each other.
    """
    before: dict[Task, set[Task]] = {}
    for lane in get_args(Lane):
        last: Task | None = None
        for layer in range(layers):
            for run in schedule.program(lane):
                for task, more in _expanded(lane, run, layer):
                    before[task] = {*more, *((last,) if last is not None else ())}
                    last = task
    for task, found in before.items():
        found.update(_natural(task, before))
        found.intersection_update(before)  # what lies before the first layer is done
    return _ordered(schedule.name, before)


def _expanded(lane: Lane, run: Run, layer: int) -> Iterator[tuple[Task, list[Task]]]:
    """The tasks of one entry and what the schedule makes them wait for."""
    for number, stage in enumerate(run.run):
        for part in range(run.parts):
            task = Task(lane=lane, batch=run.batch, layer=layer + run.layer, stage=stage, part=part, parts=run.parts)
            first = number == part == 0
            yield task, [_waited(after, layer) for after in run.after] if first else []


def _waited(after: After, layer: int) -> Task:
    lane: Lane = "network" if after.stage in ("dispatch", "combine") else "compute"
    return Task(lane=lane, batch=after.batch, layer=layer - after.layers_before, stage=after.stage)


def _natural(task: Task, known: Iterable[Task]) -> Iterator[Task]:
    """What a task of its micro-batch always waits for: part by part where both have as many, else all parts."""
    layer = task.layer - (task.stage == FIRST)
    for other in known:
        same = other.batch == task.batch and other.layer == layer and other.stage in BEFORE[task.stage]
        if same and (other.parts != task.parts or other.part == task.part):
            yield other


def _ordered(name: str, before: dict[Task, set[Task]]) -> Graph:
    place: dict[Task, int] = {}
    after: list[tuple[int, ...]] = []
    ancestors: list[frozenset[int]] = []
    while len(place) < len(before):
        ready = [task for task in before if task not in place and before[task] <= place.keys()]
        if not ready:
            stuck = next(task for task in before if task not in place)
            fix = "change the order, or what it waits for"
            raise InputError(name, [Fault(f"{stuck.lane}: {stuck.stage} of batch {stuck.batch}", "never starts", fix)])
        task = min(ready, key=lambda item: item.lane != "network")
        direct = {place[item] for item in before[task]}
        indirect = frozenset().union(*(ancestors[item] for item in direct))
        place[task] = len(after)
        after.append(tuple(sorted(direct - indirect)))
        ancestors.append(frozenset(direct | indirect))
    return Graph(tasks=tuple(place), after=tuple(after), ancestors=tuple(ancestors))
