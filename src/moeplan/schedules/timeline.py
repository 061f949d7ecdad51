"""The two schedules of decode: naive, and two-batch overlap as DeepSeek runs it.

Both return the time of a layer and, by stage, the part of it that is exposed: the exposed parts add up to the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from moeplan.kinds import Real
from moeplan.layers.layer import Layer, StageName
from moeplan.specs.deployment import ScheduleName


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """seconds of a layer over all its micro-batches; exposed: seconds by stage that nothing hides."""

    seconds: Real
    exposed: Mapping[StageName, Real]
    micro_batches: int
    formula: str


def naive(layer: Layer) -> Timeline:
    """T = A0 + A1 + max(D, S) + E + C: only the shared expert hides dispatch in part (throughput article, §7)."""
    time = layer.seconds
    exposed: dict[StageName, Real] = {
        "attention_front": time("attention_front"),
        "attention_back": time("attention_back"),
        "shared": time("shared"),
        "dispatch": np.maximum(time("dispatch") - time("shared"), 0.0),
        "routed": time("routed"),
        "combine": time("combine"),
        "dense": time("dense"),
    }
    return _timeline(layer, exposed, micro_batches=1, formula="A0 + A1 + max(D, S) + E + C")


def two_batch(layer: Layer) -> Timeline:
    """T = 2·[max(D, A0 + S) + E + max(C, A1)], stages of half the batch (throughput article, section 7).

    While one micro-batch is dispatched the other computes A0 and the shared expert; while one is combined the other
    computes A1 and its router; the routed experts are exposed.
    """
    time = layer.seconds
    front = time("attention_front") + time("shared")
    exposed: dict[StageName, Real] = {
        "attention_front": time("attention_front"),
        "shared": time("shared"),
        "dispatch": np.maximum(time("dispatch") - front, 0.0),
        "routed": time("routed"),
        "attention_back": time("attention_back"),
        "combine": np.maximum(time("combine") - time("attention_back"), 0.0),
        "dense": time("dense"),
    }
    return _timeline(layer, exposed, micro_batches=2, formula="2·[max(D, A0 + S) + E + max(C, A1)]")


def _timeline(layer: Layer, exposed: Mapping[StageName, Real], *, micro_batches: int, formula: str) -> Timeline:
    shown = {name: micro_batches * seconds for name, seconds in exposed.items() if name in layer.stages}
    total: Real = 0.0
    for seconds in shown.values():
        total = total + seconds
    return Timeline(seconds=total, exposed=shown, micro_batches=micro_batches, formula=formula)


TIMELINES: dict[ScheduleName, Callable[[Layer], Timeline]] = {"naive": naive, "two-batch": two_batch}
MICRO_BATCHES: dict[ScheduleName, int] = {"naive": 1, "two-batch": 2}
