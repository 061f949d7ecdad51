"""Tiles: the batch article's figures, expectations against sums by hand, waves, strategies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moeplan.errors import InputError
from moeplan.routing.draws import draw_rows
from moeplan.routing.picks import picks
from moeplan.routing.popularity import popularity
from moeplan.routing.tiles import (
    critical_tile,
    expected_tile_waste,
    expected_tiles,
    grouped_tiles,
    pad_rows_cost_time,
    pad_time,
    strategies,
    tile_intensity,
    tile_waste,
    waves,
)

H20: Any = {"ridge": 296 / 4.0, "bytes_per_parameter": 1}  # FP8 FLOP per byte


@pytest.mark.parametrize(("tile", "waste"), [(64, 12.8), (16, 3.2), (8, 1.6)])
def test_waste_at_five_rows(tile: int, waste: float) -> None:
    assert tile_waste(5, tile) == pytest.approx(waste)
    assert np.asarray(tile_waste(np.array([5, tile]), tile)) == pytest.approx(np.array([waste, 1]))


def test_critical_tile_of_the_article() -> None:
    assert critical_tile(296 / 4.0, 1) == pytest.approx(37)
    assert critical_tile(280 / 3.33, 1) == pytest.approx(42, abs=0.05)
    assert tile_intensity(16, 1) == 32
    assert tile_intensity(critical_tile(74, 2), 2) == 74
    assert not pad_rows_cost_time(16, **H20)
    assert np.asarray(pad_rows_cost_time(np.array([16, 37, 64]), **H20)).tolist() == [False, False, True]


def test_pad_rows_are_free_below_the_ridge() -> None:
    assert pad_time(5, 16, **H20) == 1
    assert pad_time(5, 64, **H20) == pytest.approx(64 / 37)  # arithmetic of the tile over one reading of the weights
    assert pad_time(64, 64, **H20) == 1
    assert pad_time(50, 128, **H20) == pytest.approx(128 / 50)  # both wait for arithmetic


@pytest.mark.parametrize("law", ["uniform", "zipf:0.7"])
def test_expected_waste_against_draws(law: str) -> None:
    heat = popularity(law, experts=16, top_k=2)
    rows = draw_rows(picks(heat), tokens=40, draws=100_000)
    tiles = np.ceil(rows / 4).sum(axis=1)
    told = expected_tiles(40, 4, heat.probability)
    assert abs(tiles.mean() - told) < 3 * tiles.std() / np.sqrt(100_000)
    assert expected_tile_waste(40, 4, heat.probability) == pytest.approx(told * 4 / 80)


def test_expected_waste_at_the_ends() -> None:
    share = np.full(256, 8 / 256)
    assert expected_tiles(1, 64, share) == pytest.approx(8)  # one token, one tile per pick
    assert expected_tile_waste(1, 64, share) == pytest.approx(64)
    assert expected_tile_waste(1_000_000, 16, share) == pytest.approx(1, abs=1e-3)
    assert expected_tile_waste(7, 1, share) == pytest.approx(1)
    several = np.asarray(expected_tile_waste(np.array([[1, 32], [512, 4096]]), 16, share))
    assert np.all(np.diff(several.ravel()) < 0)
    assert several[0, 1] == expected_tile_waste(32, 16, share)


def test_waves() -> None:
    one = waves(133, sms=132)
    assert [one.waves, one.last, one.efficiency] == pytest.approx([2, 1 / 132, 133 / 264])
    many = waves(np.array([1, 132, 264, 265]), sms=132)
    assert np.asarray(many.waves).tolist() == [1, 1, 2, 3]
    assert np.all(np.asarray(many.efficiency) <= 1)
    assert grouped_tiles(8, columns=4096, tile_columns=128) == 256
    assert grouped_tiles(8, columns=100, tile_columns=128) == 8


def test_strategies_at_five_rows() -> None:
    found = strategies(5)
    assert [(one.name, one.capturable) for one in found] == [
        ("pad", True),
        ("grouped", False),
        ("masked", True),
        ("masked", True),
    ]
    assert [one.flop_waste for one in found] == pytest.approx([12.8, 12.8, 3.2, 1.6])
    assert [one.memory_rows for one in found] == [64, 5, 64, 64]
    assert [one.work_rows for one in found] == [64, 64, 16, 8]


def test_masked_never_does_more_than_pad() -> None:
    rows = np.arange(1, 257)
    pad, _, masked, finer = strategies(rows, most_rows=256)
    assert np.all(masked.work_rows <= pad.work_rows)
    assert np.all(finer.work_rows <= masked.work_rows)
    assert np.all(finer.work_rows >= rows)


def test_faults() -> None:
    with pytest.raises(InputError, match="2 faults"):
        tile_waste(0, 0)
    with pytest.raises(InputError, match="65 rows do not fit a buffer of 64"):
        strategies(65)
    with pytest.raises(InputError, match="sms"):
        waves(5, sms=0)
