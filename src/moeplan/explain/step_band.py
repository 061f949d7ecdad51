"""How sure a predicted step is: a p10–p90 band of its seconds, and of the ratio of two steps on one chip.

Logarithms of times are what is added here. An operator's half-width h is the 80 % of its source's errors; a family is
all that one source, a fit or a table, answers for, and errs alike in all layers: w = Σ share of the step · h. Families
err apart: kernels = √Σ w². What whole steps do beyond the sum of their kernels is read off published ones
(validate.steps): nearly all ran longer than predicted, so it widens the band upwards alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from moeplan.explain.operators import costs_shown
from moeplan.kernels.origin import Origin
from moeplan.ops.cost import Cost
from moeplan.predict import Prediction

NORMAL: Final = 1.2816 / 1.6449  # what 80 % of normal errors stay under, over what 90 % do
# Half-widths, in logarithms, where a source states no error of its own: a measured row comes back within about that,
# rows left out of a table within the next two (docs/kernel-times.md); the last two are careful guesses.
UNSTATED: Final = {
    Origin.MEASURED: 0.03,
    Origin.INTERPOLATED: 0.05,
    Origin.EXTRAPOLATED: 0.10,
    Origin.FITTED: 0.20,
    Origin.ASSUMED: 0.50,
}
# Of whole steps, in logarithms: what leaves 10 % of the published rows above the band; and what leaves 10 % of the
# pairs of one source and chip outside it, not 20, since no published pair compares two layouts (band_coverage).
LONGER: Final = 0.23
PAIR: Final = 0.11


class Band(Struct, frozen=True, kw_only=True):
    """Where a figure lies in about 8 of 10 cases, low to high; of a ratio or of seconds, in the figure's own unit."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value lies inside, ends counted."""
        return self.low <= value <= self.high

    def of_rate(self, amount: float) -> Band:
        """The band of amount per second, from a band of seconds."""
        return Band(low=amount / self.high, high=amount / self.low)


def half_width(cost: Cost) -> float:
    """What 80 % of an operator's errors stay under, in logarithms: its source's stated error, else by its origin.

    What is assumed, a correction by hand too, takes the share of that origin: its source's error is of something else.
    """
    if cost.error is None or cost.origin is Origin.ASSUMED:
        return UNSTATED[cost.origin]
    return math.log1p(max(cost.error.p90 * NORMAL, UNSTATED[Origin.MEASURED]))


def families(step: Prediction) -> dict[str, float]:
    """By source, Σ share of the step · half-width of a scalar prediction; MTP passes err as the rest of the step."""
    shown: dict[str, float] = {}
    total = 0.0
    for cost, copies, share in costs_shown(step):
        seconds = float(cost.seconds) * copies * share
        total += seconds
        # Notes on how a source was carried to a shape follow the first semicolon.
        family = cost.source.split(";")[0]
        shown[family] = shown.get(family, 0.0) + seconds * half_width(cost)
    return {family: value / total for family, value in shown.items()}


def kernel_width(step: Prediction) -> float:
    """Half-width of a step by its kernels' errors alone, in logarithms: families in quadrature."""
    return _root(families(step))


def step_band(step: Prediction, *, longer: float = LONGER) -> Band:
    """The p10–p90 band of a scalar prediction's seconds; below, its kernels' errors, above, also what whole steps add.

    seconds · exp(−kernels) to seconds · exp(√(kernels² + longer²)).
    """
    seconds, kernels = float(step.seconds), kernel_width(step)
    return Band(low=seconds * math.exp(-kernels), high=seconds * math.exp(math.hypot(kernels, longer)))


def ratio_width(first: Prediction, second: Prediction) -> float:
    """Half-width of first over second on one chip by kernels alone: a source in both errs in both, so it cancels.

    √Σ (w of first − w of second)²: what is left of a shared family is by how much more one step rests on it.
    """
    left, right = families(first), families(second)
    return _root({name: left.get(name, 0.0) - right.get(name, 0.0) for name in left.keys() | right.keys()})


def ratio_band(first: Prediction, second: Prediction, *, pair: float = PAIR) -> Band:
    """The p10–p90 band of seconds of first over second, two steps on one chip; around their ratio alike both ways."""
    ratio = float(first.seconds) / float(second.seconds)
    width = math.hypot(ratio_width(first, second), pair)
    return Band(low=ratio * math.exp(-width), high=ratio * math.exp(width))


def _root(widths: Mapping[str, float]) -> float:
    return math.sqrt(sum(value * value for value in widths.values()))
