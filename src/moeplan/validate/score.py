"""Errors of predictions, by family: how many, median, mean, 90th percentile, bias."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct


class Score(Struct, frozen=True, kw_only=True):
    """Relative errors predicted/measured − 1 of a family: of their sizes median, mean and p90; bias: their median."""

    family: str
    n: int
    median: float
    mean: float
    p90: float
    bias: float


def score(errors: Mapping[str, Iterable[float]]) -> list[Score]:
    """Score every family that has errors, in the order given."""
    result = []
    for family, values in errors.items():
        array = np.array(list(values), dtype=float)
        if array.size:
            sizes = np.abs(array)
            result.append(
                Score(
                    family=family,
                    n=int(array.size),
                    median=float(np.median(sizes)),
                    mean=float(np.mean(sizes)),
                    p90=float(np.quantile(sizes, 0.9)),
                    bias=float(np.median(array)),
                )
            )
    return result
