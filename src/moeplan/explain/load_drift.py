"""How fast loads drift: what a placement is worth windows later, and how often to rebalance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from moeplan.kinds import Array
from moeplan.routing.eplb import balanced_map

MOST_BASES = 12  # placements made: spread over the record


class Drift(Struct, frozen=True, kw_only=True):
    """S of a placement `lags` windows after the one it was made from, mean over layers; never: without balancing."""

    lags: tuple[int, ...]
    skew: tuple[float, ...]
    never: float


class Interval(Struct, frozen=True, kw_only=True):
    """Rebalance every so many windows: the step's time over that of a placement always fresh, the pause included."""

    windows: int
    seconds: float
    slowdown: float


def drift(windows: Array, *, slots: int, ranks: int, nodes: int = 1, groups: int = 1) -> Drift:
    """From loads (windows, layers, experts), at least two windows.

    A placement serves the windows after the one that it was made from: lag 1 is the first that can be had. Layers
    without load are left out.
    """
    rows = np.flatnonzero(windows.sum(axis=(0, 2)) > 0)
    loads = windows[:, rows]
    count = len(loads)
    bases = np.unique(np.linspace(0, count - 2, min(MOST_BASES, count - 1)).astype(int))
    later: dict[int, list[float]] = {}
    for base in bases:
        placed = balanced_map(loads[base], slots=slots, ranks=ranks, nodes=nodes, groups=groups)
        reached = placed.max_over_mean(loads[base:]).mean(axis=1)
        for lag, value in enumerate(reached):
            later.setdefault(lag, []).append(float(value))
    plain = balanced_map(np.zeros_like(loads[0]), slots=slots, ranks=ranks)  # without load: in order
    return Drift(
        lags=tuple(sorted(later)),
        skew=tuple(float(np.mean(later[lag])) for lag in sorted(later)),
        never=float(plain.max_over_mean(loads).mean()),
    )


def intervals(found: Drift, *, window_seconds: float, pause: float, share: float) -> list[Interval]:
    """The cost of every interval: (1/n)·Σ over its windows of the step's slowdown + pause / interval.

    slowdown of a step: 1 + f·(S/S_fresh − 1), with S_fresh that of lag 0. pause: seconds in which nothing is served.
    """
    fresh = found.skew[0]
    slow = [1.0 + share * (skew / fresh - 1.0) for skew in found.skew[1:]]
    return [
        Interval(
            windows=length,
            seconds=length * window_seconds,
            slowdown=float(np.mean(slow[:length])) + pause / (length * window_seconds),
        )
        for length in range(1, len(slow) + 1)
    ]


def best_interval(found: Sequence[Interval]) -> Interval:
    """The interval that costs least."""
    return min(found, key=lambda one: one.slowdown)
