"""What GPUs of an instance tell each other in a layer: tokens to experts and back, sums over a TP group."""

from __future__ import annotations

import numpy as np

from moeplan.kinds import Real
from moeplan.layers.ffn import experts_of
from moeplan.layers.step import Step
from moeplan.ops.collective import all_gather, all_reduce, reduce_scatter
from moeplan.ops.cost import Cost
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.routing.coverage import GroupLimit
from moeplan.specs.deployment import ALL_REDUCE
from moeplan.specs.exchange import Direction, exchange

BF16 = 2.0


def attention_sum(step: Step, *, whole: bool) -> list[Cost]:
    """Add up the TP group's parts of the output projection; whole: on every GPU, else each keeps its tokens."""
    if step.tp == 1:
        return []
    kind = all_reduce if whole else reduce_scatter
    return [kind("attention_sum", step.machine, bytes_=_tensor(step), ranks=step.tp)]


def dense_sum(step: Step) -> list[Cost]:
    """Add up the TP group's parts of a dense layer's output."""
    return [] if step.tp == 1 else [all_reduce("dense_sum", step.machine, bytes_=_tensor(step), ranks=step.tp)]


def dispatch(step: Step) -> list[Cost]:
    """Bring tokens to experts: sent one by one, or all of them gathered everywhere; nothing where all hold the same."""
    if step.exchange == ALL_REDUCE:
        return []
    if step.all_to_all:
        return [_exchange("dispatch", step)]
    every = step.tokens * step.model.hidden * BF16
    return [all_gather("gather_tokens", step.machine, bytes_=every, ranks=step.gpus)]


def combine(step: Step) -> list[Cost]:
    """Bring the experts' outputs back and add them up, in bf16; then every GPU of a TP group has all of its tokens."""
    if step.exchange == ALL_REDUCE:
        return [all_reduce("experts_sum", step.machine, bytes_=_tensor(step), ranks=step.gpus)]
    if step.all_to_all:
        costs = [_exchange("combine", step)]
    else:
        every = step.tokens * step.model.hidden * BF16
        costs = [reduce_scatter("scatter_sums", step.machine, bytes_=every, ranks=step.gpus)]
    if step.tp > 1:
        costs.append(all_gather("gather_rank", step.machine, bytes_=_tensor(step), ranks=step.tp))
    return costs


def _exchange(direction: Direction, step: Step) -> Cost:
    """Dispatch in what the backend sends where the experts multiply in fp8 or fp4; combine in bf16."""
    experts = experts_of(step)
    assert step.slots is not None, "experts have slots"
    return all_to_all(
        direction,
        step.machine,
        exchange(step.exchange),
        tokens=step.own_rows,
        hidden=step.model.hidden,
        top_k=experts.top_k,
        experts=step.slots.total,
        ep=step.ep,
        precision=step.precision.experts.computes_in,
        limit=GroupLimit(count=experts.n_group, taken=experts.topk_group),
        skew=_skew(step),
    )


def _skew(step: Step) -> Real:
    """What the busiest rank receives over what it does under even routing: the fits' rows were routed evenly."""
    if step.routed is None and np.ndim(step.imbalance) == 0 and step.imbalance == 1.0:
        return 1.0
    load = step.load()
    return 1.0 if load is None else load.skew


def _tensor(step: Step) -> Real:
    """Bytes of the activations of one attention rank."""
    return step.rows * step.model.hidden * BF16
