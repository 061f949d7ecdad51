"""What an FP8 matrix product loses in a tensor core's narrow accumulator, and what promotion to FP32 saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError, UnknownName
from moeplan.kinds import Array

Rounding = Literal["toward-zero", "down", "nearest"]
_ROUND: Mapping[str, np.ufunc] = {"toward-zero": np.trunc, "down": np.floor, "nearest": np.rint}

E4M3_LARGEST, E4M3_LEAST_EXPONENT, E4M3_BITS = 448.0, -6, 3
BF16_BITS = 7
MOST_BITS = 52
NO_EXPONENT = -900  # of zero: below every exponent that FP8 and FP32 have

SAMPLES: Mapping[str, Callable[[Generator, tuple[int, int]], Array]] = {
    "uniform": lambda generator, shape: generator.random(shape),
    "half-normal": lambda generator, shape: np.abs(generator.standard_normal(shape)),
    "exponential": lambda generator, shape: generator.exponential(size=shape),
    "log-normal": lambda generator, shape: np.exp(generator.standard_normal(shape)),
    "zero-mean": lambda generator, shape: generator.uniform(-1.0, 1.0, shape),
}


def e4m3(values: Array) -> Array:
    """Nearest value of FP8 E4M3 (ties to even; subnormal down to 2^-9; saturates at 448), as float64 of any shape."""
    rounded = _fraction(values, E4M3_BITS, least=E4M3_LEAST_EXPONENT)
    return np.clip(rounded, -E4M3_LARGEST, E4M3_LARGEST)


def bf16(values: Array) -> Array:
    """Nearest value of BF16 (ties to even; its range is not checked), as float64 of any shape."""
    return _fraction(values, BF16_BITS)


def draw(kind: str, *, rows: int, k: int, columns: int, seed: int) -> tuple[Array, Array]:
    """Seeded E4M3 matrices, a (rows, k) and b (k, columns), each with one scale that puts its largest at 448.

    Every kind but "zero-mean" is all-positive. Raises UnknownName for a kind not in SAMPLES.
    """
    if kind not in SAMPLES:
        raise UnknownName("data", kind, SAMPLES)
    generator = np.random.default_rng(seed)
    a, b = (SAMPLES[kind](generator, shape) for shape in ((rows, k), (k, columns)))
    return e4m3(a / np.abs(a).max() * E4M3_LARGEST), e4m3(b / np.abs(b).max() * E4M3_LARGEST)


class TensorCore(Struct, frozen=True, kw_only=True, eq=False):
    """The adder of one MMA instruction: bits kept behind the leading one, its depth in K, how it drops the rest.

    `bits` is one number or an array (B,) of them; the adder then keeps one accumulator for each.
    """

    bits: int | NDArray[Any]
    instruction_k: int = 32
    rounding: Rounding = "toward-zero"
    align_accumulator: bool = True

    def __post_init__(self) -> None:
        faults = []
        if np.ndim(self.bits) > 1 or np.min(self.bits) < 1 or np.max(self.bits) > MOST_BITS:
            faults.append(Fault("bits", f"is {self.bits}", f"give 1 to {MOST_BITS}, one or a list"))
        if self.instruction_k < 1:
            faults.append(Fault("instruction_k", f"is {self.instruction_k}", "give at least 1; FP8 on Hopper has 32"))
        if self.rounding not in _ROUND:
            faults.append(Fault("rounding", f"is {self.rounding!r}", f"one of {', '.join(_ROUND)}"))
        if faults:
            raise InputError("tensor core", faults)

    def multiply_add(self, accumulator: Array, a: Array, b: Array) -> Array:
        """One instruction: accumulator ([B,] m, n) + a (m, i) · b (i, n), i at most instruction_k."""
        products = a.T[:, :, None] * b[:, None, :]
        largest = (_exponent(a).T[:, :, None] + _exponent(b)[:, None, :]).max(axis=0)
        if self.align_accumulator:
            largest = np.maximum(largest, _exponent(accumulator))
        scale = self._scale(largest)
        shifted = products.reshape(-1, *(1,) * (scale.ndim - 2), *scale.shape[-2:]) * scale
        total = _ROUND[self.rounding](shifted, out=shifted).sum(axis=0) / scale
        if not self.align_accumulator:
            total = self._normalised(total)
            scale = self._scale(np.maximum(_exponent(total), _exponent(accumulator)))
            total = self._cut(total * scale) / scale
        return self._normalised(total + self._cut(accumulator * scale) / scale)

    def _scale(self, exponent: NDArray[Any]) -> Array:
        """2^(bits − exponent): makes the last bit kept at this exponent the units."""
        return _power(np.asarray(self.bits)[..., None, None] - np.maximum(exponent, NO_EXPONENT))

    def _cut(self, values: Array) -> Array:
        rounded: Array = _ROUND[self.rounding](values)
        return rounded

    def _normalised(self, values: Array) -> Array:
        scale = self._scale(_exponent(values))
        return self._cut(values * scale) / scale


def accumulate(
    a: Array,
    b: Array,
    *,
    bits: int | NDArray[Any],
    promote_every: int | None,
    instruction_k: int = 32,
    rounding: Rounding = "toward-zero",
    align_accumulator: bool = True,
    bf16_output: bool = True,
) -> Array:
    """Product of a (m, K) and b (K, n) as an FP8 tensor core with a narrow accumulator gives it: (m, n).

    Source: the DeepSeek-V3 technical report on FP8 products on H800 (section 3.3.2 and its advice to hardware makers),
    which sees about 14 bits kept. Products of E4M3 are exact. One instruction takes `instruction_k` of them; they and
    the accumulator C are shifted right to the largest exponent E among them and lose what lies below 2^(E − bits); the
    exact sum of the rest goes back into C with `bits` bits behind its leading one:

        C ← R[ Σ_i R(a_i·b_i) + R(C) ],  E = max(e(C), e(a_i) + e(b_i)),  inner R to multiples of 2^(E − bits)

    14 bits kept are `bits` = 13 and the leading one; an array (B,) of bits gives (B, m, n). `rounding` is R:
    "toward-zero" cuts the magnitude, "down" cuts a two's complement; they agree on positive data. Without
    `align_accumulator` the products are aligned among themselves only, and their sum is then added to C. Every
    `promote_every` of K, a multiple of `instruction_k`, C is added in FP32, to nearest, to a sum outside the tensor
    core and starts again at 0 (batch article, "FP8 accumulation": 128); None never promotes. The result is rounded to
    BF16 unless `bf16_output` is off.

    Left out: the order of additions inside an instruction, the carry of a single product and FP8's subnormals in E,
    scales per block (FP32 factors at promotion), infinities, NaN, overflow. Raises InputError.
    """
    core = TensorCore(bits=bits, instruction_k=instruction_k, rounding=rounding, align_accumulator=align_accumulator)
    *_, (_, result) = _running(a, b, core, promote_every)
    return bf16(result) if bf16_output else result


def _running(a: Array, b: Array, core: TensorCore, promote_every: int | None) -> Iterator[tuple[int, Array]]:
    """After each instruction: K so far, and the sum so far ([B,] m, n), not rounded for output."""
    _check(a, b, core, promote_every)
    depth, step = a.shape[1], core.instruction_k
    accumulator = np.zeros((*np.shape(core.bits), a.shape[0], b.shape[1]))
    promoted = accumulator.astype(np.float32)
    for start in range(0, depth, step):
        end = min(start + step, depth)
        accumulator = core.multiply_add(accumulator, a[:, start:end], b[start:end])
        if promote_every is None:
            yield end, accumulator
            continue
        total = promoted + accumulator.astype(np.float32)
        if end % promote_every == 0:
            promoted, accumulator = total, np.zeros_like(accumulator)
        yield end, total.astype(np.float64)


def _check(a: Array, b: Array, core: TensorCore, promote_every: int | None) -> None:
    faults = []
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or not a.shape[1]:
        faults.append(Fault("shapes", f"{a.shape} by {b.shape}", "give a as (m, K) and b as (K, n), K at least 1"))
    if promote_every is not None and (promote_every < 1 or promote_every % core.instruction_k):
        fix = f"give a multiple of the instruction's K, {core.instruction_k}"
        faults.append(Fault("promotion", f"every {promote_every}", fix))
    if faults:
        raise InputError("accumulation", faults)


class Loss(Struct, frozen=True, kw_only=True):
    """What one setting loses against the exact product of the same E4M3 matrices, output in BF16.

    relative_error is ‖C − AB‖ / ‖AB‖ (Frobenius); bias is Σ(C − AB) / Σ|AB|, negative where a positive C is too small;
    error_of_magnitudes is ‖C − AB‖ / ‖|A||B|‖, which cancellation in AB does not inflate.
    """

    data: str
    k: int
    bits: int
    promote_every: int | None
    rounding: Rounding
    align_accumulator: bool
    relative_error: float
    bias: float
    error_of_magnitudes: float


def losses(
    core: TensorCore, promote_every: int | None, *, data: str, lengths: Sequence[int], size: int = 16, seed: int = 0
) -> list[Loss]:
    """Loss at each of `lengths`, ascending, and each of the core's bits: prefixes of one (size, K) by (K, size).

    Raises InputError when a length is no multiple of the instruction's K.
    """
    wrong = [k for k in lengths if k < 1 or k % core.instruction_k]
    if wrong or not lengths:
        fix = f"give multiples of {core.instruction_k}"
        raise InputError("accumulation", [Fault("K", f"is {', '.join(map(str, wrong)) or 'empty'}", fix)])
    a, b = draw(data, rows=size, k=max(lengths), columns=size, seed=seed)
    return [
        _loss(core, promote_every, data, int(bits), each, a[:, :k], b[:k])
        for k, result in _running(a, b, core, promote_every)
        if k in lengths
        for bits, each in zip(np.atleast_1d(core.bits), bf16(result).reshape(-1, size, size), strict=True)
    ]


def _loss(core: TensorCore, promote_every: int | None, data: str, bits: int, found: Array, a: Array, b: Array) -> Loss:
    exact = a @ b  # float64 holds it: at most 2^32 in steps of 2^-18
    error = float(np.linalg.norm(found - exact))
    return Loss(
        data=data,
        k=a.shape[1],
        bits=bits,
        promote_every=promote_every,
        rounding=core.rounding,
        align_accumulator=core.align_accumulator,
        relative_error=error / float(np.linalg.norm(exact)),
        bias=float((found - exact).sum() / np.abs(exact).sum()),
        error_of_magnitudes=error / float(np.linalg.norm(np.abs(a) @ np.abs(b))),
    )


# What «about 14 bits» can mean, the settings in doubt one at a time, and other data under the first reading.
READINGS: tuple[tuple[TensorCore, str], ...] = (
    (TensorCore(bits=13), "uniform"),
    (TensorCore(bits=14), "uniform"),
    (TensorCore(bits=13, rounding="nearest"), "uniform"),
    (TensorCore(bits=13, align_accumulator=False), "uniform"),
    (TensorCore(bits=13), "half-normal"),
    (TensorCore(bits=13), "exponential"),
    (TensorCore(bits=13), "log-normal"),
    (TensorCore(bits=13), "zero-mean"),
    (TensorCore(bits=13, rounding="down"), "zero-mean"),
)


def readings(promote_every: int, *, k: int, size: int = 16, seed: int = 0) -> list[tuple[Loss, Loss]]:
    """Each reading without and with promotion, at one K."""
    found = []
    for core, data in READINGS:
        alone, promoted = (
            losses(core, every, data=data, lengths=[k], size=size, seed=seed)[0] for every in (None, promote_every)
        )
        found.append((alone, promoted))
    return found


def sweep(
    bits: Sequence[int], promote_every: int, *, lengths: Sequence[int], size: int = 16, seed: int = 0
) -> list[Loss]:
    """Every number of bits at every length, positive ("uniform") and zero-mean data, without and with promotion."""
    core = TensorCore(bits=np.array(bits))
    return [
        loss
        for data in ("uniform", "zero-mean")
        for every in (None, promote_every)
        for loss in losses(core, every, data=data, lengths=lengths, size=size, seed=seed)
    ]


def _exponent(values: Array) -> NDArray[Any]:
    """Floor of log2 |value|; NO_EXPONENT for zero."""
    return np.where(values == 0, NO_EXPONENT, np.frexp(values)[1] - 1)


def _power(exponent: NDArray[Any]) -> Array:
    power: Array = np.ldexp(1.0, exponent)
    return power


def _fraction(values: Array, bits: int, *, least: int = NO_EXPONENT) -> Array:
    """Nearest with `bits` behind the leading one, ties to even; exponents below `least` share its spacing."""
    scale = _power(bits - np.maximum(_exponent(values), least))
    return np.rint(values * scale) / scale
