"""One decoder layer as stages: what a schedule overlaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from moeplan.kinds import Real
from moeplan.layers.attention import attention_back, attention_front
from moeplan.layers.exchange import attention_sum, combine, dense_sum, dispatch
from moeplan.layers.ffn import dense_ffn, routed_experts, router, shared_expert
from moeplan.layers.step import Step
from moeplan.ops.cost import Cost
from moeplan.ops.elementwise import launch_gaps
from moeplan.specs.deployment import ALL_REDUCE

StageName = Literal["attention_front", "attention_back", "dispatch", "shared", "routed", "combine", "dense"]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
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


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The stages of a layer, by name; a dense layer has no dispatch, shared, routed and combine."""

    stages: dict[StageName, Stage]

    def seconds(self, name: StageName) -> Real:
        """Busy time of a stage; 0 when the layer has none of that name."""
        return self.stages[name].seconds if name in self.stages else 0.0


def build_layer(step: Step, *, ffn: Literal["dense", "moe"], window: int | None) -> Layer:
    """Lay out one layer for one micro-batch.

    Before the all-to-all: attention_front (projections of the input) and attention_back (core, output projection,
    router); the split is DeepSeek's (throughput article: A0, A1). A correction by hand applies to the operator of its
    name.
    """
    whole = ffn == "dense" or step.exchange == ALL_REDUCE
    back = [*attention_back(step, window=window), *attention_sum(step, whole=whole)]
    stages: dict[StageName, list[Cost]] = {"attention_front": attention_front(step), "attention_back": back}
    if ffn == "dense":
        stages["dense"] = [*dense_ffn(step), *dense_sum(step)]
    else:
        back.extend(router(step))
        shared = shared_expert(step)
        if shared:
            stages["shared"] = shared
        if np.any(np.greater(step.gpus, 1)):
            if sent := dispatch(step):
                stages["dispatch"] = sent
            stages["combine"] = combine(step)
        stages["routed"] = routed_experts(step)
    return Layer({name: Stage(name, _finish(step, costs)) for name, costs in stages.items()})


def _finish(step: Step, costs: list[Cost]) -> tuple[Cost, ...]:
    """Apply the corrections by hand and add the gaps between the kernels."""
    corrected = [
        cost.corrected(step.corrections[c]) if (c := cost.name) in step.corrections else cost for cost in costs
    ]
    kernels = sum(cost.lane == "compute" for cost in corrected)
    return (*corrected, *([launch_gaps(step.machine, kernels, rows=step.rows)] if kernels else []))
