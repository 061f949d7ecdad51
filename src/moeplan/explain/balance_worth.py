"""What balancing experts is worth: how uneven the ranks are and why, what is left after, and what a step gains.

The layer waits for its fullest rank, so its time goes with S = load of the fullest rank over the mean. S has two parts:
a statistical one, for few experts per rank do not average out, and hot spots, where the hot ones meet by bad luck or
order. Balancing takes off both, not what sampling puts on in every step (batch article, EPLB).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from moeplan.explain.batch_article import gain_of_balancing, sampling_floor, statistical_skew, turning_tile
from moeplan.kinds import Array, Real
from moeplan.routing.expert_map import ExpertMap
from moeplan.routing.rank_rows import rank_rows

DRAWS = 200
SEED = 20260101
BATCHES = (8, 32, 128, 512)


class SkewParts(Struct, frozen=True, kw_only=True):
    """S0, means over the layers, and where it comes from.

    seen: of the placement at hand. formula: 1 + √(2 ln P)·CV_e/√e. dealt: mean over the same loads dealt to slots at
    random, the statistical part exactly. hot_spot: seen over dealt, above 1 where the placement is worse than chance.
    """

    seen: float
    formula: float
    dealt: float
    variation: float
    experts_per_rank: float

    @property
    def hot_spot(self) -> float:
        """What the placement does beyond chance."""
        return self.seen / self.dealt


class Gain(Struct, frozen=True, kw_only=True):
    """A step's speed-up when its balanceable share goes from S0 to S1; batch: of a rank, None for many tokens.

    floor: √(2 ln P)/√(B·k), what sampling alone puts on the fullest rank; only a larger batch lowers it.
    """

    batch: int | None
    before: float
    after: float
    share: float
    floor: float

    @property
    def layers(self) -> float:
        """Of the share that balances alone."""
        return self.before / self.after

    @property
    def step(self) -> float:
        """Of the whole step: 1 / (f/(S0/S1) + 1 − f)."""
        return float(gain_of_balancing(self.share, self.layers))


class Scenario(Struct, frozen=True, kw_only=True):
    """A line of the batch article's comparison: three factors, S0 and S1, the gain, and what was measured."""

    name: str
    ranks: int
    variation: float
    experts_per_rank: int
    share: float
    before: float
    after: float
    measured: float | None = None

    @property
    def formula(self) -> float:
        """S0 of the statistical part."""
        return statistical_skew(self.ranks, self.variation, self.experts_per_rank)

    @property
    def gain(self) -> float:
        """Of the step."""
        return float(gain_of_balancing(self.share, self.before / self.after))

    @property
    def needed(self) -> float | None:
        """S0/S1 that the measured gain takes at this share."""
        return None if self.measured is None else ratio_needed(self.measured, self.share)


# The batch article's two scenarios; the second is SGLang's decode on 72 ranks (LMSYS, 2025-05-05).
SCENARIOS = (
    Scenario(
        name="near-uniform, EP32",
        ranks=32,
        variation=0.35,
        experts_per_rank=8,
        share=0.6,
        before=statistical_skew(32, 0.35, 8),
        after=1.12,
    ),
    Scenario(
        name="heavy tail, EP72",
        ranks=72,
        variation=1.3,
        experts_per_rank=4,
        share=0.85,
        before=2.6,
        after=1.05,
        measured=2.54,
    ),
)


def eplb_gain(*, before: Real, after: Real, share: Real) -> Real:
    """1 / (f/(S0/S1) + 1 − f) (batch article, EPLB). Near-uniform routing leaves only the floor: about 1.0."""
    return gain_of_balancing(share, before / after)


def ratio_needed(gain: float, share: float) -> float:
    """S0/S1 for a step's gain: f / (1/g − (1 − f)); infinite where the share is too small."""
    left = 1.0 / gain - (1.0 - share)
    return share / left if left > 0 else float("inf")


def skew_parts(loads: Array, placed: ExpertMap, *, draws: int = DRAWS, seed: int = SEED) -> SkewParts:
    """Split S0 of a placement; loads: (layers, experts), layers without load left out."""
    rows = np.flatnonzero(loads.sum(axis=1) > 0)
    loads = loads[rows]
    part = ExpertMap(expert=placed.expert[rows], experts=placed.experts, ranks=placed.ranks)
    rng = np.random.default_rng(seed)
    dealt = np.mean([part.max_over_mean(rng.permuted(loads, axis=1)).mean() for _ in range(draws)])
    variation = float((loads.std(axis=1) / loads.mean(axis=1)).mean())
    per_rank = placed.slots / placed.ranks
    return SkewParts(
        seen=float(part.max_over_mean(loads).mean()),
        formula=statistical_skew(placed.ranks, variation, per_rank),
        dealt=float(dealt),
        variation=variation,
        experts_per_rank=per_rank,
    )


def gains(
    loads: Array, before: ExpertMap, after: ExpertMap, *, top_k: int, share: float, batches: tuple[int, ...] = BATCHES
) -> list[Gain]:
    """What the step gains, for many tokens first, then with the sampling of each batch per rank.

    S is the mean over layers of the fullest rank's rows over the mean, so layers weigh alike.
    """
    rows = np.flatnonzero(loads.sum(axis=1) > 0)
    pair = [ExpertMap(expert=one.expert[rows], experts=one.experts, ranks=one.ranks) for one in (before, after)]
    limit = [float(one.max_over_mean(loads[rows]).mean()) for one in pair]
    found = [Gain(batch=None, before=limit[0], after=limit[1], share=share, floor=0.0)]
    for batch in batches:
        tokens = float(batch * before.ranks)
        seen = [float(rank_rows(loads[rows], one, tokens=tokens, top_k=top_k).imbalance.mean()) for one in pair]
        floor = float(sampling_floor(before.ranks, batch * top_k))
        found.append(Gain(batch=batch, before=seen[0], after=seen[1], share=share, floor=floor))
    return found


def rows_per_expert(*, ep: Real, batch: Real, experts: int, top_k: int) -> Real:
    """Rows of an expert in the mean: EP · B · k / E."""
    return ep * batch * top_k / experts


class RowsPerExpert(Struct, frozen=True, kw_only=True):
    """Rows of an expert at a batch per rank, the ridge of the chip in rows, and which of the two binds its products."""

    batch: int
    rows: float
    ridge: float
    binds: str


def rows_of_experts(
    batches: tuple[int, ...],
    *,
    ep: int,
    experts: int,
    top_k: int,
    peak: float,
    bandwidth: float,
    bytes_per_weight: float,
) -> list[RowsPerExpert]:
    """At every batch; peak in FLOP/s, bandwidth in bytes/s."""
    chip = {"peak": peak, "bandwidth": bandwidth, "bytes_per_weight": bytes_per_weight}
    ridge = turning_tile(peak / bandwidth, bytes_per_weight)
    found = []
    for batch in batches:
        rows = float(rows_per_expert(ep=ep, batch=batch, experts=experts, top_k=top_k))
        found.append(RowsPerExpert(batch=batch, rows=rows, ridge=ridge, binds=binds(rows, **chip)))
    return found


def binds(rows: float, *, peak: float, bandwidth: float, bytes_per_weight: float) -> str:
    """«compute» where an expert has more rows than the ridge, peak/bandwidth · bpp/2, else «memory».

    Below the ridge reading the weights takes longer than multiplying: balancing rows then helps the GEMMs less, and the
    all-to-all still.
    """
    return "compute" if rows > turning_tile(peak / bandwidth, bytes_per_weight) else "memory"
