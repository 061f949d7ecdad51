"""The front against its definition: every row compared with every other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.search.pareto import pareto_front

Row = tuple[float, ...]
SMALL = st.integers(-3, 3).map(float)  # many equal values
ANY = st.floats(-1e9, 1e9, allow_nan=False)


def dominates(one: Row, other: Row) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True)) and one != other


def by_definition(rows: list[Row]) -> list[int]:
    """Indices of rows that none dominates; of equal rows the first."""
    return [
        index
        for index, row in enumerate(rows)
        if not any(dominates(other, row) for other in rows) and row not in rows[:index]
    ]


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    dimensions = draw(st.integers(1, 4))
    value = draw(st.sampled_from([SMALL, ANY, st.one_of(SMALL, ANY)]))
    return draw(st.lists(st.tuples(*[value] * dimensions), max_size=25))


@given(tables())
@settings(max_examples=300, deadline=None)
def test_the_front_is_what_nothing_dominates(rows: list[Row]) -> None:
    width = len(rows[0]) if rows else 2
    found = pareto_front(np.array(rows, dtype=float).reshape(-1, width))
    assert sorted(int(index) for index in found) == by_definition(rows)


@given(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=40))
@settings(deadline=None)
def test_two_objectives_trade_off_along_the_front(rows: list[Row]) -> None:
    front = np.array(rows)[pareto_front(np.array(rows))]
    assert np.all(np.diff(front[:, 0]) < 0)
    assert np.all(np.diff(front[:, 1]) > 0)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_the_smallest_tables(dimensions: int) -> None:
    assert pareto_front(np.empty((0, dimensions))).tolist() == []
    assert pareto_front(np.zeros((1, dimensions))).tolist() == [0]
    assert pareto_front(np.full((5, dimensions), 7.0)).tolist() == [0]
    assert pareto_front(np.eye(dimensions)).tolist() == ([0] if dimensions == 1 else list(range(dimensions)))


def test_a_front_of_many_points() -> None:
    """A quarter circle: every point is on the front; a second one inside it adds none."""
    angle = np.linspace(0.0, np.pi / 2, 500)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = pareto_front(np.concatenate([0.9 * circle, circle]))
    assert sorted(found.tolist()) == list(range(500, 1000))
