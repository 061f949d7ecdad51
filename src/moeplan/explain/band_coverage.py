"""How many published decode steps the bands of explain.step_band hold, and how many of a source that they never saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from msgspec import Struct

from moeplan.explain.step_band import LONGER, PAIR, kernel_width, ratio_width
from moeplan.predict import Prediction
from moeplan.specs.catalog import Catalog
from moeplan.validate.steps import StepRow, predict_row, published, row_of

OUTSIDE = 0.1  # of the rows above the band, of the pairs outside it


class BandRow(Struct, frozen=True, kw_only=True, eq=False):
    """A published figure and the step predicted for it; kernels: half-width of the step by its kernels alone."""

    row: StepRow
    step: Prediction
    kernels: float

    @property
    def longer(self) -> float:
        """Ln of the measured seconds over the predicted ones: above zero the step ran longer."""
        return math.log1p(self.row.error)

    @property
    def needed(self) -> float:
        """What `longer` of a whole step the band needs to hold this row."""
        return math.sqrt(max(self.longer**2 - self.kernels**2, 0.0)) if self.longer > 0 else 0.0

    def inside(self, longer: float) -> bool:
        """Whether the band with that term of whole steps holds the row."""
        return -self.kernels <= self.longer <= math.hypot(self.kernels, longer)


class BandCoverage(Struct, frozen=True, kw_only=True):
    """Rows; pairs: of two different steps of one source and chip, what their bands need beside the kernels."""

    rows: tuple[BandRow, ...]
    pairs: tuple[float, ...]

    @property
    def inside(self) -> int:
        """Rows that the band holds."""
        return sum(item.inside(LONGER) for item in self.rows)

    @property
    def shorter(self) -> int:
        """Rows that ran faster than the band's lower end."""
        return sum(item.longer < -item.kernels for item in self.rows)

    @property
    def pairs_inside(self) -> int:
        """Pairs whose ratio the band of a ratio holds."""
        return sum(needed <= PAIR for needed in self.pairs)

    def unseen(self) -> dict[str, tuple[int, int]]:
        """By source: rows inside a band calibrated on the other sources, and all its rows."""
        found = {}
        for group in dict.fromkeys(item.row.group for item in self.rows):
            longer = calibrated([item.needed for item in self.rows if item.row.group != group])
            own = [item for item in self.rows if item.row.group == group]
            found[group] = sum(item.inside(longer) for item in own), len(own)
        return found


def calibrated(needed: Sequence[float]) -> float:
    """The least term that leaves no more than OUTSIDE of the rows, or pairs, beyond the band."""
    return float(np.quantile(needed, 1.0 - OUTSIDE, method="inverted_cdf"))


def band_coverage(catalog: Catalog) -> BandCoverage:
    """Predict every row of data/observations/decode_steps.csv and put its band beside it."""
    rows, chips = [], []
    for row in published(catalog):
        if not row["left_out"]:
            step = predict_row(catalog, row)
            rows.append(BandRow(row=row_of(row, step), step=step, kernels=kernel_width(step)))
            chips.append((row["group"], row["gpu"]))
    pairs = []
    for (one, chip), (other, its) in combinations(zip(rows, chips, strict=True), 2):
        # Two figures of one step say nothing of a comparison.
        if chip == its and not math.isclose(float(one.step.seconds), float(other.step.seconds), rel_tol=1e-6):
            apart = one.longer - other.longer
            kernels = ratio_width(one.step, other.step)
            pairs.append(math.sqrt(max(apart**2 - kernels**2, 0.0)))
    return BandCoverage(rows=tuple(rows), pairs=tuple(pairs))
