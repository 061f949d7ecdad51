"""Small kernels: a floor and bytes; gaps between kernels."""

from __future__ import annotations

import numpy as np
import pytest

from moeplan.kernels.origin import Origin
from moeplan.ops.elementwise import elementwise, launch_gaps
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
MACHINE = Machine.of(CATALOG.cluster("h800-cx7"), CATALOG)


def test_a_norm_is_mostly_its_floor() -> None:
    """128 rows of 7168 in bf16, read and written twice: 7.3 MB at 70 % of 3.35 TB/s, 3.1 µs beside a floor of 2."""
    cost = elementwise("norm", MACHINE, rows=128, bytes_per_row=4 * 7168 * 2)
    assert cost.bytes_ == 7_340_032
    assert cost.seconds == pytest.approx(2e-6 + 7_340_032 / (0.7 * 3.35e12))
    assert cost.bound_by == "memory"
    assert elementwise("norm", MACHINE, rows=1, bytes_per_row=4 * 7168 * 2).bound_by == "floor"
    assert cost.origin is Origin.ASSUMED
    assert cost.flops == 0


def test_gaps_count_kernels_and_take_the_shape_of_the_rows() -> None:
    cost = launch_gaps(MACHINE, 27, rows=np.ones((2, 3)))
    assert np.shape(cost.seconds) == (2, 3)
    assert np.unique(cost.seconds) == pytest.approx([27 * 0.85e-6])
    assert cost.origin is Origin.FITTED
    assert launch_gaps(MACHINE, 0, rows=1.0).seconds == 0
