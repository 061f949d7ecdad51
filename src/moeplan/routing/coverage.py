"""How many experts a step touches, and how far that strays: the share of expert weights that it must read."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array, Real


class GroupLimit(Struct, frozen=True, kw_only=True):
    """A token first takes `taken` of `count` equal groups of experts, all alike, then its experts inside them.

    1 of 1 is no limit. It leaves each expert's probability at top_k / experts, and so coverage and every expert's rows;
    it changes what happens together: experts of a group are idle together, a rank's rows scatter more, a token goes to
    fewer ranks.
    """

    count: int = 1
    taken: int = 1

    def faults(self, *, experts: int, top_k: int) -> list[Fault]:
        """Every rule that this limit breaks for such a model."""
        if self.count < 1 or experts % self.count:
            return [Fault("n_group", f"{self.count} groups do not divide {experts} experts", "give a divisor")]
        if not 1 <= self.taken <= self.count:
            return [Fault("topk_group", f"is {self.taken} of {self.count} groups", "1 ≤ topk_group ≤ n_group")]
        pool = self.taken * experts // self.count
        if top_k > pool:
            fix = f"at least {-(-top_k * self.count // experts)} groups"
            return [Fault("topk_group", f"{self.taken} groups hold {pool} experts for top_k {top_k}", fix)]
        return []

    def both(self, *, experts: int, top_k: int, same_group: bool) -> float:
        """Probability that a token goes to both of two experts, of one group or of two."""
        pool = self.taken * experts / self.count
        inside = top_k * (top_k - 1) / (pool * (pool - 1)) if top_k > 1 else 0.0
        if same_group:
            return self.taken / self.count * inside
        return self.taken * (self.taken - 1) / (self.count * (self.count - 1)) * inside if self.count > 1 else 0.0


NO_LIMIT = GroupLimit()


def coverage(tokens: Real, *, experts: int, top_k: int) -> Real:
    """C(T) = 1 − (1 − k/E)^T, the expected share of experts that T tokens touch (batch article, coverage).

    Exact for uniform routing to k distinct experts, with or without a group limit. T: tokens that meet in one EP group.

    Raises InputError for top_k outside 1…experts or tokens below 0.
    """
    faults = (
        [] if 1 <= top_k <= experts else [Fault("top_k", f"is {top_k} of {experts} experts", "1 ≤ top_k ≤ experts")]
    )
    _raise(faults + _token_faults(tokens))
    return coverage_of(tokens, np.full(1, top_k / experts))


def coverage_of(tokens: Real, probability: Array) -> Real:
    """Mean over experts of 1 − (1 − p_e)^T, where p_e is the probability that one token goes to expert e.

    Tokens are independent. tokens: any shape; probability: (experts,).

    Raises InputError for tokens below 0.
    """
    _raise(_token_faults(tokens))
    count = np.asarray(tokens, dtype=float)
    found = np.stack([_touched(one, probability).mean() for one in count.ravel()]).reshape(count.shape)
    return found if np.ndim(tokens) else float(found)


def active_experts(tokens: Real, probability: Array) -> Real:
    """Expected number of these experts, say a rank's, that T tokens touch: Σ_e 1 − (1 − p_e)^T."""
    return coverage_of(tokens, probability) * len(probability)


def tokens_for_coverage(share: Real, *, experts: int, top_k: int) -> Real:
    """Fewest tokens T with C(T) ≥ share: ⌈ln(1 − share) / ln(1 − k/E)⌉.

    Raises InputError for a share outside 0 ≤ share < 1.
    """
    if np.any(np.less(share, 0)) or np.any(np.greater_equal(share, 1)):
        raise InputError("coverage", [Fault("share", f"is {share}", "give a share from 0 to below 1")])
    if top_k >= experts:
        return np.where(np.greater(share, 0), 1.0, 0.0) if np.ndim(share) else float(np.greater(share, 0))
    result: Real = np.ceil(np.log1p(-np.asarray(share)) / np.log1p(-top_k / experts) - 1e-9)
    return result if np.ndim(share) else float(result)


def active_deviation(
    tokens: Real, *, experts: int, top_k: int, local: int | None = None, limit: GroupLimit = NO_LIMIT
) -> Real:
    """Standard deviation of the number of active experts among `local` neighbours, or among all.

    Exact for uniform routing: Var = n·i·(1 − i) + Σ over ordered pairs (1 − 2p + p₂)^T − i², i = (1 − p)^T, where p₂ is
    the probability of going to both; a group limit raises p₂ within a group and lowers it between groups.

    Raises InputError when the limit does not fit the model, or neither a group nor `local` divides the other.
    """
    count = experts if local is None else local
    faults = limit.faults(experts=experts, top_k=top_k)
    size = experts // max(limit.count, 1)
    if not faults and count % size and size % count:
        faults = [Fault("local", f"{count} experts straddle groups of {size}", "let one divide the other")]
    _raise(faults + _token_faults(tokens))
    number, probability = np.asarray(tokens, dtype=float), top_k / experts
    near = count * (min(count, size) - 1)
    idle = (1.0 - probability) ** number
    variance = count * idle * (1.0 - idle)
    for pairs, same in ((near, True), (count * (count - 1) - near, False)):
        both = limit.both(experts=experts, top_k=top_k, same_group=same)
        variance = variance + pairs * (np.maximum(1.0 - 2 * probability + both, 0.0) ** number - idle**2)
    result: Real = np.sqrt(np.maximum(variance, 0.0))
    return result if np.ndim(tokens) else float(result)


def _touched(tokens: float, probability: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        log_idle = tokens * np.log1p(-np.asarray(probability, dtype=float))
    result: Array = -np.expm1(np.where(tokens > 0, log_idle, 0.0))
    return result


def _token_faults(tokens: Real) -> list[Fault]:
    bad = not np.all(np.isfinite(tokens)) or np.any(np.less(tokens, 0))
    return [Fault("tokens", f"is {tokens}", "give 0 or more")] if bad else []


def _raise(faults: list[Fault]) -> None:
    if faults:
        raise InputError("coverage", faults)
