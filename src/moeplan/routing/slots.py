"""Expert slots on the ranks of an EP group: how many, which ranks are full, how many rows each gets."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array, Real
from moeplan.routing.coverage import NO_LIMIT, GroupLimit


class Slots(Struct, frozen=True, kw_only=True, eq=False):
    """`total` expert slots over `ep` ranks; scalars or arrays.

    When ep does not divide total, the first `full_ranks` ranks hold `per_full_rank` slots and the others one less;
    every rank reserves memory for per_full_rank.
    """

    experts: int
    ep: Real
    total: Real

    @property
    def per_full_rank(self) -> Real:
        """Slots on a full rank, S = ⌈total / ep⌉."""
        return np.ceil(self.total / self.ep)

    @property
    def full_ranks(self) -> Real:
        """Ranks that hold S slots; the others hold S − 1."""
        return self.total - (self.per_full_rank - 1) * self.ep

    @property
    def redundant(self) -> Real:
        """Slots beyond one per expert."""
        return self.total - self.experts

    @property
    def imbalance(self) -> Real:
        """Slots of a full rank over the mean: 22 / 21.33 for 128 experts on 6 ranks."""
        return self.per_full_rank * self.ep / self.total


def deal(experts: int, ep: Real, redundant: Real | None = None) -> Slots:
    """Deal the experts to the ranks, with `redundant` replicas; None fills every rank up to ⌈experts / ep⌉ slots.

    Raises InputError when there is a rank without a slot.
    """
    if redundant is None:
        return Slots(experts=experts, ep=ep, total=np.ceil(experts / ep) * ep)
    total = experts + redundant
    if np.any(np.greater(ep, total)):
        least = int(np.max(ep)) - experts
        fix = f"give at least {least} redundant experts"
        problem = f"{int(np.min(total))} slots leave a rank of {int(np.max(ep))} empty"
        raise InputError("experts", [Fault("redundant", problem, fix)])
    return Slots(experts=experts, ep=ep, total=total + 0 * ep)


class ExpertLoad(Struct, frozen=True, kw_only=True, eq=False):
    """What the fullest rank computes in one layer: rows over the active ones of its slots."""

    rows: Real
    slots: Real
    active: Real
    mean_rows_per_slot: Real
    skew: Real = 1.0  # its rows over those that sampling alone gives it

    @property
    def rows_per_active(self) -> Real:
        """Rows of an active slot on the fullest rank: m of the grouped GEMM."""
        return self.rows / self.active


def expert_load(
    slots: Slots,
    *,
    tokens: Real,
    top_k: int,
    even: bool = False,
    limit: GroupLimit = NO_LIMIT,
    imbalance: Real = 1.0,
    active: Real | None = None,
) -> ExpertLoad:
    """Rows under uniform routing of `tokens` tokens of the whole EP group to top_k experts each.

    mean rows per slot = tokens·top_k / slots (grouped-GEMM article, eq. 5); a slot is active with
    1 − (1 − top_k/slots)^tokens (batch article, coverage). The fullest rank gets, on average, the mean R of a full rank
    plus z·σ + (z² − 1)/6 · σ²/R: z is what the largest of P normal numbers exceeds their mean by, σ² the variance of a
    rank's rows, more where a group limit sends several of a token's picks to one rank; the last term is for a law that
    leans to the right as Poisson's does (Cornish-Fisher). `even` leaves the noise out. imbalance: what the busiest rank
    has over the mean by heat and placement, if that is more. active: its slots with a row, where heat is known.
    Replicas share evenly.
    """
    mean = tokens * (top_k / slots.total)
    per_rank = mean * slots.per_full_rank
    rows = per_rank if even else per_rank + _excess(slots, tokens=tokens, top_k=top_k, limit=limit)
    uneven = bool(np.any(np.greater(imbalance, 1.0)))
    sampled = rows
    if uneven:
        rows = np.maximum(rows, imbalance * tokens * top_k / slots.ep)
    most = tokens * np.minimum(top_k, slots.per_full_rank)  # a token goes to an expert at most once
    rows = np.minimum(rows, most)
    if active is None:
        idle = np.exp(tokens * np.log1p(-np.minimum(top_k / slots.total, 1.0 - 1e-12)))
        active = slots.per_full_rank * (1.0 - idle)
    active = np.minimum(active, rows)
    return ExpertLoad(
        rows=rows,
        slots=slots.per_full_rank,
        active=active,
        mean_rows_per_slot=mean,
        skew=rows / np.minimum(sampled, most) if uneven else 1.0,
    )


def _excess(slots: Slots, *, tokens: Real, top_k: int, limit: GroupLimit) -> Real:
    """Rows of the fullest rank beyond the mean of a full one."""
    # The ranks' rows add up to a fixed sum: what one has more the others have less, which parts them by √(P/(P − 1)).
    apart = slots.ep / np.maximum(slots.ep - 1.0, 1.0)
    z = largest_of_normals(slots.full_ranks)
    # σ² goes with the tokens and so does R: of both only the root is taken over all axes.
    lean = (z * z - 1.0) / 6.0 * apart * _variance(slots, top_k=top_k, limit=limit) * slots.total
    wide = z * np.sqrt(apart * _variance(slots, top_k=top_k, limit=limit))
    return np.maximum(wide * np.sqrt(tokens) + lean / (top_k * slots.per_full_rank), 0.0)


def _variance(slots: Slots, *, top_k: int, limit: GroupLimit) -> Real:
    """Variance of how many of one token's picks go to a full rank, whose slots are neighbours."""
    held, total = slots.per_full_rank, slots.total
    pool = limit.taken * total / limit.count
    together = top_k * (top_k - 1) / np.maximum(pool * (pool - 1.0), 1.0)  # two of a pool's slots
    near = np.minimum(held, total / limit.count)  # slots of a rank in one group
    apart = (limit.taken - 1) / (limit.count - 1) if limit.count > 1 else 0.0
    pairs = held * ((near - 1.0) + (held - near) * apart) * (limit.taken / limit.count) * together
    mean = held * top_k / total
    return np.maximum(mean + pairs - mean * mean, 0.0)


def largest_of_normals(count: Real) -> Real:
    """How far the largest of `count` standard normal numbers lies above 0 on average, Φ⁻¹((n − ⅜) / (n + ¼)) (Blom)."""
    number = np.maximum(np.asarray(count, dtype=float), 1.0)
    every, place = np.unique(number, return_inverse=True)
    found: Array = np.array([_normal_quantile((n - 0.375) / (n + 0.25)) for n in every])[place].reshape(number.shape)
    return found if np.ndim(count) else float(found)


@lru_cache(maxsize=16_384)  # every piece of a search asks for the same ranks
def _normal_quantile(share: float) -> float:
    """Φ⁻¹ of a share from one half up, by Newton's steps, which from 0 never pass it; `statistics` loads for 10 ms."""
    found = 0.0
    for _ in range(60):
        missing = share - 0.5 * math.erfc(-found / math.sqrt(2.0))
        step = missing * math.sqrt(2.0 * math.pi) * math.exp(0.5 * found * found)
        found += step
        if step < 1e-13:
            break
    return found
