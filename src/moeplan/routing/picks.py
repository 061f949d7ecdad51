"""The law of one token's picks: top_k distinct experts with given probabilities, perhaps inside a few groups.

Conditional Poisson sampling, which is the law of largest entropy that has these probabilities: P(S) ∝ Π_{e∈S} w_e over
sets S of top_k experts (Hájek 1964; Chen, Dempster and Liu 1994). Under a group limit, P(G, S) is the same for every
choice G of groups that holds S. Uniform popularity gives every set, or every G and then every set in it, the same
chance. A product of polynomials Π (1 − o_e + o_e z) counts picks: no approximation, and no sampling.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array
from moeplan.routing.coverage import NO_LIMIT, GroupLimit
from moeplan.routing.popularity import Popularity

MOST_STEPS = 300
MEMORY = 8  # steps that Anderson mixing looks back on
NEAR_ENOUGH = 1e-10
ACCEPTED = 1e-6  # close to what no law can reach the steps become short
EDGE = 1e-12  # of log-odds that are compared


class Picks(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """bias: (groups, experts of a group), o_e of the coin of each expert, whose odds are w_e."""

    bias: Array
    top_k: int
    taken: int

    @cached_property
    def suffix(self) -> Array:
        """Chance of j picks among the experts from e on: (groups, experts of a group + 1, top_k + 1)."""
        return _prefix(self.bias[:, ::-1], self.top_k)[:, ::-1]

    @cached_property
    def passed(self) -> Array:
        """Weight of a group left out: Π (1 − o_e)."""
        result: Array = np.prod(1.0 - self.bias, axis=1)
        return result

    @cached_property
    def after(self) -> Array:
        """Weight of taking a groups and j experts from group g on: (groups + 1, taken + 1, top_k + 1)."""
        return self._chain(range(len(self.bias) - 1, -1, -1))[::-1]

    @property
    def total(self) -> float:
        """Weight of all allowed picks."""
        return float(self.after[0, self.taken, self.top_k])

    @cached_property
    def within(self) -> Array:
        """Weight, beside the group's own, of a token that takes the group and j experts in it: (groups, top_k + 1)."""
        before = self._chain(range(len(self.bias)))
        rest = np.zeros((len(self.bias), self.top_k + 1))
        for group in range(len(self.bias)):
            joined = _times(before[group], self.after[group + 1])
            rest[group] = joined[self.taken - 1, ::-1]
        return rest

    def probability(self) -> Array:
        """Probability of every expert, in the order of experts."""
        prefix = _prefix(self.bias, self.top_k)[:, :-1]
        index = np.add.outer(np.arange(self.top_k), np.arange(self.top_k)) + 1
        hankel = np.where(index <= self.top_k, self.within[:, np.minimum(index, self.top_k)], 0.0)
        others = np.einsum("gei,gil,gel->ge", prefix[..., :-1], hankel, self.suffix[:, 1:, :-1], optimize=True)
        result: Array = (self.bias * others / self.total).ravel()
        return result

    def on_ranks(self, shares: Array) -> Array:
        """Chance that a token sends i of its picks to a rank: (ranks, top_k + 1).

        shares: (ranks, experts), the part of an expert's picks that a rank's replicas serve.
        """
        groups, size = self.bias.shape
        part = shares.reshape(len(shares), groups, size)
        total = np.zeros((len(shares), self.taken + 1, self.top_k + 1, self.top_k + 1))  # groups, picks, picks here
        total[:, 0, 0, 0] = 1.0
        for group in range(groups):
            inside = _local(self.bias[group], part[:, group], self.top_k)
            taken = total[:, :-1]
            total = total * self.passed[group]
            for picks, here in zip(*np.nonzero(inside.any(axis=0)), strict=True):
                weight = inside[:, picks, here, None, None, None]
                kept = taken[..., : self.top_k + 1 - picks, : self.top_k + 1 - here]
                total[:, 1:, picks:, here:] += weight * kept
        result: Array = total[:, self.taken, self.top_k] / self.total
        return result

    def _chain(self, order: range) -> Array:
        chain = np.zeros((len(self.bias) + 1, self.taken + 1, self.top_k + 1))
        chain[0, 0, 0] = 1.0
        for step, group in enumerate(order):
            chosen = np.zeros((self.taken + 1, self.top_k + 1))
            chosen[1] = self.suffix[group, 0]
            chosen[0, 0] = self.passed[group]
            chain[step + 1] = _times(chain[step], chosen)
        return chain


