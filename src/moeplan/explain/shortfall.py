"""Nothing feasible: which constraint failed, by how much, and the smallest change that would do."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from moeplan.predict import Prediction, Predictor
from moeplan.search.best import Found, Missed, best
from moeplan.search.space import Space
from moeplan.specs.spread import spreads
from moeplan.units import gib

MOST_GPUS = 2048
SMALLEST = 16  # batches; more than one, as tiles make a step uneven


class Remedy(Struct, frozen=True, kw_only=True):
    """One change that makes something feasible; size: the relative size of the change, for ranking."""

    change: str
    size: float


class Shortfall(Struct, frozen=True, kw_only=True):
    """constraint: what failed; needed and available in the unit; remedies, the smallest change first."""

    constraint: str
    unit: str
    needed: float
    available: float
    remedies: tuple[Remedy, ...]


def shortfall(predictor: Predictor, space: Space, missed: Missed, *, min_tps: float) -> Shortfall:
    """Diagnose a search that found nothing: what the smallest batches need, since every larger one needs more."""
    space = replace(space, batches=space.batches[:SMALLEST])
    if missed.fastest is None:
        return _memory(predictor, space, missed, min_tps)
    reached = float(missed.fastest.tps_per_user)
    remedies = [Remedy(change=f"--min-tps {_floor(reached)}", size=1 - _floor(reached) / min_tps)]
    context = _longest_context(predictor, space, min_tps)
    if context:
        remedies.append(Remedy(change=f"--context {context}", size=1 - context / space.context))
    gpus = _more_gpus(predictor, space, min_tps)
    if gpus:
        remedies.append(Remedy(change=f"--gpus {gpus}", size=gpus / max(space.counts) - 1))
    return Shortfall(
        constraint="speed per user",
        unit="tok/s/user",
        needed=min_tps,
        available=reached,
        remedies=tuple(sorted(remedies, key=lambda remedy: remedy.size)),
    )


def shortage(step: Prediction) -> str:
    """What a predicted step lacks that does not fit in memory, and what would help."""
    memory = step.memory
    fixed = float(memory.total - memory.kv_cache)
    lack = f"{gib(float(memory.total))} per GPU needed, {gib(memory.capacity)} available"
    if fixed < memory.capacity:
        return f"{lack}; the KV cache takes {gib(float(memory.kv_cache))}: lower the batch or the context"
    more = "spread the experts over more GPUs, or " if step.model.is_moe else ""
    return f"{lack}; weights and buffers alone take {gib(fixed)}: {more}choose smaller formats or a larger GPU"


def _memory(predictor: Predictor, space: Space, missed: Missed, min_tps: float) -> Shortfall:
    assert missed.leanest is not None, "a space is never empty"
    memory = missed.leanest.memory
    remedies = []
    gpus = _more_gpus(predictor, space, min_tps)  # what fits must be fast enough too
    if gpus:
        remedies.append(Remedy(change=f"--gpus {gpus}", size=gpus / max(space.counts) - 1))
    context = _longest_context(predictor, space, min_tps)
    if context:
        remedies.append(Remedy(change=f"--context {context}", size=1 - context / space.context))
    return Shortfall(
        constraint="memory per GPU",
        unit="B",
        needed=float(memory.total),
        available=memory.capacity,
        remedies=tuple(sorted(remedies, key=lambda remedy: remedy.size)),
    )


def _feasible(predictor: Predictor, space: Space, min_tps: float) -> bool:
    return isinstance(best(predictor, space, min_tps=min_tps), Found)


def _feasible_at(predictor: Predictor, space: Space, counts: NDArray[np.int_], min_tps: float) -> bool:
    """Whether other instance sizes are feasible; none of them may be a spread, as where an all-to-all ends."""
    sizes = tuple(int(count) for count in counts)
    if space.model is not None and not spreads(space.model, sizes, space.layouts, space.tps, space.reach):
        return False
    return bool(sizes) and _feasible(predictor, replace(space, counts=sizes), min_tps)


def _longest_context(predictor: Predictor, space: Space, min_tps: float) -> int | None:
    """The longest context, in whole tokens, that is feasible at all; None when not even one token is."""
    if not _feasible(predictor, replace(space, context=1.0), min_tps):
        return None
    low, high = 1, int(space.context)
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (
            (middle, high) if _feasible(predictor, replace(space, context=float(middle)), min_tps) else (low, middle)
        )
    return low


def _more_gpus(predictor: Predictor, space: Space, min_tps: float) -> int | None:
    """The smallest instance beyond those tried, in whole nodes, that is feasible; None up to MOST_GPUS."""
    node = predictor.machine.cluster.gpus_per_node
    start = (max(space.counts) // node + 1) * node
    model = predictor.model
    most = MOST_GPUS if model.is_moe else start  # more replicas of a dense model change nothing per GPU
    counts = np.arange(start, most + 1, node)
    if not _feasible_at(predictor, space, counts, min_tps):
        return None
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        here = _feasible_at(predictor, space, counts[: middle + 1], min_tps)
        low, high = (low, middle) if here else (middle + 1, high)
    return int(counts[low])


def _floor(value: float) -> float:
    """Two significant decimals, rounded down so that the change really does."""
    return float(np.floor(value * 100) / 100)
