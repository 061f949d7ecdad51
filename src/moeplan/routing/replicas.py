"""How many replicas each expert gets: slots shared out by the load they would carry."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeplan.kinds import Array

Whole = NDArray[np.int64]
ONE_BY_ONE, HALVINGS = 128, 30  # replicas that are dealt singly, however many; steps of the search for where to begin


def replicas(loads: Array, *, slots: int, most: int, lean: float = 0.0) -> Whole:
    """Replicas c_e ≥ 1 with Σ c_e = slots: one by one to the expert with the largest load / (c_e + lean).

    loads: (rows, experts). lean 0 makes the heaviest replica as light as any choice of counts can (divisor method of
    Adams; the published EPLB does the same). A larger lean gives hot experts fewer replicas and warm ones more, ½ being
    Webster's: sometimes that packs better. most: replicas that an expert may have, such as one per rank; it gives way
    where the slots would not fill otherwise.
    """
    rows, experts = loads.shape
    limit = max(most, -(-slots // experts))
    counts = np.ones((rows, experts), dtype=np.int64)
    if slots - experts > ONE_BY_ONE:
        counts = _most_of_them(loads, slots, limit, lean)
    # Below zero: an expert that is full stands behind one without any load.
    heat = np.where(counts < limit, loads / (counts + lean), -1.0)
    rest = slots - counts.sum(axis=1)
    for given in range(int(rest.max())):
        row = np.flatnonzero(rest > given)
        hottest = heat[row].argmax(axis=1) if row.size < rows else heat.argmax(axis=1)
        count = counts[row, hottest] + 1
        counts[row, hottest] = count
        heat[row, hottest] = np.where(count < limit, loads[row, hottest] / (count + lean), -1.0)
    return counts


def _most_of_them(loads: Array, slots: int, limit: int, lean: float) -> Whole:
    """The counts a little before dealing ends: who has load / (c + lean) above a threshold gets one more, by bisection.

    Dealing one by one goes through these very counts, ties aside: what is left out here it deals.
    """
    high = loads.max(axis=1, keepdims=True) / (1.0 + lean)
    low, counts = np.zeros_like(high), np.ones(loads.shape, dtype=np.int64)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        wanted = np.ceil(loads / np.maximum(middle, 1e-300) - lean)
        trial = np.clip(wanted, 1, limit).astype(np.int64)
        trial -= (trial > 1) & (loads <= middle * (trial - 1 + lean))  # what rounding gave too many
        fits = trial.sum(axis=1, keepdims=True) <= slots
        counts = np.where(fits, trial, counts)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return counts


def lightest_heaviest(loads: Array, *, slots: int) -> Array:
    """The least load that the heaviest replica can have, whatever the counts: (rows,)."""
    heaviest: Array = (loads / replicas(loads, slots=slots, most=slots)).max(axis=1)
    return heaviest
