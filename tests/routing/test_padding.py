"""Whole tiles: rows that a kernel works on."""

import numpy as np
import pytest

from moeplan.routing.padding import expected_padded_rows, padded_rows


def test_tile_waste_of_the_batch_article() -> None:
    """M_e = 5: BM 64 wastes 12.8x, BM 16 3.2x, BM 8 1.6x (batch article, tile waste)."""
    assert [padded_rows(5, tile) / 5 for tile in (64, 16, 8)] == pytest.approx([12.8, 3.2, 1.6])


def test_known_rows_are_rounded_up() -> None:
    assert padded_rows(64, 64) == 64
    assert padded_rows(65, 64) == 128
    assert padded_rows(np.array([1.0, 128.0, 129.0]), 64).tolist() == [64.0, 128.0, 192.0]  # type: ignore[union-attr]


@pytest.mark.parametrize("mean", [1, 3, 10, 30, 50, 60, 64, 70, 100, 128, 150, 256, 300, 512, 700, 1024])
def test_the_expectation_against_a_million_draws(mean: float) -> None:
    """M ~ Poisson(mean), given that it is at least 1: what routing many tokens over many experts gives a group."""
    draws = np.random.default_rng(7).poisson(mean, 1_000_000)
    draws = draws[draws > 0]
    simulated = float(np.mean(np.ceil(draws / 64)) * 64)
    assert expected_padded_rows(float(mean), 64) == pytest.approx(simulated, rel=0.02)


def test_never_fewer_rows_than_there_are_and_rising() -> None:
    rows = np.linspace(1, 3000, 6000)
    padded = np.asarray(expected_padded_rows(rows, 64))
    assert (padded >= rows - 1e-9).all()
    assert (np.diff(padded) > -1e-6 * padded[1:]).all()
