"""The time of a layer under a schedule and, by stage, the part of it that is exposed: these add up to the layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from moeplan.kinds import Real
from moeplan.layers.layer import Layer
from moeplan.layers.stage import StageName
from moeplan.schedules.formula import formula
from moeplan.schedules.segments import period
from moeplan.specs.schedule import ON_NETWORK, Schedule, TaskStage, schedule

DOWN = "routed_down"  # the operator that a combine may run beside


class Timeline(Struct, frozen=True, kw_only=True, eq=False):
    """seconds of a layer over all its micro-batches; exposed: seconds by stage that nothing hides.

    A compute stage is exposed for as long as it takes alone; what the network slows it by is the network's.
    """

    seconds: Real
    exposed: Mapping[StageName, Real]
    micro_batches: int
    formula: str


def timeline(layer: Layer, name: str) -> Timeline:
    """The layer under the schedule of that name; a dense layer has nothing to overlap: its stages add up."""
    if "dense" in layer.stages:
        return _added({stage: layer.seconds(stage) for stage in layer.stages}, micro_batches=1, text="A0 + A1 + FFN")
    found = schedule(name)
    seconds, shares = stage_times(layer, found)
    steady = period(found)
    waits = steady.exposed(seconds, shares)
    count = found.micro_batches
    exposed: dict[StageName, Real] = {}
    for stage in layer.stages:
        if stage in ON_NETWORK:
            exposed[stage] = waits[stage]
        else:
            exposed[stage] = count * layer.seconds(stage) if count > 1 else layer.seconds(stage)
    return _added(exposed, micro_batches=count, text=formula(steady, slowed=bool(shares)))


def stage_times(layer: Layer, found: Schedule) -> tuple[dict[TaskStage, Real], dict[TaskStage, Real]]:
    """Seconds of every stage that the layer has, in the schedule's pieces, and the SMs' shares that the network takes.

    Shares of nothing are left out. routed_down is the operator of that name; its launch gap stays with routed_up. A
    layer that does all in one kernel has no routed_down: nothing runs beside it.
    """
    seconds: dict[TaskStage, Real] = {}
    shares: dict[TaskStage, Real] = {}
    halves = any("routed_down" in run.run for run in found.compute)
    for name, stage in layer.stages.items():
        assert name != "dense", "a dense layer has no schedule"
        if name == "routed" and halves:
            down: Real = 0.0
            for cost in stage.costs:
                if cost.name == DOWN:
                    down = cost.seconds
            seconds["routed_up"], seconds["routed_down"] = stage.seconds - down, down
        else:
            seconds[name] = stage.seconds
        if name in ON_NETWORK:
            share = stage.sm_share
            if np.ndim(share) or share != 0:
                shares[name] = share
    return seconds, shares


def _added(exposed: Mapping[StageName, Real], *, micro_batches: int, text: str) -> Timeline:
    total: Real = 0.0
    for number, seconds in enumerate(exposed.values()):
        total = total + seconds if number else seconds
    return Timeline(seconds=total, exposed=exposed, micro_batches=micro_batches, formula=text)
