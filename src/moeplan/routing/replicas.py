"""How many replicas each expert gets: slots shared out by the load they would carry."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeplan.kinds import Array

Whole = NDArray[np.int64]


def replicas(loads: Array, *, slots: int, most: int, lean: float = 0.0) -> Whole:
    """Replicas c_e ≥ 1 with Σ c_e = slots: one by one to the expert with the largest load / (c_e + lean).

    loads: (rows, experts). lean 0 makes the heaviest replica as light as any choice of counts can (divisor method of
    Adams; the published EPLB does the same). A larger lean gives hot experts fewer replicas and warm ones more, ½ being
    Webster's: sometimes that packs better. most: replicas that an expert may have, such as one per rank; it gives way
    where the slots would not fill otherwise.
    """
    rows, experts = loads.shape
    counts = np.ones((rows, experts), dtype=np.int64)
    limit = max(most, -(-slots // experts))
    heat = loads / (1.0 + lean)
    row = np.arange(rows)
    for _ in range(slots - experts):
        hottest = heat.argmax(axis=1)
        count = counts[row, hottest] + 1
        counts[row, hottest] = count
        # Below zero: an expert that is full stands behind one without any load.
        heat[row, hottest] = np.where(count < limit, loads[row, hottest] / (count + lean), -1.0)
    return counts


def lightest_heaviest(loads: Array, *, slots: int) -> Array:
    """The least load that the heaviest replica can have, whatever the counts: (rows,)."""
    heaviest: Array = (loads / replicas(loads, slots=slots, most=slots)).max(axis=1)
    return heaviest
