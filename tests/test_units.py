"""Text with units and SI floats: known values, round trips, and everything that must be refused."""

from __future__ import annotations

import doctest
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan import units
from moeplan.units import UnitError, gib, micro, parse, si

QUICK = settings(max_examples=60, deadline=None)
DIMENSIONS = ("B", "B/s", "FLOP/s", "op/s", "s", "W", "USD/h", "1")


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GB", "B", 80e9),
        ("80GB", "B", 80e9),
        ("80 GiB", "B", 85_899_345_920.0),
        ("81559 MiB", "B", 85_520_809_984.0),
        ("1 Tb", "B", 125e9),
        ("3.35 TB/s", "B/s", 3.35e12),
        ("400 Gb/s", "B/s", 50e9),
        ("40 GiB/s", "B/s", 42_949_672_960.0),
        ("8 Gib/s", "B/s", 2.0**30),
        ("989.4 TFLOP/s", "FLOP/s", 989.4e12),
        ("1979 TOP/s", "FLOP/s", 1979e12),
        ("3.865 Top/s", "op/s", 3.865e12),
        ("20 ms", "s", 0.020),
        ("1.5 µs", "s", 1.5e-6),  # the micro sign
        ("1.5 μs", "s", 1.5e-6),  # the Greek letter
        ("1.5 us", "s", 1.5e-6),
        ("7 ns", "s", 7e-9),
        ("0 s", "s", 0.0),
        ("700 W", "W", 700.0),
        ("1.2 kW", "W", 1200.0),
        ("2.0 USD/h", "USD/h", 2.0),
        ("5000", "1", 5000.0),
        ("5k", "1", 5000.0),
        ("5K", "1", 5000.0),
        ("5Ki", "1", 5120.0),
        ("1.5M", "1", 1.5e6),
        ("5,000", "1", 5000.0),
        ("1,234,567.5", "1", 1_234_567.5),
        ("1_000_000", "1", 1e6),
        (".5", "1", 0.5),
        ("5.", "1", 5.0),
        ("1e3 B", "B", 1000.0),
        ("1E3 EB", "B", 1e21),
        ("5E", "1", 5e18),
        ("  5 GB  ", "B", 5e9),
        ("+5 GB", "B", 5e9),
        (5, "1", 5.0),
        (0.25, "1", 0.25),
    ],
)
def test_known_quantities(text: str | float, dimension: str, value: float) -> None:
    assert parse(text, dimension) == pytest.approx(value, rel=1e-15)


def test_a_gigabyte_is_no_gibibyte_and_a_bit_is_an_eighth_of_a_byte() -> None:
    assert parse("1 GiB", "B") / parse("1 GB", "B") == pytest.approx(1.073741824, rel=1e-15)
    assert parse("1 PiB", "B") / parse("1 PB", "B") == pytest.approx(1.125899906842624, rel=1e-15)
    assert 8 * parse("1 Gb/s", "B/s") == parse("1 GB/s", "B/s")


@pytest.mark.parametrize(
    ("text", "dimension", "words"),
    [
        ("80", "B", ["no unit", "80 GB"]),
        (80, "B", ["no unit", "80 GB"]),
        (3.35e12, "B/s", ["no unit", "TB/s"]),
        ("3.35 TB", "B/s", ["is in TB", "wanted B/s"]),
        ("3.35 TB/s", "B", ["is in TB/s", "wanted B"]),
        ("3.35 Top/s", "FLOP/s", ["is in Top/s", "wanted FLOP/s"]),
        ("989 TFLOP/s", "op/s", ["is in TFLOP/s", "wanted op/s"]),
        ("20 ms", "B", ["is in ms", "wanted B"]),
        ("80 XB", "B", ["unknown unit 'XB'"]),
        ("80 gb", "B", ["unknown unit 'gb'"]),
        ("5 min", "s", ["unknown unit 'min'"]),
        ("5 Gi", "B", ["unknown unit 'Gi'"]),
        ("5x", "1", ["unknown unit 'x'"]),
        ("-1 GB", "B", ["is negative"]),
        (-1, "1", ["is negative"]),
        ("nan", "1", ["no number"]),
        (math.nan, "1", ["not finite"]),
        (math.inf, "1", ["not finite"]),
        ("inf GB", "B", ["no number"]),
        ("1e999 GB", "B", ["not finite"]),
        ("1e308 GB", "B", ["too large"]),
        (10**400, "1", ["cannot be represented"]),
        (True, "1", ["no number"]),
        (False, "B", ["no number"]),
        ("", "B", ["no number"]),
        ("GB", "B", ["no number"]),
        ("5 G B", "B", ["no number"]),
        ("1.2.3 GB", "B", ["no number"]),
        ("0x10 B", "B", ["no number"]),
        ("3,35 TB/s", "B/s", ["no number"]),  # a decimal comma would silently be 335
        ("3,3500", "1", ["unknown unit"]),
        ("80 GB ", "1", ["is in GB", "wanted 1"]),
    ],
)
def test_refused_with_an_example(text: str | float, dimension: str, words: list[str]) -> None:
    with pytest.raises(UnitError) as caught:
        parse(text, dimension)
    for word in words:
        assert word in str(caught.value)


