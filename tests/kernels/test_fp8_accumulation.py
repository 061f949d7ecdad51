"""The FP8 accumulator: by hand, beside a scalar restatement, its laws, and the published 25 % and 0.17 %."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from moeplan.cli import main
from moeplan.errors import InputError, UnknownName
from moeplan.kernels.fp8_accumulation import (
    Rounding,
    TensorCore,
    accumulate,
    bf16,
    draw,
    e4m3,
    losses,
)
from moeplan.kinds import Array

K = 16_384
LENGTHS = (1_024, 2_048, 4_096, 8_192, K)


def row(*values: float) -> Array:
    return np.array([values])


def column(*values: float) -> Array:
    return np.array([[value] for value in values])


def relative(core: TensorCore, promote_every: int | None, data: str, size: int = 8) -> list[float]:
    return [loss.relative_error for loss in losses(core, promote_every, data=data, lengths=LENGTHS, size=size, seed=1)]


def test_e4m3_by_its_table() -> None:
    given = [0.0, 448.0, 1e9, -460.0, 17.0, 19.0, 2**-9, 2**-10, 3 * 2**-10, -0.3]
    assert e4m3(np.array(given)).tolist() == [0, 448, 448, -448, 16, 20, 2**-9, 0, 2**-8, -0.3125]
    finite = {math.ldexp(1 + f / 8, e) for e in range(-6, 9) for f in range(8)} | {f * 2**-9 for f in range(8)}
    codes = np.array(sorted(finite - {480.0}))
    assert len(codes) == 127  # 2^7 codes of one sign, less NaN
    assert np.array_equal(e4m3(codes), codes)


def test_bf16_keeps_eight_significant_bits() -> None:
    assert bf16(np.array([257.0, 259.0, 1.0, -3.0])).tolist() == [256, 260, 1, -3]


@pytest.mark.parametrize(
    ("rounding", "expected"), [("toward-zero", (8.0, -8.0)), ("down", (8.0, -10.0)), ("nearest", (10.0, -10.0))]
)
def test_one_instruction_by_hand(rounding: Rounding, expected: tuple[float, float]) -> None:
    # 3 bits behind 8's leading one: units of 1; 0.75 twice is cut to 0 and 0, cut down to −1 each, or rounds to ±1
    for sign, value in zip((1.0, -1.0), expected, strict=True):
        found = accumulate(
            row(8.0, 0.75, 0.75) * sign, column(1.0, 1.0, 1.0), bits=3, promote_every=None, rounding=rounding
        )
        assert found.item() == value


def test_the_accumulator_swamps_products_only_if_aligned_with_them() -> None:
    a, b = row(16.0, 0.0, 1.0, 1.0, 1.0, 1.0), column(*[1.0] * 6)  # 16, then ones two at a time; 3 bits: units of 2
    assert accumulate(a, b, bits=3, promote_every=None, instruction_k=2).item() == 16
    assert accumulate(a, b, bits=3, promote_every=None, instruction_k=2, align_accumulator=False).item() == 20


def test_a_promotion_keeps_what_the_accumulator_would_drop() -> None:
    a, b = row(16.0, 1.0, 1.0, 1.0), column(*[1.0] * 4)
    assert accumulate(a, b, bits=3, promote_every=None, instruction_k=1).item() == 16
    assert accumulate(a, b, bits=3, promote_every=1, instruction_k=1).item() == 19


def scalar(a: list[Fraction], b: list[Fraction], bits: int) -> Fraction:
    """The same equation in exact fractions, one output, instructions of 32, cut toward zero."""

    def exponent(value: Fraction) -> int:
        return math.frexp(float(value))[1] - 1 if value else -10_000

    def cut(value: Fraction, unit: Fraction) -> Fraction:
        return math.trunc(value / unit) * unit

    total = Fraction(0)
    for start in range(0, len(a), 32):
        pairs = list(zip(a[start : start + 32], b[start : start + 32], strict=True))
        largest = max(exponent(total), *(exponent(x) + exponent(y) for x, y in pairs))
        unit = Fraction(2) ** (largest - bits)
        total = cut(total, unit) + sum((cut(x * y, unit) for x, y in pairs), Fraction(0))
        total = cut(total, Fraction(2) ** (exponent(total) - bits)) if total else total
    return total


@pytest.mark.parametrize("data", ["uniform", "zero-mean", "log-normal"])
@pytest.mark.parametrize("bits", [4, 13])
def test_against_exact_fractions(data: str, bits: int) -> None:
    a, b = draw(data, rows=2, k=200, columns=3, seed=5)  # the last instruction is not full
    found = accumulate(a, b, bits=bits, promote_every=None, bf16_output=False)
    expected = [
        [float(scalar([*map(Fraction, line)], [*map(Fraction, side)], bits)) for side in b.T.tolist()]
        for line in a.tolist()
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize("data", ["uniform", "zero-mean"])
def test_with_all_bits_the_product_is_exact(data: str) -> None:
    a, b = draw(data, rows=8, k=4_096, columns=8, seed=2)
    assert np.array_equal(accumulate(a, b, bits=52, promote_every=None, bf16_output=False), a @ b)
    assert np.array_equal(accumulate(a, b, bits=52, promote_every=None), bf16(a @ b))
    promoted = accumulate(a, b, bits=52, promote_every=128, bf16_output=False)
    assert np.abs(promoted - a @ b).max() <= 4_096 / 128 * 2**-24 * (np.abs(a) @ np.abs(b)).max()


def test_an_array_of_bits_equals_one_at_a_time() -> None:
    a, b = draw("zero-mean", rows=3, k=512, columns=4, seed=3)
    for every in (None, 128):
        for joint in (True, False):
            stack = accumulate(a, b, bits=np.array([10, 13]), promote_every=every, align_accumulator=joint)
            for bits, found in zip((10, 13), stack, strict=True):
                one = accumulate(a, b, bits=bits, promote_every=every, align_accumulator=joint)
                assert np.array_equal(found, one)


def test_a_power_of_two_scale_changes_nothing() -> None:
    a, b = draw("half-normal", rows=4, k=1_024, columns=4, seed=4)
    plain = accumulate(a, b, bits=13, promote_every=128)
    assert np.array_equal(accumulate(a * 8, b / 64, bits=13, promote_every=128), plain / 8)


def test_the_published_errors_at_16k() -> None:
    """Batch article: about 25 % without promotion and 0.17 % with; 14 bits kept are 13 and the leading one."""
    for data in ("uniform", "half-normal", "exponential", "log-normal"):
        assert 0.15 < relative(TensorCore(bits=13), None, data)[-1] < 0.35, data
        assert 0.0010 < relative(TensorCore(bits=13), 128, data)[-1] < 0.0025, data
    assert relative(TensorCore(bits=13), None, "uniform")[-1] == pytest.approx(0.25, abs=0.02)


def test_the_other_readings_do_not_give_the_published_error() -> None:
    for core, most in (
        (TensorCore(bits=14), 0.16),
        (TensorCore(bits=13, rounding="nearest"), 0.05),
        (TensorCore(bits=13, align_accumulator=False), 0.02),
    ):
        assert losses(core, None, data="uniform", lengths=[K], size=8)[0].relative_error < most


def test_error_grows_with_k_alone_and_stays_flat_with_promotion() -> None:
    alone = relative(TensorCore(bits=13), None, "uniform")
    assert all(later > 1.5 * earlier for earlier, later in pairwise(alone))
    promoted = relative(TensorCore(bits=13), 128, "uniform")
    assert max(promoted) < 1.4 * min(promoted)


def test_promoted_error_is_that_of_bf16_rounding() -> None:
    promoted, exact = relative(TensorCore(bits=13), 128, "uniform"), relative(TensorCore(bits=52), None, "uniform")
    assert promoted == pytest.approx(exact, rel=0.25)


def test_one_bit_fewer_costs_as_much_as_twice_the_depth() -> None:
    (half,) = losses(TensorCore(bits=12), None, data="uniform", lengths=[K // 2], size=8)
    (whole,) = losses(TensorCore(bits=13), None, data="uniform", lengths=[K], size=8)
    assert whole.relative_error == pytest.approx(half.relative_error, rel=0.1)


def test_truncation_is_always_low_on_positive_data_and_falls_with_bits() -> None:
    a, b = draw("uniform", rows=8, k=2_048, columns=8, seed=6)
    stack = accumulate(a, b, bits=np.arange(8, 24), promote_every=None, bf16_output=False)
    assert np.all(stack <= a @ b)
    errors = np.linalg.norm(stack - a @ b, axis=(1, 2))
    assert np.all(np.diff(errors) <= 0)
    (bias,) = [loss.bias for loss in losses(TensorCore(bits=13), None, data="uniform", lengths=[2_048])]
    assert bias < -0.03


def test_zero_mean_data_suffers_far_less_unless_cut_down() -> None:
    positive, mixed, down = (
        losses(core, None, data=data, lengths=[K], size=8)[0]
        for core, data in (
            (TensorCore(bits=13), "uniform"),
            (TensorCore(bits=13), "zero-mean"),
            (TensorCore(bits=13, rounding="down"), "zero-mean"),
        )
    )
    assert mixed.relative_error < positive.relative_error / 40
    assert mixed.error_of_magnitudes < positive.error_of_magnitudes / 1_000
    assert abs(mixed.bias) < 0.002
    assert down.bias < -0.1


def test_positive_data_does_not_care_which_way_a_cut_goes() -> None:
    a, b = draw("uniform", rows=4, k=1_024, columns=4, seed=7)
    zero, down = (
        accumulate(a, b, bits=13, promote_every=None, rounding=rounding) for rounding in ("toward-zero", "down")
    )
    assert np.array_equal(zero, down)


def test_wrong_input_names_every_fault() -> None:
    a, b = np.ones((2, 64)), np.ones((32, 2))
    with pytest.raises(InputError, match=r"(?s)shapes.*promotion"):
        accumulate(a, b, bits=13, promote_every=100)
    with pytest.raises(InputError, match=r"(?s)bits.*instruction_k"):
        accumulate(a, a.T, bits=60, promote_every=None, instruction_k=0)
    with pytest.raises(InputError, match="rounding"):
        TensorCore(bits=13, rounding="up")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InputError, match="multiples of 32"):
        losses(TensorCore(bits=13), None, data="uniform", lengths=[100])
    with pytest.raises(UnknownName, match="uniform"):
        draw("uniforn", rows=1, k=1, columns=1, seed=0)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_command_prints_the_table(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "fp8-accumulation", "--bits", "13", "--k", "1Ki,2Ki", *options])
    out, err = capsys.readouterr()
    assert (stop.value.code or 0, err) == (0, "")
    if options:
        content = json.loads(out)
        assert content["schema"] == "moeplan.fp8-accumulation/1"
        assert [loss["k"] for loss in content["losses"]] == [1_024, 2_048] * 4
        assert len(content["readings"]) == 9
    else:
        assert "positive data" in out
        assert "promoted 2,048" in out
        assert max(map(len, out.splitlines())) <= 160
