"""The exact law of rows: a number that every token adds to, independently of the others."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.kinds import Array

Whole = NDArray[np.int64]
SIDE = 12.0  # standard deviations kept on either side; what lies beyond folds back, and is less than 1e-15
LEAST_WIDTH = 64
FAR = 20.0  # rows beyond SIDE deviations that a rare event may reach: P(Poisson(0.01) > 20) is 1e-62


class Largest(Struct, frozen=True, kw_only=True, eq=False):
    """P(largest ≤ first + n): `below` has the better mean, `tail` the better quantiles.

    tail is no less than 1 − Σ P(rows > x), a bound that holds however the laws lean on each other, and is met far out.
    """

    first: int
    below: Array
    tail: Array


class RowLaws(Struct, frozen=True, kw_only=True, eq=False):
    """P(rows ≤ first + n) of several laws: below (laws, width), first (laws,)."""

    first: Whole
    below: Array
    mean: Array
    deviation: Array

    @property
    def at(self) -> Array:
        """P(rows = first + n): (laws, width)."""
        return np.diff(self.below, axis=1, prepend=0.0)

    @property
    def values(self) -> Array:
        """The numbers of rows that the columns stand for: (laws, width)."""
        return self.first[:, None] + np.arange(self.below.shape[1], dtype=float)

    def at_most(self, rows: float) -> Array:
        """P(rows ≤ x) of every law."""
        result: Array = self._read(np.arange(len(self.first)), np.array([rows]))[:, 0]
        return result

    def one_at_most(self, law: int, rows: Array) -> Array:
        """P(rows ≤ x) of one law at many x."""
        result: Array = self._read(np.array([law]), rows)[0]
        return result

    def expected(self, values: Array) -> Array:
        """E[f(rows)] of every law, given f at `values`."""
        result: Array = (self.at * values).sum(axis=1)
        return result

    def quantile(self, share: float, weights: Array) -> int:
        """Fewest rows x with P(rows ≤ x) ≥ share when a law is drawn with these weights."""
        part = weights / weights.sum()
        low: int = int(self.first.min()) - 1
        high: int = int(self.first.max()) + int(self.below.shape[1])
        while high - low > 1:
            middle = (low + high) // 2
            enough = float(part @ self.at_most(middle)) >= share - 1e-12
            low, high = (low, middle) if enough else (middle, high)
        return high

    def largest(self, members: Whole, times: Array, *, stretch: float = 1.0) -> Largest:
        """The law of the largest of `times` draws from each of `members`, which lean on each other.

        stretch widens every law about its mean: √(1 − ρ) for a mean correlation ρ, which for normal laws makes the mean
        of the largest exact.
        """
        reach = max(stretch, 1.0) * (SIDE * self.deviation + FAR)
        low, top = (self.mean - reach)[members].max(), (self.mean + reach)[members].max()
        grid = np.arange(max(math.floor(low), 0), math.ceil(top) + 1, dtype=float)
        near = (self.mean + reach)[members] >= grid[0]  # the others never are the largest
        members, times = members[near], times[near]
        mean = self.mean[members, None]
        alone = self._read(members, grid)
        leaning = alone if stretch == 1 else self._between(members, mean + (grid + 0.5 - mean) / stretch)
        with np.errstate(divide="ignore"):
            log_below = times @ np.maximum(np.log(leaning), -1e300)
        below: Array = np.exp(log_below)
        return Largest(first=int(grid[0]), below=below, tail=np.maximum(below, 1.0 - times @ (1.0 - alone)))

    def _read(self, members: Whole, grid: Array) -> Array:
        index = (grid[None, :] - self.first[members, None]).astype(np.int64)
        found = self.below[members[:, None], np.clip(index, 0, self.below.shape[1] - 1)]
        return np.where(index < 0, 0.0, found)

    def _between(self, members: Whole, edges: Array) -> Array:
        """P(rows ≤ x) as a line between the half rows, for x no whole number."""
        place = edges - 0.5 - self.first[members, None]
        index = np.floor(place).astype(np.int64)
        width = self.below.shape[1]
        rows = members[:, None]
        low = np.where(index < 0, 0.0, self.below[rows, np.clip(index, 0, width - 1)])
        high = np.where(index < -1, 0.0, self.below[rows, np.clip(index + 1, 0, width - 1)])
        result: Array = low + (place - index) * (high - low)
        return result


def row_laws(per_token: Array, tokens: float) -> RowLaws:
    """The law of the sum over `tokens` independent tokens; per_token: (laws, most per token + 1), a chance each.

    The characteristic function of one token to the power `tokens`, turned back by a Fourier transform on a window of at
    least ±12 standard deviations: exact to about 1e-12 in P. With two columns it is the binomial law.
    """
    counts = np.arange(per_token.shape[1], dtype=float)
    one = per_token @ counts
    mean = tokens * one
    deviation = np.sqrt(tokens * np.maximum(per_token @ counts**2 - one**2, 0.0))
    widths = 1 << np.ceil(np.log2(np.maximum(2 * SIDE * deviation + 2, LEAST_WIDTH))).astype(np.int64)
    first = np.maximum(np.floor(mean - widths / 2), 0).astype(np.int64)
    below = np.ones((len(mean), int(widths.max())))
    for width in np.unique(widths).tolist():
        alike = widths == width
        below[alike, :width] = _summed(per_token[alike], tokens, first[alike], width)
    return RowLaws(first=first, below=below, mean=mean, deviation=deviation)


def _summed(per_token: Array, tokens: float, first: Whole, width: int) -> Array:
    """P(sum ≤ first + n) for n below width."""
    step = np.arange(width // 2 + 1)
    turn = 2 * np.pi / width
    one_token = per_token @ np.exp(1j * turn * np.outer(np.arange(per_token.shape[1]), step))
    turned = turn * (np.outer(first % width, step) % width)
    power = np.abs(one_token) ** tokens * np.exp(1j * (tokens * np.angle(one_token) - turned))
    at = np.clip(np.fft.irfft(np.conj(power), n=width, axis=1), 0.0, None)
    below = np.cumsum(at, axis=1)
    result: Array = np.minimum(below / below[:, -1:], 1.0)
    return result
