"""The roofline and what a Cost says, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.origin import Origin
from moeplan.kernels.work import Work
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.roofline import roofline


def cost(*, flops: Real, bytes_: Real, compute: float = 0.5, memory: float = 0.8, floor: float = 2e-6) -> Cost:
    efficiency = Efficiency(compute=compute, memory=memory, origin=Origin.MEASURED, source="a table", floor=floor)
    return roofline("x", Work(flops=flops, bytes_=bytes_), peak=1e15, bandwidth=4e12, efficiency=efficiency)


def test_arithmetic_binds() -> None:
    # 4e10 / (1e15 · 0.5) = 80 µs; 3.2e7 / (4e12 · 0.8) = 10 µs
    found = cost(flops=4e10, bytes_=3.2e7)
    assert found.seconds == pytest.approx(82e-6)
    assert found.parts == {"compute": pytest.approx(80e-6), "memory": pytest.approx(10e-6), "floor": 2e-6}
    assert found.bound_by == "compute"
    assert found.efficiency == 0.5


def test_memory_binds() -> None:
    found = cost(flops=4e9, bytes_=3.2e8)
    assert found.seconds == pytest.approx(102e-6)
    assert found.bound_by == "memory"
    assert found.efficiency == 0.8


def test_the_floor_binds() -> None:
    found = cost(flops=1.0, bytes_=1.0)
    assert found.seconds == pytest.approx(2e-6, rel=1e-3)
    assert found.bound_by == "floor"


def test_the_terms_repeat_the_formula() -> None:
    found = cost(flops=4e10, bytes_=3.2e7)
    value = {name: float(amount) for name, (amount, _) in found.terms.items()}
    arithmetic = value["FLOP"] / (value["peak"] * value["e_c"])
    traffic = value["bytes"] / (value["bandwidth"] * value["e_m"])
    assert found.seconds == pytest.approx(value["floor"] + max(arithmetic, traffic))


def test_arrays_broadcast() -> None:
    flops, bytes_ = np.array([[1e9], [1e11]]), np.array([1e6, 1e8, 1e9])
    found = cost(flops=flops, bytes_=bytes_)
    assert np.shape(found.seconds) == (2, 3)
    for i, j in np.ndindex(2, 3):
        by_hand = 2e-6 + max(flops[i, 0] / 0.5e15, bytes_[j] / 3.2e12)
        assert np.asarray(found.seconds)[i, j] == pytest.approx(by_hand, rel=1e-12)


def test_a_correction_by_hand_scales_everything_and_says_so() -> None:
    before = cost(flops=4e10, bytes_=3.2e7)
    after = before.corrected(1.5)
    assert after.seconds == pytest.approx(1.5 * before.seconds)
    assert {name: 1.5 * part for name, part in before.parts.items()} == pytest.approx(dict(after.parts))
    assert after.origin is Origin.ASSUMED
    assert "a table" in after.source
    assert "x1.5" in after.source
    assert before.origin is Origin.MEASURED
