"""Published rows of many kernels in one file: chosen by their words, in SI units, with the card's figures."""

from __future__ import annotations

import csv

import pytest

from moeplan.errors import InputError
from moeplan.kernels.observed import NUMBERS, TEXT, observed, observed_keys
from moeplan.kernels.recipe import RowSource
from moeplan.kernels.rows import rows_of
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
PATH = CATALOG.data_file("observations", "all_to_all.csv")


def test_every_row_is_whole_and_says_where_it_was_read() -> None:
    with PATH.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 350
    for row in rows:
        assert set(row) == {*TEXT, *NUMBERS}
        assert row["source"].removeprefix("https://").startswith("github.com/"), row
        assert 1e-6 < float(row["seconds"]) < 0.1, row
        assert float(row["ep"]) * float(row["per_node"]) >= 4
        CATALOG.gpu(row["gpu"])
        CATALOG.nic(row["nic"])


def test_rows_are_chosen_by_their_words() -> None:
    """DeepEP's README of June 2025: 77 µs at EP8, 194 at EP256 on H800."""
    wanted = {"gpu": "h800", "backend": "deepep", "mode": "low-latency", "direction": "dispatch"}
    shape, seconds, title = observed(CATALOG, "all_to_all", wanted)
    assert shape["ep"].tolist() == [8, 32, 64, 128, 256]
    assert seconds.tolist() == [77e-6, 155e-6, 173e-6, 192e-6, 194e-6]
    assert set(shape["nic_rate"].tolist()) == {50e9}
    assert set(shape["combine"].tolist()) == {0.0}
    assert title.startswith("published all-to-alls")


def test_two_cards_per_gpu_are_twice_the_rate() -> None:
    shape, _, _ = observed(CATALOG, "all_to_all", {"gpu": "b300", "backend": "uccl"})
    assert set(shape["nic_rate"].tolist()) == {100e9}
    assert set(shape["nic_latency"].tolist()) == {1e-4}


def test_a_recipe_names_them() -> None:
    source = RowSource(gpu="h100", observations="all_to_all", where={"backend": "pplx-ibgda"}, limits={"ep": (8, 16)})
    assert set(rows_of(source, CATALOG).shape["ep"].tolist()) == {8, 16}


def test_each_kernel_card_and_gpu_once() -> None:
    keys = observed_keys(CATALOG, "all_to_all")
    assert len({tuple(sorted(key.items())) for key in keys}) == len(keys) > 50


def test_faults_name_what_there_is() -> None:
    with pytest.raises(InputError, match=r"no row of all_to_all\.csv holds"):
        observed(CATALOG, "all_to_all", {"backend": "pigeon"})
    with pytest.raises(InputError, match="where colour: is no column"):
        observed(CATALOG, "all_to_all", {"colour": "red"})