def test_signed_quantities_only_on_request() -> None:
    assert parse("-3 ms", "s", signed=True) == pytest.approx(-0.003)
    with pytest.raises(UnitError, match="negative"):
        parse("-3 ms", "s")


@QUICK
@given(st.floats(1e-9, 1e21), st.sampled_from(["B", "B/s", "FLOP/s", "op/s", "W"]))
def test_written_and_read_again(value: float, unit: str) -> None:
    value = max(value, 1.0)  # there is no milli-byte
    assert parse(si(value, unit, digits=17), unit) == pytest.approx(value, rel=1e-14)


@QUICK
@given(st.floats(1e-9, 999.0))
def test_seconds_written_and_read_again(value: float) -> None:
    assert parse(si(value, "s", digits=17), "s") == pytest.approx(value, rel=1e-14)
    assert parse(micro(value).replace(" µs", "µs"), "s") == pytest.approx(value, abs=0.06e-6)


@QUICK
@given(st.integers(0, 10**15))
def test_thousands_may_be_grouped(value: int) -> None:
    assert parse(f"{value:,}", "1") == float(value) == parse(f"{value:_}", "1")


@QUICK
@given(st.text(max_size=12), st.sampled_from(DIMENSIONS))
def test_junk_is_a_unit_error_or_a_finite_number(text: str, dimension: str) -> None:
    try:
        value = parse(text, dimension)
    except UnitError:
        return
    assert math.isfinite(value)
    assert value >= 0


@QUICK
@given(st.one_of(st.integers(), st.floats(), st.booleans()), st.sampled_from(DIMENSIONS))
def test_bare_numbers_are_only_counts(value: float, dimension: str) -> None:
    try:
        parsed = parse(value, dimension)
    except UnitError:
        return
    assert dimension == "1"
    assert parsed == value


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (42_949_672_960.0, "B/s", "42.95 GB/s"),
        (0.0, "B", "0 B"),
        (1.5e-6, "s", "1.5 µs"),
        (0.0697, "s", "69.7 ms"),
        (2.0, "USD/h", "2 USD/h"),
        (-80e9, "B", "-80 GB"),
        (math.inf, "B", "inf B"),
        (1234.0, "", "1.234 k"),
    ],
)
def test_written_with_a_prefix(value: float, unit: str, text: str) -> None:
    assert si(value, unit) == text


def test_bytes_and_microseconds_as_people_read_them() -> None:
    assert gib(81559 * 2**20) == "79.6 GiB"
    assert gib(-(2.0**29)) == "-0.5 GiB"
    assert micro(46.6e-6) == "46.6 µs"


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(units)
    assert result.attempted >= 3
    assert result.failed == 0


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_the_example_in_an_error_is_itself_accepted(dimension: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse("?", dimension)
    examples = str(caught.value).split("for example ")[1]
    for example in examples.replace(" or ", ", ").split(", "):
        assert parse(example, dimension) > 0


@pytest.mark.parametrize(
    ("text", "dimension", "value"), [("10 µs", "s", 1e-5), ("3 ms", "s", 3e-3), ("0.85 µs", "s", 8.5e-7)]
)
def test_small_units_give_the_number_as_written(text: str, dimension: str, value: float) -> None:
    assert units.parse(text, dimension) == value
