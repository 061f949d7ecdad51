"""Rows and active experts of every rank in a step, under recorded loads and a placement."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from moeplan.kinds import Array, Real
from moeplan.routing.expert_map import ExpertMap

ALONE, GROUPS = 32, 48  # ranks that count one by one, and groups of the others, where there are more than both
REACH, POINTS = 9.0, 48  # standard deviations around the means, and points on them, of the integral for the largest


class RankRows(Struct, frozen=True, kw_only=True, eq=False):
    """Of a step, in arrays over the axes of tokens, then layers; `active` over ranks as well.

    mean: rows of a rank; expected: of the rank that expects most; busiest: mean of the most rows of any rank, sampling
    included; active: slots with a row.
    """

    mean: Array
    expected: Array
    busiest: Array
    active: Array

    @property
    def placed(self) -> Array:
        """What the placement alone leaves: expected over mean, S1 of the batch article for many tokens."""
        result: Array = self.expected / self.mean
        return result

    @property
    def imbalance(self) -> Array:
        """Rows of the busiest rank over the mean, sampling included."""
        result: Array = self.busiest / self.mean
        return result


def rank_rows(loads: Array, placed: ExpertMap, *, tokens: Real, top_k: int) -> RankRows:
    """Rows for `tokens` tokens of the whole EP group (any shape), each to top_k experts in proportion to the loads.

    loads: (layers, experts). An expert gets at most a row per token: p_e = min(1, k·load/Σ), what is cut is not dealt
    out. A rank's rows have the mean T·Σp/c of its slots. That the rows of all ranks add up to a fixed number makes
    them lean on each other; their largest is that of independent normals with variance = mean, which is exact in the
    first two moments of the differences between ranks for independent picks. Replicas take turns at random.
    """
    total = loads.sum(axis=1, keepdims=True)
    share = np.divide(loads, total, out=np.full_like(loads, 1.0 / loads.shape[1]), where=total > 0)
    chance = np.minimum(top_k * share, 1.0)
    count = np.asarray(tokens, dtype=float)[..., None, None]
    slots = placed.slot_loads(chance)
    rows = placed.rank_loads(chance) * count
    with np.errstate(divide="ignore"):
        hit = -np.expm1(count * np.log1p(-np.minimum(slots, 1.0)))
    active = hit.reshape(*hit.shape[:-1], placed.ranks, -1).sum(axis=-1)
    return RankRows(mean=rows.mean(axis=-1), expected=rows.max(axis=-1), busiest=largest_rows(rows), active=active)


def largest_rows(rows: Array) -> Array:
    """Mean of the most rows of any rank, from the rows that each expects over the last axis; see rank_rows."""
    means, times = _condensed(rows)
    deviation = np.sqrt(means)
    low = (means - REACH * deviation).max(axis=-1, keepdims=True)
    high = (means + REACH * deviation).max(axis=-1, keepdims=True)
    total = np.zeros(means.shape[:-1])
    step = (high - low)[..., 0] / POINTS
    for point in range(POINTS):  # the midpoint rule: smooth and flat at both ends
        here = low + (high - low) * ((point + 0.5) / POINTS)
        below = _normal((here - means) / np.maximum(deviation, 1e-300)) ** times
        total += (1.0 - below.prod(axis=-1)) * step
    result: Array = np.maximum(low[..., 0] + total, means.max(axis=-1))
    return result


def _condensed(rows: Array) -> tuple[Array, Array]:
    """Rows with how many ranks each stands for: of many ranks the fullest alone, the others in groups of neighbours."""
    ranks = rows.shape[-1]
    if ranks <= ALONE + GROUPS:
        return rows, np.ones(ranks)
    ordered = np.sort(rows, axis=-1)
    edges = np.linspace(0, ranks - ALONE, GROUPS + 1).astype(int)
    grouped = np.add.reduceat(ordered[..., : ranks - ALONE], edges[:-1], axis=-1) / np.diff(edges)
    times = np.concatenate([np.diff(edges), np.ones(ALONE)])
    return np.concatenate([grouped, ordered[..., ranks - ALONE :]], axis=-1), times


def _normal(x: Array) -> Array:
    """P(N < x) to 8e-8 (Abramowitz and Stegun, 26.2.17)."""
    size = np.abs(x)
    t = 1.0 / (1.0 + 0.2316419 * size)
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    upper = np.exp(-0.5 * size**2) / np.sqrt(2.0 * np.pi) * poly
    result: Array = np.where(x >= 0, 1.0 - upper, upper)
    return result
