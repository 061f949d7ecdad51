"""A stage of a layer: operators that run one after another on one lane."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from moeplan.kinds import Real
from moeplan.layers.step import Step
from moeplan.ops.cost import Cost
from moeplan.ops.elementwise import launch_gaps

StageName = Literal["attention_front", "attention_back", "dispatch", "shared", "routed", "combine", "dense"]


class Stage(Struct, frozen=True, eq=False):
    """Operators that run one after another on one lane."""

    name: StageName
    costs: tuple[Cost, ...]

    @property
    def seconds(self) -> Real:
        """Busy time of the stage."""
        total: Real = 0.0
        for cost in self.costs:
            total = total + cost.seconds
        return total

    @property
    def sm_share(self) -> Real:
        """Share of the SMs that the stage takes from compute beside it, over its seconds; 0 on the compute lane."""
        if len(self.costs) == 1:
            return self.costs[0].sm_share
        taken: Real = 0.0
        for cost in self.costs:
            taken = taken + cost.sm_share * cost.seconds
        return taken / np.maximum(self.seconds, np.finfo(float).tiny)


def finished(step: Step, name: StageName, costs: list[Cost]) -> Stage:
    """The stage of these operators: corrections by hand applied, the gaps between the kernels added."""
    corrected = [
        cost.corrected(step.corrections[c]) if (c := cost.name) in step.corrections else cost for cost in costs
    ]
    return Stage(name, (*corrected, *gaps(step, corrected)))


def gaps(step: Step, costs: list[Cost]) -> list[Cost]:
    """The gaps between the kernels of a stage."""
    kernels = sum(cost.lane == "compute" for cost in costs)
    return [launch_gaps(step.machine, kernels, rows=step.rows)] if kernels else []
