"""The front of deployments that no other beats in every objective at once."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.kinds import Array


class FrontPoint(Struct, frozen=True, kw_only=True):
    """One deployment on the front. redundant: expert slots, where their number was searched or named."""

    tps_per_user: float
    tps_per_gpu: float
    batch: int
    count: int
    layout: str = "dep"
    exchange: str = ""
    tp: int = 1
    redundant: int | None = None
    drafts: int
    schedule: str
    kv: str
    core: str


def pareto_front(objectives: Array) -> NDArray[np.intp]:
    """Indices of the rows that no other row dominates; objectives of shape (points, objectives), larger is better.

    A row dominates another when it is at least as good in every objective and better in one; equal rows all stay but
    the first is kept alone. Two objectives take a sort; more are filtered one point at a time.
    """
    count, dimensions = objectives.shape
    if count == 0:
        return np.empty(0, dtype=np.intp)
    order = np.lexsort(tuple(-objectives[:, column] for column in range(dimensions - 1, -1, -1)))
    ranked = objectives[order]
    if dimensions <= 2:
        last = ranked[:, -1]
        before = np.concatenate([[-np.inf], np.maximum.accumulate(last)[:-1]])
        return np.asarray(order[last > before])
    kept: list[int] = []
    held = np.empty((0, dimensions))
    for index, row in zip(order, ranked, strict=True):
        if not np.any(np.all(held >= row, axis=1)):
            kept.append(int(index))
            held = np.vstack([held, row])
    return np.array(kept, dtype=np.intp)
