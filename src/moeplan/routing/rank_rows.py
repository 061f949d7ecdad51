"""Rows and active experts of every rank in a step, under recorded loads and a placement."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.kinds import Array, Real
from moeplan.routing.expert_map import ExpertMap

ALONE, GROUPS = 24, 24  # ranks that count one by one, and groups of the others, where there are more than both
CUTS = 4  # more groups than those, at the largest steps from rank to rank
BELOW, ABOVE, POINTS = 4.5, 6.5, 28  # standard deviations around the means, and points on them, of the integral


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
    deviation = np.maximum(np.sqrt(means), 1e-300)
    low = (means - BELOW * deviation).max(axis=-1, keepdims=True)
    high = (means + ABOVE * deviation).max(axis=-1, keepdims=True)
    x, step = (low - means) / deviation, (high - low) / POINTS / deviation
    x += 0.5 * step
    total = np.zeros(means.shape[:-1])
    for _ in range(POINTS):  # the midpoint rule: smooth and flat at both ends
        upper = _upper(x)
        total -= np.expm1((np.log1p(-upper) * times).sum(axis=-1))
        x += step
    total *= (high - low)[..., 0] / POINTS
    result: Array = np.maximum(low[..., 0] + total, means.max(axis=-1))
    return result


def _condensed(rows: Array) -> tuple[Array, Array]:
    """Rows with how many ranks each stands for: of many ranks the fullest alone, the others in groups of neighbours."""
    ranks = rows.shape[-1]
    if ranks <= ALONE + GROUPS:
        return rows, np.ones(ranks)
    ordered = np.sort(rows, axis=-1)
    steps = np.diff(ordered.reshape(-1, ranks)[:, : ranks - ALONE].mean(axis=0))
    edges = np.union1d(_edges(ranks - ALONE), np.argsort(steps)[-CUTS:] + 1)  # where levels change, a group ends
    grouped = np.add.reduceat(ordered[..., : ranks - ALONE], edges[:-1], axis=-1) / np.diff(edges)
    times = np.concatenate([np.diff(edges), np.ones(ALONE)])
    return np.concatenate([grouped, ordered[..., ranks - ALONE :]], axis=-1), times


def _edges(ranks: int) -> NDArray[np.int64]:
    """Where groups of the emptier ranks begin and end: the nearer to the fullest, the smaller, none empty."""
    spread = ranks * (1.0 - np.linspace(1.0, 0.0, GROUPS + 1) ** 1.5)
    least = np.arange(GROUPS + 1)
    result: NDArray[np.int64] = np.clip(spread.astype(np.int64), least, ranks - GROUPS + least)
    return result


def _upper(x: Array) -> Array:
    """P(N > x) to 8e-8 (Abramowitz and Stegun, 26.2.17), below 1."""
    t = np.abs(x)
    t *= 0.2316419
    t += 1.0
    np.reciprocal(t, out=t)
    tail = np.full_like(x, 1.330274429)
    for factor in (-1.821255978, 1.781477937, -0.356563782, 0.319381530):
        tail *= t
        tail += factor
    tail *= t
    density = np.square(x)
    density *= -0.5
    np.exp(density, out=density)
    tail *= density
    tail /= math.sqrt(2.0 * math.pi)
    result: Array = np.where(x >= 0.0, tail, 1.0 - tail)
    return np.minimum(result, 1.0 - 1e-16, out=result)
