"""A capacity factor: no expert takes more rows than a limit, and what is over is dropped."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array, Real
from moeplan.routing.popularity import Popularity
from moeplan.routing.row_law import RowLaws, row_laws

MOST_FACTOR = 1e6  # far above E / top_k, where nothing is dropped any more


class Capacity(Struct, frozen=True, kw_only=True, eq=False):
    """limit: rows an expert takes at most; dropped: expected rows over it, of tokens · top_k; full: experts over it."""

    limit: Real
    dropped: Real
    share: Real
    full: Real


def capacity(tokens: Real, *, factor: float, popularity: Popularity) -> Capacity:
    """Limit ⌈c·T·k/E⌉ per expert, and what it drops: Σ_e E[(m_e − limit)⁺], m_e ~ Binomial(T, p_e). Exact.

    Raises InputError for a factor that is not positive.
    """
    check_factor(factor)
    probability, times = np.unique(popularity.probability, return_counts=True)
    rows = []
    for one in np.ravel(tokens):
        laws = row_laws(np.stack([1.0 - probability, probability], axis=1), float(one))
        limit = capacity_limit(float(one) * popularity.top_k / popularity.experts, factor)
        dropped = float(times @ over(laws, limit))
        rows.append(
            (limit, dropped, dropped / max(one * popularity.top_k, 1), float(times @ (1.0 - laws.at_most(limit))))
        )
    columns = np.array(rows).T
    if not np.ndim(tokens):
        return Capacity(**dict(zip(("limit", "dropped", "share", "full"), columns[:, 0].tolist(), strict=True)))
    limit, dropped, share, full = (column.reshape(np.shape(tokens)) for column in columns)
    return Capacity(limit=limit, dropped=dropped, share=share, full=full)


def capacity_limit(mean_rows: float, factor: float | None) -> float:
    """⌈factor · mean⌉, at least one row; without a factor there is no limit."""
    return math.inf if factor is None else max(math.ceil(factor * mean_rows - 1e-9), 1)


def over(laws: RowLaws, limit: float) -> Array:
    """E[(rows − limit)⁺] of every law."""
    return laws.expected(np.maximum(laws.values - limit, 0.0))


def check_factor(factor: float | None) -> None:
    """Raise InputError unless the factor is a positive number or None."""
    if factor is not None and not 0 < factor <= MOST_FACTOR:
        fix = f"give a number above 0 and at most {MOST_FACTOR:g}; without one there is no limit"
        raise InputError("capacity", [Fault("capacity_factor", f"is {factor:g}", fix)])
