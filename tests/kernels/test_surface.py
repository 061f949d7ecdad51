"""Interpolation over two logarithmic axes, checked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.kernels.origin import Origin, worst
from moeplan.kernels.surface import Surface

GRID = Surface.of([(1, 8, 0.2), (1, 32, 0.4), (4, 8, 0.6), (4, 32, 0.8)])


def check(surface: Surface, series: float, line: float, value: float, origin: Origin) -> None:
    found = surface.at(series, line)
    assert found[0] == pytest.approx(value, rel=1e-9)
    assert found[1] is origin


def test_measured_points_come_back() -> None:
    for series, line, value in ((1, 8, 0.2), (1, 32, 0.4), (4, 8, 0.6), (4, 32, 0.8)):
        found, origin = GRID.at(series, line)
        assert found == pytest.approx(value, abs=1e-15)
        assert origin is Origin.MEASURED


def test_half_way_in_the_logarithms_is_the_mean() -> None:
    check(GRID, 1, 16, 0.3, Origin.INTERPOLATED)
    check(GRID, 2, 8, 0.4, Origin.INTERPOLATED)
    check(GRID, 2, 16, 0.5, Origin.INTERPOLATED)
    # line 8·2^(1/2): a quarter of the way from 8 to 32; series 4^(1/4)·1: a quarter of the way from 1 to 4
    assert GRID.at(math.sqrt(2), 8 * math.sqrt(2))[0] == pytest.approx(0.2 + 0.25 * 0.2 + 0.25 * 0.4)


@pytest.mark.parametrize(
    ("series", "line", "value"),
    [(1, 4, 0.2), (1, 100, 0.4), (0.5, 8, 0.2), (9, 32, 0.8), (0.1, 1, 0.2), (100, 100, 0.8), (2, 1, 0.4)],
)
def test_outside_the_nearest_value_holds_and_says_so(series: float, line: float, value: float) -> None:
    found, origin = GRID.at(series, line)
    assert found == pytest.approx(value)
    assert origin is Origin.EXTRAPOLATED


def test_equal_points_are_averaged() -> None:
    surface = Surface.of([(1, 8, 0.2), (1, 8, 0.4), (1, 32, 0.9)])
    assert surface.at(1, 8)[0] == pytest.approx(0.3)


def test_a_single_curve_ignores_the_series_but_not_its_origin() -> None:
    surface = Surface.of([(1, 8, 0.2), (1, 32, 0.4)])
    check(surface, 1.0, 16, 0.3, Origin.INTERPOLATED)
    check(surface, 5.0, 16, 0.3, Origin.EXTRAPOLATED)


def test_points_need_no_grid_and_a_short_curve_is_not_stretched_unsaid() -> None:
    surface = Surface.of([(1, 1, 0.5), (1, 2, 0.6), (4, 1, 0.5), (4, 128, 0.7)])
    assert surface.at(1, 2)[1] is Origin.MEASURED
    assert surface.at(4, 64)[1] is Origin.INTERPOLATED
    check(surface, 1, 64, 0.6, Origin.EXTRAPOLATED)  # the curve of series 1 ends at 2
    assert surface.at(2, 64)[1] is Origin.EXTRAPOLATED  # half of its weight is from that curve


def test_an_array_is_the_matching_scalars() -> None:
    series, lines = np.array([0.5, 1.0, 1.7, 4.0, 9.0])[:, None], np.array([1.0, 8.0, 11.0, 32.0, 77.0])[None, :]
    values, origin = GRID.at(series, lines)
    assert np.shape(values) == (5, 5)
    assert origin is Origin.EXTRAPOLATED
    for (i, s), (j, x) in itertools.product(enumerate(series[:, 0]), enumerate(lines[0])):
        assert np.asarray(values)[i, j] == pytest.approx(GRID.at(float(s), float(x))[0], rel=1e-12)
    inside = GRID.at(np.array([1.0, 2.0]), np.array([8.0, 9.0]))
    assert inside[1] is Origin.INTERPOLATED


POINTS = st.dictionaries(
    st.tuples(st.sampled_from([1.0, 2.0, 5.0, 16.0]), st.sampled_from([1.0, 3.0, 8.0, 64.0, 500.0])),
    st.floats(0.01, 1.0),
    min_size=1,
)


@settings(max_examples=80, deadline=None)
@given(POINTS, st.floats(0.1, 100.0), st.floats(0.1, 5000.0))
def test_every_answer_lies_between_measured_ones(
    points: dict[tuple[float, float], float], series: float, line: float
) -> None:
    surface = Surface.of([(s, x, value) for (s, x), value in points.items()])
    found, _ = surface.at(series, line)
    assert min(points.values()) - 1e-12 <= found <= max(points.values()) + 1e-12
    for (s, x), value in points.items():
        check(surface, s, x, value, Origin.MEASURED)


def test_the_worst_origin_wins() -> None:
    assert worst() is Origin.MEASURED
    assert worst(Origin.INTERPOLATED, Origin.ASSUMED, Origin.FITTED) is Origin.ASSUMED
    assert [str(origin) for origin in sorted(Origin)] == [
        "measured",
        "interpolated",
        "extrapolated",
        "fitted",
        "assumed",
    ]