def picks(popularity: Popularity, limit: GroupLimit = NO_LIMIT) -> Picks:
    """Find the coins whose conditional law gives every expert its probability: to 1e-10, or 1e-6 at a limit's edge.

    The log-odds move by log-odds wanted minus reached, and Anderson mixing (1965) over the last steps makes that quick
    where experts of a group move together. Raises InputError when the limit does not fit the model, when no law under
    it has such probabilities, or when none was found.
    """
    faults = limit.faults(experts=popularity.experts, top_k=popularity.top_k)
    if faults:
        raise InputError("picks", faults)
    target = popularity.probability.reshape(limit.count, -1)
    start = Picks(bias=target, top_k=popularity.top_k, taken=limit.taken)
    if popularity.is_uniform:
        return start
    _check_reachable(popularity, target, limit)
    free = (target > 0) & (target < 1)
    wanted = _logit(np.where(free, target, 0.5))
    search = _Search(wanted, free)
    best, least = start, np.inf
    for _ in range(MOST_STEPS):
        bias = np.where(free, 1.0 / (1.0 + np.exp(-np.clip(search.at, -700, 700))), target)
        found = Picks(bias=bias, top_k=popularity.top_k, taken=limit.taken)
        reached = found.probability().reshape(target.shape) if found.total > 0 else np.full(target.shape, np.nan)
        error = float(np.abs(reached - target).max())
        if error < NEAR_ENOUGH:
            return found
        if not np.isfinite(error):
            search.back()
            continue
        if error < least:
            best, least = found, error
        search.step(wanted - _logit(np.where(free, np.clip(reached, 1e-300, 1.0 - EDGE), 0.5)))
    if least < ACCEPTED:
        return best
    problem = f"found no law of {limit.taken} of {limit.count} groups for {popularity.name} (still off by {least:.1e})"
    raise InputError("picks", [Fault("popularity", problem, _WITHOUT)])


_WITHOUT = "spread the hot experts over the groups, or leave the group limit out (--no-group-limit)"


def _check_reachable(popularity: Popularity, target: Array, limit: GroupLimit) -> None:
    """A group is taken at least as often as its hottest expert, and as its load needs at top_k picks a time."""
    least = np.maximum(target.max(axis=1), target.sum(axis=1) / popularity.top_k)
    if least.sum() > limit.taken * (1.0 + EDGE):
        problem = f"{popularity.name} needs {least.sum():.2f} groups for a token, the limit takes {limit.taken}"
        raise InputError("picks", [Fault("popularity", problem, _WITHOUT)])


class _Search:
    """Anderson mixing of a fixed point: the steps taken, and what each of them moved on by."""

    def __init__(self, start: Array, free: NDArray[np.bool_]) -> None:
        self.at = start
        self._free = free
        self._size = 0.5
        self._seen: list[tuple[Array, Array]] = []

    def step(self, move: Array) -> None:
        """Go on from here, where the plain step would be `move`."""
        move = np.where(self._free, move, 0.0)
        self._seen = [*self._seen[1 - MEMORY :], (self.at, move)]
        points, moves = (np.array([pair[side].ravel() for pair in self._seen]) for side in (0, 1))
        plain = self.at + self._size * move
        if len(self._seen) > 1:
            across, along = np.diff(points, axis=0).T, np.diff(moves, axis=0).T
            weight = np.linalg.lstsq(along, moves[-1], rcond=EDGE)[0]
            plain = plain - ((across + self._size * along) @ weight).reshape(plain.shape)
        self.at = plain

    def back(self) -> None:
        """Return to the last point that had a law, forget the others, and go half as far from it."""
        if self._seen:
            (point, move), self._size = self._seen[-1], self._size / 2
            self._seen, self.at = [], point + self._size * move


def _logit(probability: Array) -> Array:
    result: Array = np.log(probability) - np.log1p(-probability)
    return result


def _prefix(bias: Array, top_k: int) -> Array:
    """Chance of j picks among the first e experts of each group: (groups, experts + 1, top_k + 1)."""
    groups, size = bias.shape
    chance = np.zeros((groups, size + 1, top_k + 1))
    chance[:, 0, 0] = 1.0
    for expert in range(size):
        odds = bias[:, expert, None]
        chance[:, expert + 1] = (1.0 - odds) * chance[:, expert]
        chance[:, expert + 1, 1:] += odds * chance[:, expert, :-1]
    return chance


def _local(bias: Array, shares: Array, top_k: int) -> Array:
    """Chance of j picks in one group of which i are served by each rank: (ranks, top_k + 1, top_k + 1)."""
    chance = np.zeros((len(shares), top_k + 1, top_k + 1))
    chance[:, 0, 0] = 1.0
    for expert, odds in enumerate(bias):
        here = odds * shares[:, expert, None, None]
        taken = chance[:, :-1]
        moved = (1.0 - odds) * chance
        moved[:, 1:] += (odds - here) * taken
        moved[:, 1:, 1:] += here * taken[..., :-1]
        chance = moved
    return chance


def _times(left: Array, right: Array) -> Array:
    """Product of two polynomials in groups and picks, cut at the shape of the left."""
    groups, picked = left.shape
    product = np.zeros_like(left)
    for a, j in zip(*np.nonzero(right), strict=True):
        product[a:, j:] += right[a, j] * left[: groups - a, : picked - j]
    return product
