"""Rows that a tiled kernel works on: whole tiles, whatever the rows in them."""

from __future__ import annotations

import math

import numpy as np

from moeplan.kinds import Real


def padded_rows(rows: Real, tile: int) -> Real:
    """⌈rows / tile⌉ · tile for a known number of rows (batch article, tile waste)."""
    result: Real = np.ceil(np.asarray(rows) / tile) * tile
    return result if np.ndim(rows) else float(result)


def expected_padded_rows(rows: Real, tile: Real) -> Real:
    """E[⌈M / tile⌉] · tile where M is random with mean `rows`, as routing makes it: variance = mean.

    E[⌈M/tile⌉] = Σ_j P(M > j·tile), by the normal approximation. Only the two edges around the mean are asked: those
    below count as passed, those above as not, which errs by less than 0.02 tiles up to 1,000 rows. At least one tile:
    an active group has a row.
    """
    mean = np.asarray(rows, dtype=float)
    below = np.floor(mean / tile)
    spread = np.sqrt(np.maximum(mean, 1e-12))
    over = mean - below * tile - 0.5  # the half row is the continuity correction
    passed = np.where(below > 0, _normal(over / spread), 1.0)
    result: Real = (below + passed + _normal((over - tile) / spread)) * tile
    return result if np.ndim(rows) else float(result)


def _normal(z: Real) -> Real:
    """Distribution function of the normal law, to 2e-4: a logistic with a cubic term (Page, 1977)."""
    exponent = np.clip(-math.sqrt(8 / math.pi) * z * (1 + 0.044715 * np.square(z)), -60.0, 60.0)
    result: Real = 1.0 / (1.0 + np.exp(exponent))
    return result
