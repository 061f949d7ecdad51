"""One shape: what is run, what is counted, what is refused."""

from __future__ import annotations

from itertools import chain, count, repeat

import pytest
from fakes import FakeTimer, NumpyGrouped, medians, shape

from moeplan.bench.backends.base import Setup
from moeplan.bench.harness import MOST_RUNS, Effort, Measured, Refused, measure
from moeplan.errors import InputError

SHAPE = shape(2, 4)


def kernel() -> NumpyGrouped:
    return NumpyGrouped(Setup(device="cpu"))


def test_median_and_spread_are_exact_and_the_warm_up_does_not_count() -> None:
    counted = [20e-6, 11e-6, 13e-6, 12e-6, 14e-6, 15e-6, 19e-6, 18e-6, 17e-6, 16e-6, 10e-6]
    timer = FakeTimer(seconds=chain([9.0], repeat(8.0, 3), iter(counted)))
    found = measure(kernel(), SHAPE, timer, Effort(warmup=3, repetitions=11, budget=0.0))
    assert isinstance(found, Measured)
    assert (found.seconds, found.p10, found.p90) == (medians(counted), 11e-6, 19e-6)  # of 11: the 6th, 2nd and 10th
    assert found.runs == 11
    assert timer.batches == [1, 3, 11]


def test_every_run_is_a_launch() -> None:
    under = kernel()
    measure(under, SHAPE, FakeTimer(), Effort(warmup=5, repetitions=20, budget=0.0))
    assert under.runs == 1 + 5 + 20


def test_it_goes_on_until_the_budget_is_spent() -> None:
    timer = FakeTimer(pace=0.1)
    found = measure(kernel(), SHAPE, timer, Effort(warmup=0, repetitions=7, budget=0.45))
    assert isinstance(found, Measured)
    assert timer.batches == [1, 7, 7, 7, 7, 7]  # 0.5 s are the first multiple of 0.1 s past 0.45 s
    assert found.runs == 35


def test_it_ends_though_the_clock_stands_still() -> None:
    found = measure(kernel(), SHAPE, FakeTimer(pace=0.0), Effort(warmup=0, repetitions=1000, budget=1.0))
    assert isinstance(found, Measured)
    assert found.runs == MOST_RUNS


def test_a_wrong_result_is_refused_before_it_is_timed() -> None:
    under, timer = kernel(), FakeTimer()
    under.wrong = (SHAPE,)
    found = measure(under, SHAPE, timer, Effort())
    assert found == Refused("result off by 0.5 of the reference, 0.001 allowed")
    assert timer.batches == [1]


def test_a_result_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    under = kernel()
    monkeypatch.setattr(under, "tolerance", float("nan"))
    found = measure(under, SHAPE, FakeTimer(), Effort())
    assert isinstance(found, Refused)
    assert "off by" in found.reason


def test_a_kernel_that_breaks_is_refused_with_the_first_line_of_why() -> None:
    under = kernel()
    under.breaks = (SHAPE,)
    assert measure(under, SHAPE, FakeTimer(), Effort()) == Refused("RuntimeError: CUDA error: out of memory")


@pytest.mark.parametrize("seconds", [0.0, float("inf"), float("nan")])
def test_no_row_without_a_positive_time(seconds: float) -> None:
    found = measure(kernel(), SHAPE, FakeTimer(seconds=repeat(seconds)), Effort(budget=0.0))
    assert isinstance(found, Refused)
    assert "the timer gives" in found.reason


def test_what_concerns_the_whole_run_is_not_a_refusal() -> None:
    def absent(_: FakeTimer) -> None:
        raise InputError("torch", [])

    with pytest.raises(InputError):
        measure(kernel(), SHAPE, FakeTimer(hook=absent), Effort())


def test_an_interruption_comes_through() -> None:
    ticks = count()

    def stop(_: FakeTimer) -> None:
        if next(ticks) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(kernel(), SHAPE, FakeTimer(hook=stop), Effort())
