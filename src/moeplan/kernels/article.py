"""The MFU figures that the throughput article publishes, as a named set of efficiencies read from a data file."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.origin import Origin
from moeplan.kinds import Real


class LogCurve(Struct, frozen=True, kw_only=True):
    """Steps and slopes: `points` of (size, rate), linear in log2(size) between them, constant below and above."""

    points: tuple[tuple[float, ...], ...]
    above: float  # the rate from the last size on

    def at(self, size: Real) -> Real:
        """Return the rate at that size."""
        sizes, rates = zip(*self.points, strict=True)
        slope = np.interp(np.log2(size), np.log2(sizes), rates)
        return np.where(np.greater_equal(size, sizes[-1]), self.above, slope)


class Floor(Struct, frozen=True, kw_only=True):
    """A shape from which on a minimum MFU is granted: k above, the larger of m and n, the smaller of them."""

    k_above: float
    larger_from: float
    smaller_from: float
    rate: float
    peak: float


class ArticleFigures(Struct, frozen=True, kw_only=True):
    """Rates in the article's own unit (TFLOP/s) with the peak that they refer to; the ratio is the MFU."""

    source: str
    gemm_peak: float
    gemm_by_k: LogCurve
    gemm_by_mn: LogCurve
    gemm_floor: Floor
    grouped_peak: float
    grouped_rows: tuple[float, ...]
    grouped_gate_up: tuple[float, ...]
    grouped_down: tuple[float, ...]
    mla_rows: tuple[float, ...]
    mla_rate: tuple[float, ...]
    mla_peak: float
    mla_rate_h20: float
    mla_peak_h20: float

    def gemm(self, *, m: Real, n: Real, k: Real) -> Efficiency:
        """NVIDIA's A100 curve by the smallest dimension, with the article's floor for deep k (section GEMM MFU)."""
        by_k = self.gemm_by_k.at(k) / self.gemm_peak
        by_mn = self.gemm_by_mn.at(np.minimum(m, n)) / self.gemm_peak
        floor = self.gemm_floor
        granted = np.greater(k, floor.k_above) & np.greater_equal(np.maximum(m, n), floor.larger_from)
        granted = granted & np.greater_equal(np.minimum(m, n), floor.smaller_from)
        by_mn = np.where(granted, np.maximum(by_mn, floor.rate / floor.peak), by_mn)
        mfu = np.where(np.less(k, np.minimum(m, n)), by_k, by_mn)
        return self._efficiency(mfu, "A100 curve")

    def grouped_gemm(self, *, rows: Real, down: bool) -> Efficiency:
        """DeepGEMM's published rates by rows per expert, as steps (throughput article, MoE MFU)."""
        index = np.searchsorted(self.grouped_rows, rows, side="right") - 1
        rates = np.array(self.grouped_down if down else self.grouped_gate_up)
        return self._efficiency(rates[np.maximum(index, 0)] / self.grouped_peak, "DeepGEMM factors")

    def mla(self, *, heads_times_q: Real, h20: bool) -> Efficiency:
        """FlashMLA's factor by heads·q_len; the nearest published one outside (throughput article, FlashMLA MFU)."""
        if h20:
            mfu: Real = self.mla_rate_h20 / self.mla_peak_h20 + 0.0 * np.asarray(heads_times_q)
        else:
            mfu = np.interp(np.log2(heads_times_q), np.log2(self.mla_rows), self.mla_rate) / self.mla_peak
        return self._efficiency(mfu, "FlashMLA factor")

    def _efficiency(self, mfu: Real, what: str) -> Efficiency:
        value = mfu if np.ndim(mfu) else float(mfu)
        return Efficiency(compute=value, memory=1.0, origin=Origin.ASSUMED, source=f"throughput article, {what}")
