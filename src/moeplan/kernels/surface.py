"""Interpolation of measured efficiency over two logarithmic axes."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.kernels.origin import Origin
from moeplan.kinds import Array, Real


class Surface(Struct, frozen=True, eq=False):
    """Efficiency at the nodes of a grid; every axis in logarithms, ascending.

    Measured points need not form a grid: each series is a curve of its own, carried to the lines of all series by
    interpolation along itself, constant beyond its ends. measured: which nodes are points, not carried over.
    """

    series: Array  # (S,)
    line: Array  # (L,)
    value: Array  # (S, L)
    measured: NDArray[np.bool_]  # (S, L)

    @classmethod
    def of(cls, points: list[tuple[float, float, float]]) -> Surface:
        """Build from (series, line, efficiency) of measured points, all positive; equal points are averaged."""
        curves: dict[float, dict[float, list[float]]] = {}
        for series, line, efficiency in points:
            curves.setdefault(series, {}).setdefault(line, []).append(efficiency)
        lines = np.log(sorted({line for curve in curves.values() for line in curve}))
        value, measured = [], []
        for _, curve in sorted(curves.items()):
            own = np.log(sorted(curve))
            value.append(np.interp(lines, own, [float(np.mean(curve[key])) for key in sorted(curve)]))
            measured.append(np.isin(lines, own))
        return cls(np.log(sorted(curves)), lines, np.array(value), np.array(measured))

    def at(self, series: Real, line: Real) -> tuple[Real, Origin]:
        """Return the efficiency and its origin, for values (not logarithms) that broadcast together.

        Linear in both logarithms between nodes. Beyond the ends the nearest value holds: it is a fraction of the
        roofline, not a time, that is carried outside.
        """
        log_series, log_line = np.log(series), np.log(line)
        # First along the series, of which a grid has few values: a curve over the lines for each of them.
        low, share = _place(self.series, log_series)
        above = np.minimum(low + 1, self.series.size - 1)
        curves = self.value[low] + np.asarray(share)[..., None] * (self.value[above] - self.value[low])
        slopes = np.diff(curves, axis=-1, append=curves[..., -1:])
        low_line, share_line = _place(self.line, log_line)
        start = np.arange(low.size).reshape(low.shape) * self.line.size
        at = start + low_line
        value: Real = curves.ravel()[at] + share_line * slopes.ravel()[at]
        return (value if np.ndim(value) else float(value)), self._origin(log_series, log_line)

    def _origin(self, series: Real, line: Real) -> Origin:
        if _outside(series, self.series) or _outside(line, self.line):
            return Origin.EXTRAPOLATED
        if np.ndim(series) or np.ndim(line):
            return Origin.INTERPOLATED
        nodes = np.arange(self.series.size)
        weighing = np.abs(nodes - np.interp(series, self.series, nodes)) < 1 - 1e-9
        if any(_outside(line, self.line[measured]) for measured in self.measured[weighing]):
            return Origin.EXTRAPOLATED  # a curve that weighs in ends before this line
        on_series, on_line = np.isclose(self.series, series, atol=1e-9), np.isclose(self.line, line, atol=1e-9)
        return Origin.MEASURED if bool(self.measured[np.ix_(on_series, on_line)].any()) else Origin.INTERPOLATED


def _place(nodes: Array, value: Real) -> tuple[NDArray[np.intp], Real]:
    """Index of the node below each value, and how far it is to the next one, 0 to 1; clipped at the ends."""
    position = np.interp(value, nodes, np.arange(nodes.size))
    low = np.asarray(position).astype(np.intp)
    return low, position - low


def _outside(value: Real, nodes: Array) -> bool:
    return bool(np.min(value) < nodes[0] - 1e-9 or np.max(value) > nodes[-1] + 1e-9)
