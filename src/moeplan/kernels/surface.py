"""Interpolation of measured efficiency over two logarithmic axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeplan.kernels.origin import Origin
from moeplan.kinds import Array, Real


@dataclass(frozen=True, slots=True)
class Curve:
    """Efficiency over log(line), ascending; both of shape (points,)."""

    line: Array
    value: Array

    def at(self, line: Real) -> Real:
        """Linear between points, constant beyond the ends; `line` in logarithms."""
        result: Real = np.interp(line, self.line, self.value)
        return result


@dataclass(frozen=True, slots=True)
class Surface:
    """One curve over `line` for each value of `series`; both axes are logarithms.

    Points need not form a grid. Beyond the ends the nearest value holds: a fraction of the roofline, not a time, is
    carried outside.
    """

    series: Array
    curves: tuple[Curve, ...]

    @classmethod
    def of(cls, points: list[tuple[float, float, float]]) -> Surface:
        """Build from (series, line, efficiency) of measured points, all positive."""
        by_series: dict[float, dict[float, list[float]]] = {}
        for series, line, value in points:
            by_series.setdefault(series, {}).setdefault(line, []).append(value)
        curves = [
            Curve(np.log(sorted(lines)), np.array([float(np.mean(lines[key])) for key in sorted(lines)]))
            for _, lines in sorted(by_series.items())
        ]
        return cls(np.log(sorted(by_series)), tuple(curves))

    def at(self, series: Real, line: Real) -> tuple[Real, Origin]:
        """Return the efficiency and its origin, for values (not logarithms) that broadcast together."""
        log_series, log_line = np.log(series), np.log(line)
        if len(self.curves) == 1:
            value: Real = self.curves[0].at(log_line) + 0.0 * log_series
        else:
            value = self._between(log_series, log_line)
        return (value if np.ndim(value) else float(value)), self._origin(log_series, log_line)

    def _between(self, series: Real, line: Real) -> Real:
        """Weight every curve by its hat function at `series`: linear between neighbours, constant outside."""
        total: Real = 0.0
        for index, curve in enumerate(self.curves):
            weight = self._weight(index, series)
            if np.any(weight):
                total = total + weight * curve.at(line)
        return total

    def _weight(self, index: int, series: Real) -> Real:
        hat = np.zeros(len(self.curves))
        hat[index] = 1.0
        result: Real = np.interp(series, self.series, hat)
        return result

    def _covers(self, series: Real, line: Real) -> bool:
        """Whether every curve that weighs in reaches as far as `line`: the series need not end at the same line."""
        return not any(
            np.any(np.greater(self._weight(index, series), 1e-9) & _beyond(line, curve.line[0], curve.line[-1]))
            for index, curve in enumerate(self.curves)
        )

    def _origin(self, series: Real, line: Real) -> Origin:
        if _outside(series, self.series[0], self.series[-1]) or not self._covers(series, line):
            return Origin.EXTRAPOLATED
        hits = np.isclose(np.asarray(series)[..., None], self.series, atol=1e-9)
        if not hits.any(axis=-1).all():
            return Origin.INTERPOLATED
        if np.ndim(series) == 0 and np.ndim(line) == 0:
            curve = self.curves[int(np.argmax(hits))]
            return Origin.MEASURED if np.isclose(curve.line, line, atol=1e-9).any() else Origin.INTERPOLATED
        return Origin.INTERPOLATED


def _outside(value: Real, low: float, high: float) -> bool:
    return bool(np.any(_beyond(value, low, high)))


def _beyond(value: Real, low: float, high: float) -> NDArray[np.bool_]:
    return np.asarray(np.less(value, low - 1e-9) | np.greater(value, high + 1e-9))
