"""The largest of many numbers of rows: its mean and quantiles, in closed form or counted in draws."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.kinds import Array, Real
from moeplan.routing.row_law import SIDE, Largest, RowLaws

Whole = NDArray[np.int64]


class Extreme(Struct, frozen=True, kw_only=True, eq=False):
    """Mean, median and 99th percentile of a largest number of rows; standard_error: of a Monte Carlo mean, else 0."""

    mean: Real
    p50: Real
    p99: Real
    standard_error: Real = 0.0


def of_largest(law: Largest, *, least: float = 0.0, most: float = math.inf) -> Extreme:
    """Mean and quantiles of a law, and bounds that hold always: the largest is at least the mean of all."""
    low = math.ceil(least - 1e-9)
    first = min(law.first, low)
    grid = np.arange(first, max(law.first + len(law.below), low + 1))
    below, tail = (
        np.where(grid < low, 0.0, np.where(grid >= most, 1.0, _extended(chance, law.first - first, len(grid))))
        for chance in (law.below, law.tail)
    )
    p50, p99 = (float(grid[min(int(np.searchsorted(tail, share - 1e-12)), len(grid) - 1)]) for share in (0.5, 0.99))
    return Extreme(mean=first + float(np.sum(1.0 - below[:-1])), p50=p50, p99=p99)


def _extended(chance: Array, before: int, length: int) -> Array:
    """The chances with nothing below them and certainty above."""
    return np.concatenate([np.zeros(before), chance, np.ones(length)])[:length]


def of_draws(largest: Whole | Array) -> Extreme:
    """From one largest number per draw."""
    error = float(largest.std(ddof=1) / math.sqrt(len(largest))) if len(largest) > 1 else math.inf
    p50, p99 = (float(np.quantile(largest, q, method="inverted_cdf")) for q in (0.5, 0.99))
    return Extreme(mean=float(largest.mean()), p50=p50, p99=p99, standard_error=error)


def of_laws(laws: RowLaws, members: Whole, times: Array, *, total: float, most: float) -> Extreme:
    """The largest of numbers that share a fixed total: `times` of each of `members` make up all of it.

    One or two numbers: exact, for one is the total less the other. More: the laws are taken as independent, stretched
    for their mean correlation ρ = −Σσ² / ((Σσ)² − Σσ²), which is −1/(n − 1) for n alike. Against 100,000 draws of 256
    experts and top-8 on 8 to 64 ranks the mean is off by less than 0.1 % from 16 rows per number up and 0.7 % at one
    request per rank, by up to 1.6 % for 16 experts and 4 tokens; quantiles by a row at most.
    """
    count = float(times.sum())
    if count == 1:
        return Extreme(mean=total, p50=total, p99=total)
    if count == 2:
        law = int(members[0])
        reach = abs(float(laws.mean[law]) - total / 2) + (SIDE + 1) * float(laws.deviation[law]) + 2
        grid = np.arange(math.ceil(total / 2), math.ceil(min(total / 2 + reach, total)) + 1, dtype=float)
        chance = laws.one_at_most(law, grid) - laws.one_at_most(law, total - grid - 1)
        return of_largest(Largest(first=int(grid[0]), below=chance, tail=chance), least=total / 2, most=most)
    return of_largest(
        laws.largest(members, times, stretch=_stretch(laws, members, times)), least=total / count, most=most
    )


def _stretch(laws: RowLaws, members: Whole, times: Array) -> float:
    """√(1 − ρ) for laws whose sum is fixed."""
    deviation = laws.deviation[members]
    own = float(times @ deviation**2)
    cross = float(times @ deviation) ** 2 - own
    return math.sqrt(1.0 + min(own / cross, 1.0)) if own > 0 and cross > 0 else 1.0
