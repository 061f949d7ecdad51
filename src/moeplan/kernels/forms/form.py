"""What every form is: named columns of a shape in, parts of a time out, at most ten parameters between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import Format

Shape: TypeAlias = Mapping[str, Real]  # by column, scalars or arrays that broadcast together
Parameters: TypeAlias = Mapping[str, float]  # SI base units


class Parameter(Struct, frozen=True, kw_only=True, eq=False):
    """One physical parameter: its SI unit («s» or «»), where a fit starts, its bounds, and what it stands for."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    meaning: str


class Kernel(Struct, frozen=True, kw_only=True, eq=False):
    """What is known of a kernel beforehand, not fitted: formats by role (weights, core, cache) and its tiles' rows."""

    formats: Mapping[str, Format]
    tiles: tuple[int, ...] = ()


class Parts(Struct, frozen=True, kw_only=True, eq=False):
    """seconds in all, and what arithmetic and memory traffic alone would take; the rest is start, end and stalls.

    network: what links and NICs alone would take, of a kernel that sends. padding: FLOP done over FLOP asked, where a
    form says.
    """

    seconds: Real
    compute: Real
    memory: Real
    network: Real = 0.0
    padding: Real = 1.0

    @property
    def floor(self) -> Real:
        """What neither arithmetic nor traffic explains."""
        return self.seconds - np.maximum(np.maximum(self.compute, self.memory), self.network)


class Form(Struct, frozen=True, kw_only=True, eq=False):
    """An equation of a kernel's time.

    shape: the columns that it reads. whole: those among them that make one «shape» when rows are held out, the others
    vary inside it. roles: of the formats that it reads. parts: of a chip, a kernel, a shape and parameters. along: the
    column whose doublings beyond the measured rows widen the error; of other columns none is given beyond them.
    """

    name: str
    shape: tuple[str, ...]
    whole: tuple[str, ...]
    roles: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    parts: Callable[[Gpu, Kernel, Shape, Parameters], Parts]
    along: str = ""


def blend(power: float, *times: Real) -> Real:
    """Times that partly overlap, (Σ tᵖ)^(1/p): the sum at p = 1, the largest as p grows."""
    largest = times[0]
    for time in times[1:]:
        largest = (
            np.maximum(largest, time)
            if isinstance(largest, np.ndarray) or isinstance(time, np.ndarray)
            else (max(largest, time))
        )
    safe = np.where(largest > 0.0, largest, 1.0) if isinstance(largest, np.ndarray) else largest or 1.0
    total: Real = 0.0
    for time in times:
        total = total + _power(time / safe, power)
    return largest * _root(total, power)


def _power(value: Real, power: float) -> Real:
    """Products where the power is a small whole number, which take a tenth of a power's time."""
    if power == 2.0:
        return value * value
    if power == 4.0:
        square = value * value
        return square * square
    if power == 5.0:
        square = value * value
        return square * square * value
    return value**power


def _root(value: Real, power: float) -> Real:
    if power == 2.0:
        return np.sqrt(value)
    if power == 4.0:
        return np.sqrt(np.sqrt(value))
    return value ** (1.0 / power)
