"""Monte Carlo of a step's rows, from the same law as the closed forms, at a cost that does not grow with the tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeplan.kinds import Array
from moeplan.routing.picks import Picks
from moeplan.routing.placement import Placement

Whole = NDArray[np.int64]
SEED = 20260101


def draw_rows(picks: Picks, *, tokens: int, draws: int, seed: int = SEED) -> Whole:
    """Rows of every expert in `draws` steps of `tokens` tokens: (draws, experts), each row sums to tokens · top_k.

    Exact: tokens are counted by how many picks they have left. Walking along the experts, of those with j left a
    binomial number takes the expert at hand.
    """
    rng = np.random.default_rng(seed)
    rows = [_within(picks, group, left, rng) for group, left in enumerate(_groups(picks, tokens, draws, rng))]
    return np.concatenate(rows, axis=1)


def draw_slots(rows: Whole, placement: Placement, *, seed: int = SEED) -> Whole:
    """Rows of every slot, (draws, slots), from rows of experts: every row takes one of the replicas at random."""
    rng = np.random.default_rng((seed, 1))
    copies = placement.copies
    result = rows[:, placement.expert]
    for expert in np.flatnonzero(copies > 1):
        shares = np.full(copies[expert], 1.0 / copies[expert])
        result[:, placement.expert == expert] = rng.multinomial(rows[:, expert], shares)
    return result


def _groups(picks: Picks, tokens: int, draws: int, rng: np.random.Generator) -> list[Whole]:
    """Tokens that take j experts of each group: per group (draws, top_k + 1)."""
    groups, top_k = len(picks.bias), picks.top_k
    state = {(picks.taken, top_k): np.full(draws, tokens, dtype=np.int64)}
    found = []
    for group in range(groups):
        after, inside = picks.after[group + 1], picks.suffix[group, 0]
        here = np.zeros((draws, top_k + 1), dtype=np.int64)
        later: dict[tuple[int, int], Whole] = {}
        for (left, wanted), count in state.items():
            chance = np.zeros(wanted + 2)  # none, or 0 … wanted experts of this group
            chance[0] = picks.passed[group] * after[left, wanted]
            if left:
                chance[1:] = inside[: wanted + 1] * after[left - 1, wanted::-1]
            outcome = rng.multinomial(count, chance / chance.sum())
            here[:, : wanted + 1] += outcome[:, 1:]
            for taken in np.flatnonzero(chance):
                key = (left, wanted) if not taken else (left - 1, wanted - int(taken) + 1)
                later[key] = later.get(key, 0) + outcome[:, taken]
        state = later
        found.append(here)
    return found


def _within(picks: Picks, group: int, left: Whole, rng: np.random.Generator) -> Whole:
    """Rows of every expert of a group, given the tokens with j picks in it: (draws, experts of a group)."""
    bias, suffix = picks.bias[group], picks.suffix[group]
    rows = np.empty((len(left), len(bias)), dtype=np.int64)
    for expert, odds in enumerate(bias):
        chance = _share(odds * suffix[expert + 1, :-1], suffix[expert, 1:])
        taken = rng.binomial(left[:, 1:], chance)
        rows[:, expert] = taken.sum(axis=1)
        left[:, 1:] -= taken
        left[:, :-1] += taken
    return rows


def _share(part: Array, whole: Array) -> Array:
    share = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return np.clip(share, 0.0, 1.0)
