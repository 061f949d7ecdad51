"""Text with units <-> float in SI base units; the only place where units are converted.

GB is 1e9 bytes and GiB is 2**30 bytes: both exist here and nowhere else. Rates of a network may be written in bits
(``400 Gb/s``); a lower-case b is a bit.
"""

from __future__ import annotations

import math
import re
from typing import Final

from msgspec import Struct

_DECIMAL: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SMALL: Final = {"m": 1e-3, "µ": 1e-6, "μ": 1e-6, "u": 1e-6, "n": 1e-9}

# unit text -> (dimension, factor to the SI base unit of that dimension, allowed prefixes)
_BASES: Final = {
    "B": ("B", 1.0, {**_DECIMAL, **_BINARY}),
    "b": ("B", 0.125, {**_DECIMAL, **_BINARY}),
    "B/s": ("B/s", 1.0, {**_DECIMAL, **_BINARY}),
    "b/s": ("B/s", 0.125, {**_DECIMAL, **_BINARY}),
    "FLOP/s": ("FLOP/s", 1.0, _DECIMAL),
    "OP/s": ("FLOP/s", 1.0, _DECIMAL),
    "op/s": ("op/s", 1.0, _DECIMAL),
    "s": ("s", 1.0, {"": 1.0, **_SMALL}),
    "W": ("W", 1.0, _DECIMAL),
    "USD/h": ("USD/h", 1.0, {"": 1.0}),
    "": ("1", 1.0, {**_DECIMAL, **_BINARY, "K": 1e3}),
}
_EXAMPLES: Final = {
    "B": "80 GB or 80 GiB",
    "B/s": "3.35 TB/s or 400 Gb/s",
    "FLOP/s": "989.4 TFLOP/s",
    "op/s": "3.865 Top/s",
    "s": "20 ms or 1.5 µs",
    "W": "700 W",
    "USD/h": "2.0 USD/h",
    "1": "5000, 5k or 5Ki",
}
# A comma only groups thousands: «3,35 TB/s» is refused, for it might mean 3.35.
_NUMBER: Final = re.compile(
    r"\s*([+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*"
)


class UnitError(ValueError):
    """The text is no quantity of the wanted dimension; the message says what to write."""


class Unit(Struct, frozen=True):
    """A unit as text, resolved: its dimension and its factor to the SI base unit."""

    dimension: str
    factor: float


def parse(text: str | float, dimension: str, *, signed: bool = False) -> float:
    """Return the quantity in SI base units.

    >>> parse("3.35 TB/s", "B/s")
    3350000000000.0
    >>> parse("400 Gb/s", "B/s")
    50000000000.0
    >>> parse("5Ki", "1")
    5120.0

    Raises UnitError when the unit is missing or of another dimension, or the number is not finite or is negative.
    """
    if isinstance(text, bool):
        raise UnitError(f"{text!r} is no number; write for example {_EXAMPLES[dimension]}")
    if isinstance(text, int | float):
        try:
            value, unit = float(text), ""
        except OverflowError as error:
            raise UnitError("a number of that size cannot be represented") from error
    else:
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise UnitError(f"{text!r} is no number with a unit; write for example {_EXAMPLES[dimension]}")
        value, unit = float(match[1].replace("_", "").replace(",", "")), match[2]
    if not math.isfinite(value):
        raise UnitError(f"{text!r} is not finite")
    if value < 0 and not signed:
        raise UnitError(f"{text!r} is negative")
    if not unit and dimension != "1":
        raise UnitError(f"{text!r} has no unit; write for example {_EXAMPLES[dimension]}")
    factor = resolve(unit, dimension, str(text)).factor
    parts = round(1 / factor)
    whole = factor < 1 and math.isclose(parts * factor, 1.0, rel_tol=1e-12)
    result = value / parts if whole else value * factor  # 10 µs is 1e-05 and not 9.999999999999999e-06
    if not math.isfinite(result):
        raise UnitError(f"{text!r} is too large to be represented")
    return result


def resolve(unit: str, dimension: str, shown: str) -> Unit:
    """Return the factor of a unit text; raise UnitError when it is unknown or of another dimension."""
    for base, (found, factor, prefixes) in _BASES.items():
        prefix = unit[: len(unit) - len(base)] if base else unit
        if unit.endswith(base) and prefix in prefixes and (base or unit in prefixes):
            if found == dimension:
                return Unit(found, factor * prefixes[prefix])
            if base:
                raise UnitError(f"{shown!r} is in {unit}, wanted {dimension}; write for example {_EXAMPLES[dimension]}")
    raise UnitError(f"{shown!r} has an unknown unit {unit!r}; write for example {_EXAMPLES[dimension]}")


def si(value: float, unit: str, digits: int = 4) -> str:
    """Write a value with a decimal prefix: ``si(3.35e12, "B/s")`` is ``3.35 TB/s``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".rstrip()
    prefixes = {**{k: v for k, v in _DECIMAL.items() if k}, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}
    for prefix, factor in sorted(prefixes.items(), key=lambda item: -item[1]):
        if abs(value) >= factor:
            return f"{value / factor:.{digits}g} {prefix}{unit}".rstrip()
    return f"{value:.{digits}g} {unit}".rstrip()


def gib(value: float) -> str:
    """Write bytes as GiB, the unit in which devices and engines report memory."""
    return f"{value / 2**30:.1f} GiB"


def micro(seconds: float) -> str:
    """Write a kernel's time in microseconds."""
    return f"{seconds * 1e6:.1f} µs"
