"""What a narrow FP8 accumulator loses, for people."""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.kernels.fp8_accumulation import Loss
from moeplan.report.tables import Console, Table, table

DATA = {
    "uniform": "positive data, uniform on [0, 1)",
    "half-normal": "positive data, |normal|",
    "exponential": "positive data, exponential",
    "log-normal": "positive data, log-normal",
    "zero-mean": "zero-mean data, uniform on [-1, 1)",
}
CUT = {"toward-zero": "cut toward zero", "down": "cut down", "nearest": "rounded to nearest"}


def print_fp8(out: Console, readings: Sequence[tuple[Loss, Loss]], losses: Sequence[Loss]) -> None:
    """The readings of «about 14 bits», then one table of bits by K for each kind of data."""
    out.print(
        "FP8 products with a narrow accumulator: an emulation, no measurement. Error is ‖C − AB‖ / ‖AB‖ against the "
        "exact product of the same E4M3 values, output in BF16; bias is Σ(C − AB) / Σ|AB|. Bits are those behind the "
        "leading one."
    )
    out.print()
    out.print(_by_reading(readings))
    out.print()
    for data in dict.fromkeys(loss.data for loss in losses):
        out.print(_by_bits([loss for loss in losses if loss.data == data]))
        out.print()
    out.print(
        "Published for positive data and K = 16Ki: 25 % without promotion, 0.17 % with (the batch article). "
        "The model follows DeepSeek-V3's report, section 3.3.2; docs/fp8-accumulation.md says what is assumed."
    )


def _by_reading(readings: Sequence[tuple[Loss, Loss]]) -> Table:
    alone, promoted = readings[0]
    headers = ("setup", "bits", "error", "bias", "promoted: error", "promoted: bias")
    rows = [
        [
            f"{DATA[one.data]}; {CUT[one.rounding]}{'' if one.align_accumulator else '; C aligned apart'}",
            str(one.bits),
            f"{one.relative_error:.2%}",
            f"{one.bias:+.2%}",
            f"{other.relative_error:.3%}",
            f"{other.bias:+.3%}",
        ]
        for one, other in readings
    ]
    return table(headers, rows, title=f"K = {alone.k:,}; promoted: added in FP32 every {promoted.promote_every}")


def _by_bits(losses: Sequence[Loss]) -> Table:
    columns = list(dict.fromkeys((loss.promote_every, loss.k) for loss in losses))
    found = {(loss.bits, loss.promote_every, loss.k): loss.relative_error for loss in losses}
    headers = ["bits", *(f"{'' if every is None else 'promoted '}{k:,}" for every, k in columns)]
    rows = [
        [str(bits), *(f"{100 * found[bits, every, k]:.3g}" for every, k in columns)]
        for bits in dict.fromkeys(loss.bits for loss in losses)
    ]
    return table(headers, rows, title=f"Error in %, by bits and K: {DATA[losses[0].data]}; cut toward zero")
