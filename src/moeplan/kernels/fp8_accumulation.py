"""What an FP8 matrix product loses in a tensor core's narrow accumulator, and what promotion to FP32 saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator

from moeplan.errors import Fault, InputError, UnknownName
from moeplan.kinds import Array

Rounding = Literal["toward-zero", "down", "nearest"]
_ROUND: Mapping[str, Callable[[Array], Array]] = {"toward-zero": np.trunc, "down": np.floor, "nearest": np.rint}

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
    rounded = _fraction(values, E4M3_BITS, "nearest", least=E4M3_LEAST_EXPONENT)
    return np.clip(rounded, -E4M3_LARGEST, E4M3_LARGEST)


def bf16(values: Array) -> Array:
    """Nearest value of BF16 (ties to even; its range is not checked), as float64 of any shape."""
    return _fraction(values, BF16_BITS, "nearest")


def draw(kind: str, *, rows: int, k: int, columns: int, seed: int) -> tuple[Array, Array]:
    """Seeded E4M3 matrices, a (rows, k) and b (k, columns), each with one scale that puts its largest at 448.

    Every kind but "zero-mean" is all-positive. Raises UnknownName for a kind not in SAMPLES.
    """
    if kind not in SAMPLES:
        raise UnknownName("data", kind, SAMPLES)
    generator = np.random.default_rng(seed)
    a, b = (SAMPLES[kind](generator, shape) for shape in ((rows, k), (k, columns)))
    return e4m3(a / np.abs(a).max() * E4M3_LARGEST), e4m3(b / np.abs(b).max() * E4M3_LARGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCore:
    """The adder of one MMA instruction: bits kept behind the leading one, its depth in K, how it drops the rest."""

    bits: int
    instruction_k: int = 32
    rounding: Rounding = "toward-zero"
    align_accumulator: bool = True

    def __post_init__(self) -> None:
        faults = []
        if not 1 <= self.bits <= MOST_BITS:
            faults.append(Fault("bits", f"is {self.bits}", f"give 1 to {MOST_BITS}"))
        if self.instruction_k < 1:
            faults.append(Fault("instruction_k", f"is {self.instruction_k}", "give at least 1; FP8 on Hopper has 32"))
        if self.rounding not in _ROUND:
            faults.append(Fault("rounding", f"is {self.rounding!r}", f"one of {', '.join(_ROUND)}"))
        if faults:
            raise InputError("tensor core", faults)

    def multiply_add(self, accumulator: Array, a: Array, b: Array) -> Array:
        """One instruction: accumulator (m, n) + a (m, i) · b (i, n), both at most instruction_k deep."""
        products = a[:, None, :] * b.T[None, :, :]
        largest = (_exponent(a)[:, None, :] + _exponent(b).T[None, :, :]).max(axis=-1)
        if self.align_accumulator:
            largest = np.maximum(largest, _exponent(accumulator))
        total = self._aligned(products, largest[..., None]).sum(axis=-1)
        if not self.align_accumulator:
            total = _fraction(total, self.bits, self.rounding)
            largest = np.maximum(_exponent(total), _exponent(accumulator))
            total = self._aligned(total, largest)
        return _fraction(total + self._aligned(accumulator, largest), self.bits, self.rounding)

    def _aligned(self, values: Array, exponent: Array) -> Array:
        """Values shifted to a common exponent: multiples of 2^(exponent − bits)."""
        shift = np.ldexp(1.0, self.bits - np.maximum(exponent, NO_EXPONENT).astype(np.intp))
        return _ROUND[self.rounding](values * shift) / shift


def accumulate(
    a: Array,
    b: Array,
    *,
    bits: int,
    promote_every: int | None,
    instruction_k: int = 32,
    rounding: Rounding = "toward-zero",
    align_accumulator: bool = True,
    bf16_output: bool = True,
) -> Array:
    """Product of a (m, K) and b (K, n) as an FP8 tensor core with a narrow accumulator gives it: (m, n).

    Source: DeepSeek-V3's technical report on FP8 products on H800 (section 3.3.2 and its hardware advice), which sees
    about 14 bits kept. Products of E4M3 are exact. One instruction takes `instruction_k` products; they and the
    accumulator are shifted right to the largest exponent E among them and lose what lies below 2^(E − bits); the exact
    sum of the rest goes back into the accumulator with `bits` fraction bits:

        C ← R_bits( Σ_i R(a_i·b_i, 2^(E−bits)) + R(C, 2^(E−bits)) ),  E = max(e(C), e(a_i) + e(b_i))

    14 bits kept are `bits` = 13 and the leading one. `rounding` is R: "toward-zero" cuts the magnitude, "down" cuts a
    two's complement (they agree on positive data). Without `align_accumulator` the products are aligned among
    themselves only and their sum is then added to C. Every `promote_every` of K, C is added in FP32, to nearest, to a
    sum outside the tensor core and starts at 0 (seed 001, "FP8 accumulation": 128); None never promotes. The result is
    rounded to BF16 unless `bf16_output` is off.

    Left out: the order of additions inside an instruction, a product's own carry and FP8's subnormal exponents in E,
    scales per block (FP32 factors at promotion), infinities, NaN, overflow. Raises InputError.
    """
    core = TensorCore(bits=bits, instruction_k=instruction_k, rounding=rounding, align_accumulator=align_accumulator)
    *_, (_, result) = _running(a, b, core, promote_every)
    return bf16(result) if bf16_output else result


def _running(a: Array, b: Array, core: TensorCore, promote_every: int | None) -> Iterator[tuple[int, Array]]:
    """After each instruction: K so far, and the sum so far (m, n), not rounded for output."""
    _check(a, b, core, promote_every)
    depth, step = a.shape[1], core.instruction_k
    accumulator = np.zeros((a.shape[0], b.shape[1]))
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
        faults.append(Fault("promote_every", f"is {promote_every}", fix))
    if faults:
        raise InputError("accumulation", faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one setting loses against the exact product of the same E4M3 matrices.

    relative_error is ‖C − AB‖ / ‖AB‖ (Frobenius); bias is Σ(C − AB) / Σ|AB|, negative where C is too small;
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
    core: TensorCore, promote_every: int | None, *, data: str, lengths: Sequence[int], size: int, seed: int
) -> list[Loss]:
    """Loss at each of `lengths`, ascending multiples of the instruction's K: prefixes of one (size, K) by (K, size).

    Raises InputError.
    """
    wrong = [k for k in lengths if k < 1 or k % core.instruction_k]
    if wrong or not lengths:
        fix = f"give multiples of {core.instruction_k}"
        raise InputError("options", [Fault("K", f"is {', '.join(map(str, wrong)) or 'empty'}", fix)])
    a, b = draw(data, rows=size, k=max(lengths), columns=size, seed=seed)
    return [
        _loss(core, promote_every, data=data, a=a[:, :k], b=b[:k], found=bf16(found))
        for k, found in _running(a, b, core, promote_every)
        if k in lengths
    ]


def _loss(core: TensorCore, promote_every: int | None, *, data: str, a: Array, b: Array, found: Array) -> Loss:
    exact = a @ b  # exact in float64: at most 2^32 in steps of 2^-18
    difference = found - exact
    norm = np.linalg.norm(difference)
    return Loss(
        data=data,
        k=a.shape[1],
        bits=core.bits,
        promote_every=promote_every,
        rounding=core.rounding,
        align_accumulator=core.align_accumulator,
        relative_error=float(norm / np.linalg.norm(exact)),
        bias=float(difference.sum() / np.abs(exact).sum()),
        error_of_magnitudes=float(norm / np.linalg.norm(np.abs(a) @ np.abs(b))),
    )


def _exponent(values: Array) -> Array:
    """Floor of log2 |value|, as an integral float; NO_EXPONENT for zero."""
    return np.where(values == 0, NO_EXPONENT, np.frexp(values)[1] - 1.0)


def _fraction(values: Array, bits: int, rounding: Rounding, *, least: int = NO_EXPONENT) -> Array:
    """Keep `bits` fraction bits behind the leading one; exponents below `least` share its spacing."""
    shift = np.ldexp(1.0, bits - np.maximum(_exponent(values), least).astype(np.intp))
    return _ROUND[rounding](values * shift) / shift
