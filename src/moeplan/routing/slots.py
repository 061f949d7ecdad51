"""Expert slots on the ranks of an EP group: how many, which ranks are full, how many rows each gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeplan.errors import Fault, InputError
from moeplan.kinds import Real


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slots:
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


def deal(experts: int, ep: Real, redundant: int | None = None) -> Slots:
    """Deal the experts to the ranks, with `redundant` replicas; None fills every rank up to ⌈experts / ep⌉ slots.

    Raises InputError when there is a rank without a slot.
    """
    if redundant is None:
        return Slots(experts=experts, ep=ep, total=np.ceil(experts / ep) * ep)
    total = experts + redundant
    if np.any(np.greater(ep, total)):
        least = int(np.max(ep)) - experts
        fix = f"give at least {least} redundant experts"
        raise InputError("experts", [Fault("redundant", f"{total} slots leave a rank of {int(np.max(ep))} empty", fix)])
    return Slots(experts=experts, ep=ep, total=total + 0 * ep)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertLoad:
    """What the fullest rank computes in one layer: rows over the active ones of its slots."""

    rows: Real
    slots: Real
    active: Real
    mean_rows_per_slot: Real

    @property
    def rows_per_active(self) -> Real:
        """Rows of an active slot on the fullest rank: m of the grouped GEMM."""
        return self.rows / self.active


def expert_load(slots: Slots, *, tokens: Real, top_k: int, even: bool = False) -> ExpertLoad:
    """Rows under uniform routing of `tokens` tokens of the whole EP group to top_k experts each.

    mean rows per slot = tokens·top_k / slots (grouped-GEMM article, eq. 5); a slot is active with
    1 − (1 − top_k/slots)^tokens (batch article, coverage); the fullest rank gets the mean of a full rank plus
    √(2 ln P · mean), the sampling noise of the largest of P ranks (batch article, EPLB: √(2 ln P)/√rows), which `even`
    leaves out. Replicas share evenly.
    """
    per_rank = tokens * (top_k / slots.total * slots.per_full_rank)
    noise = 0.0 if even else np.sqrt(2.0 * np.log(np.maximum(slots.full_ranks, 1.0)) * per_rank)
    most = tokens * np.minimum(top_k, slots.per_full_rank)  # a token goes to an expert at most once
    rows = np.minimum(per_rank + noise, most)
    idle = np.exp(tokens * np.log1p(-np.minimum(top_k / slots.total, 1.0 - 1e-12)))
    active = np.minimum(slots.per_full_rank * (1.0 - idle), rows)
    return ExpertLoad(
        rows=rows,
        slots=slots.per_full_rank,
        active=active,
        mean_rows_per_slot=tokens * (top_k / slots.total),
    )
