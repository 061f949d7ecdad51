"""The stages of a sparse layer behind its router: what steps that differ in their attention alone have in common.

A search tries cache formats in turn, and models alternate attention windows; the experts' half of the layer, most of
the arithmetic of a prediction, is then the same.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from moeplan.kinds import Real
from moeplan.layers.exchange import combine, dispatch
from moeplan.layers.ffn import experts_of, routed_experts, shared_expert
from moeplan.layers.stage import Stage, StageName, finished
from moeplan.layers.step import Step
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine

KEPT = 4  # answers remembered: of a step and the passes of its drafts; a search holds large arrays in each
_KEPT: dict[tuple[Machine, Hashable], dict[StageName, Stage]] = {}


def expert_stages(step: Step) -> dict[StageName, Stage]:
    """Shared experts, dispatch, combine and routed experts; asked again for the same experts, the same answer."""
    key = (step.machine, _key(step))
    if key in _KEPT:
        return _KEPT[key]
    stages: dict[StageName, list[Cost]] = {}
    if shared := shared_expert(step):
        stages["shared"] = shared
    if np.any(np.greater(step.gpus, 1)):
        if sent := dispatch(step):
            stages["dispatch"] = sent
        stages["combine"] = combine(step)
    stages["routed"] = routed_experts(step)
    while len(_KEPT) >= KEPT:
        del _KEPT[next(iter(_KEPT))]
    _KEPT[key] = {name: finished(step, name, costs) for name, costs in stages.items()}
    return _KEPT[key]


def _key(step: Step) -> Hashable:
    """All of a step that its experts and their exchange depend on."""
    experts, precision = experts_of(step), step.precision
    assert step.slots is not None, "experts have slots"
    names = (experts, step.model.hidden, precision.experts, precision.linear, step.even, step.exchange)
    numbers = (step.batch, step.q_len, step.ep, step.slots.total, step.imbalance)
    loads = (step.routed, step.tp, step.moe_tp, tuple(step.corrections.items()))
    return names, tuple(map(_value, numbers)), loads


def _value(number: Real) -> Hashable:
    return (number.shape, number.tobytes()) if isinstance(number, np.ndarray) else float(number)
