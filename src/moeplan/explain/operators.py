"""The operators of a whole step, merged over layers and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from moeplan.kernels.origin import Origin, worst
from moeplan.ops.cost import Cost
from moeplan.predict import Prediction

LAUNCHES = "launches and floors"


class StepOperator(Struct, frozen=True, kw_only=True, eq=False):
    """One operator in all layers: busy and exposed seconds, FLOP, bytes per step; resource: what binds most of it."""

    name: str
    seconds: float
    exposed: float
    flops: float
    bytes_: float
    resource: str
    origin: Origin
    network: bool


def step_operators(step: Prediction) -> list[StepOperator]:
    """All operators of a scalar prediction, in the order in which they first run; their exposed seconds add up."""
    merged: dict[str, StepOperator] = {}
    for item in _all(step):
        held = merged.get(item.name)
        if held is None:
            merged[item.name] = item
        else:
            merged[item.name] = replace(
                held,
                seconds=held.seconds + item.seconds,
                exposed=held.exposed + item.exposed,
                flops=held.flops + item.flops,
                bytes_=held.bytes_ + item.bytes_,
                resource=held.resource if held.exposed >= item.exposed else item.resource,
                origin=worst(held.origin, item.origin),
            )
    return list(merged.values())


def costs_shown(step: Prediction) -> Iterator[tuple[Cost, float, float]]:
    """Every operator of a scalar prediction but the drafts', how often a step runs it, and the share nothing hides."""
    for group in step.groups:
        copies = group.timeline.micro_batches * group.group.count
        for name, stage in group.layer.stages.items():
            busy = float(stage.seconds) * group.timeline.micro_batches
            shown = float(group.timeline.exposed[name]) / busy if busy else 0.0
            for cost in stage.costs:
                yield cost, copies, shown
    for cost in step.outside:
        yield cost, 1, 1.0


def _all(step: Prediction) -> Iterator[StepOperator]:
    for cost, copies, shown in costs_shown(step):
        yield _operator(cost, copies, shown)
    if float(step.drafting):
        yield StepOperator(
            name="MTP drafts",
            seconds=float(step.drafting),
            exposed=float(step.drafting),
            flops=0.0,
            bytes_=0.0,
            resource="memory",
            origin=step.origin,
            network=False,
        )


def _operator(cost: Cost, copies: float, shown: float) -> StepOperator:
    seconds = float(cost.seconds) * copies
    resource = cost.bound_by
    return StepOperator(
        name=cost.name,
        seconds=seconds,
        exposed=seconds * shown,
        flops=float(cost.flops) * copies,
        bytes_=float(cost.bytes_) * copies,
        resource=LAUNCHES if resource == "floor" else resource,
        origin=cost.origin,
        network=cost.lane == "network",
    )
