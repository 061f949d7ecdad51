"""One decoder layer as stages: what a schedule overlaps."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from moeplan.kinds import Real
from moeplan.layers.attention import attention_back, attention_front
from moeplan.layers.exchange import attention_sum, dense_sum
from moeplan.layers.expert_stages import expert_stages
from moeplan.layers.ffn import dense_ffn, router
from moeplan.layers.stage import Stage, StageName, finished, gaps
from moeplan.layers.step import Step
from moeplan.ops.cost import Cost
from moeplan.specs.deployment import ALL_REDUCE


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
    ready = {name: finished(step, name, costs) for name, costs in stages.items()}
    return Layer(ready if ffn == "dense" else {**ready, **expert_stages(step)})


def attention_operators(layer: Layer) -> list[str]:
    """The operators before the all-to-all, in order, gaps left out: a schedule may cut them in two before any."""
    return [cost.name for cost in _before_all_to_all(layer)]


def cut_attention(layer: Layer, step: Step, at: int) -> Layer:
    """The layer with its first `at` operators before the all-to-all as attention_front, the rest as attention_back."""
    costs = _before_all_to_all(layer)
    halves: dict[StageName, list[Cost]] = {"attention_front": costs[:at], "attention_back": costs[at:]}
    cut = {name: Stage(name, (*part, *gaps(step, part))) for name, part in halves.items()}
    return Layer({**layer.stages, **cut})


def _before_all_to_all(layer: Layer) -> list[Cost]:
    stages = (layer.stages["attention_front"], layer.stages["attention_back"])
    return [cost for stage in stages for cost in stage.costs if cost.name != "launch gaps"]
