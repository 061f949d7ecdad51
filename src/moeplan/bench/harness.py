"""Measure one shape: check the result, warm up, repeat until the time budget is spent, median and spread."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from moeplan.bench.family import Shape
from moeplan.bench.kernel import Kernel, Prepared, Timer
from moeplan.errors import MoeplanError

MOST_RUNS = 10_000


class Effort(Struct, frozen=True, kw_only=True):
    """Runs that are not counted, the least that are, and the seconds of the host's clock to go on for."""

    warmup: int = 5
    repetitions: int = 20
    budget: float = 0.5


class Measured(Struct, frozen=True, kw_only=True):
    """Seconds of one run: median, 10th and 90th percentile over `runs`; error: of the result, relative."""

    seconds: float
    p10: float
    p90: float
    runs: int
    error: float


class Refused(Struct, frozen=True):
    """Why a shape has no row."""

    reason: str


def measure(kernel: Kernel, shape: Shape, timer: Timer, effort: Effort) -> Measured | Refused:
    """Measure a shape, or say why it cannot be: the kernel fails, its result is wrong, the time is no positive number.

    The first run compiles what there is to compile and is checked against the reference before anything is timed.
    """
    try:
        prepared = kernel.prepare(shape)
        timer.times(prepared, 1)
        error = prepared.check()
        if not error <= kernel.tolerance:  # a result that is no number is wrong, too
            return Refused(f"result off by {error:.3g} of the reference, {kernel.tolerance:g} allowed")
        if effort.warmup:
            timer.times(prepared, effort.warmup)
        seconds = _repeat(prepared, timer, effort)
    except MoeplanError:
        raise
    except Exception as problem:  # whatever a device library raises concerns this shape alone
        return Refused(f"{type(problem).__name__}: {_first_line(problem)}")
    bad = [value for value in seconds if not (math.isfinite(value) and value > 0)]
    if bad:
        return Refused(f"the timer gives {bad[0]:g} s")
    p10, median, p90 = (float(value) for value in np.percentile(seconds, (10, 50, 90)))
    return Measured(seconds=median, p10=p10, p90=p90, runs=len(seconds), error=error)


def _repeat(prepared: Prepared, timer: Timer, effort: Effort) -> list[float]:
    start = timer.now()
    seconds = list(timer.times(prepared, effort.repetitions))
    while len(seconds) < MOST_RUNS and timer.now() - start < effort.budget:
        seconds += timer.times(prepared, effort.repetitions)
    return seconds


def _first_line(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else "no message"
