"""One decoder layer as stages: what a schedule overlaps."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from moeplan.kinds import Real
from moeplan.layers.attention import attention_back, attention_front
from moeplan.layers.exchange import attention_sum, combine, dense_sum, dispatch
from moeplan.layers.ffn import dense_ffn, routed_experts, router, shared_expert
from moeplan.layers.step import Step
from moeplan.ops.cost import Cost
from moeplan.ops.elementwise import launch_gaps
from moeplan.specs.deployment import ALL_REDUCE

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


class Layer(Struct, frozen=True, eq=False):
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


def attention_operators(layer: Layer) -> list[str]:
    """The operators before the all-to-all, in order, gaps left out: a schedule may cut them in two before any."""
    return [cost.name for cost in _before_all_to_all(layer)]


def cut_attention(layer: Layer, step: Step, at: int) -> Layer:
    """The layer with its first `at` operators before the all-to-all as attention_front, the rest as attention_back."""
    costs = _before_all_to_all(layer)
    halves: dict[StageName, list[Cost]] = {"attention_front": costs[:at], "attention_back": costs[at:]}
    cut = {name: Stage(name, (*part, *_gaps(step, part))) for name, part in halves.items()}
    return Layer({**layer.stages, **cut})


def _before_all_to_all(layer: Layer) -> list[Cost]:
    stages = (layer.stages["attention_front"], layer.stages["attention_back"])
    return [cost for stage in stages for cost in stage.costs if cost.name != "launch gaps"]


def _finish(step: Step, costs: list[Cost]) -> tuple[Cost, ...]:
    """Apply the corrections by hand and add the gaps between the kernels."""
    corrected = [
        cost.corrected(step.corrections[c]) if (c := cost.name) in step.corrections else cost for cost in costs
    ]
    return (*corrected, *_gaps(step, corrected))


def _gaps(step: Step, costs: list[Cost]) -> list[Cost]:
    """The gaps between the kernels of a stage."""
    kernels = sum(cost.lane == "compute" for cost in costs)
    return [launch_gaps(step.machine, kernels, rows=step.rows)] if kernels else []
