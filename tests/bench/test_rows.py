"""The growing table: readable after every row, resumed, never mixed with another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from fakes import shape, sidecar

from moeplan.bench.family import COLUMNS, Family
from moeplan.bench.rows import Rows
from moeplan.errors import InputError
from moeplan.kernels.measured import KINDS
from moeplan.kernels.table import read_table

NAMES = (*COLUMNS["grouped_gemm_fp8"], "seconds")


def rows(folder: Path) -> Rows:
    return Rows(folder / "kernels" / "h800" / "grouped_gemm_fp8.csv", "grouped_gemm_fp8")


def test_columns_are_those_that_the_predictor_reads() -> None:
    measured = [family for family in get_args(Family) if family in KINDS]
    assert set(get_args(Family)) - set(measured) == {"copy", "dispatch", "combine"}  # no kernels of a GPU alone
    for family in measured:
        assert COLUMNS[family] == KINDS[family].columns


def test_the_sidecar_comes_first_and_the_table_with_its_first_row(tmp_path: Path) -> None:
    table = rows(tmp_path)
    assert table.open(sidecar()) == set()
    assert table.path.with_suffix(".yaml").exists()
    assert not table.path.exists()
    table.append(shape(8, 4), 1.25e-5)
    assert table.path.read_text() == "groups,m,n,k,seconds\n8,4,4096,7168,1.25e-05\n"


def test_readable_after_every_row_to_the_last_bit(tmp_path: Path) -> None:
    table = rows(tmp_path)
    table.open(sidecar())
    for number in range(1, 6):
        table.append(shape(number, 1), number / 3e6)
        found = read_table(table.path, NAMES)
        assert [row["seconds"] for row in found.rows] == [done / 3e6 for done in range(1, number + 1)]
    assert found.sidecar == sidecar()


def test_an_old_table_says_what_it_holds(tmp_path: Path) -> None:
    rows(tmp_path).open(sidecar())
    rows(tmp_path).append(shape(8, 4), 1e-5)
    rows(tmp_path).append(shape(8, 2), 1e-5)
    later = sidecar(date="2026-02-01", note="another day", command="the same")
    assert rows(tmp_path).open(later) == {(8, 4, 4096, 7168), (8, 2, 4096, 7168)}
    assert read_table(rows(tmp_path).path, NAMES).sidecar == sidecar()  # of the day it was begun


@pytest.mark.parametrize("torn", ["8", "8,2,4096,7168,1.2", "\n8,2,4"])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    table = rows(tmp_path)
    table.open(sidecar())
    table.append(shape(8, 4), 1e-5)
    whole = table.path.read_text()
    table.path.write_text(whole + torn.removeprefix("\n"))
    assert table.open(sidecar()) == {(8, 4, 4096, 7168)}
    assert table.path.read_text() == whole


@pytest.mark.parametrize("torn", ["", "groups,m", "groups,m,n,k,seconds\n", "groups,m,n,k,seconds\n8,4,4"])
def test_a_table_torn_in_its_first_row_starts_anew(tmp_path: Path, torn: str) -> None:
    table = rows(tmp_path)
    table.open(sidecar())
    table.path.write_text(torn)
    assert table.open(sidecar()) == set()
    table.append(shape(8, 4), 1e-5)
    assert len(read_table(table.path, NAMES).rows) == 1


@pytest.mark.parametrize("field", ["gpu", "kernel", "precision", "driver", "source"])
def test_another_machine_or_kernel_is_another_table(tmp_path: Path, field: str) -> None:
    table = rows(tmp_path)
    table.open(sidecar())
    table.append(shape(8, 4), 1e-5)
    with pytest.raises(InputError) as caught:
        table.open(sidecar(**{field: "other"}))
    assert [fault.path for fault in caught.value.faults] == [field]
    assert "--out" in caught.value.faults[0].fix


def test_a_table_without_a_sidecar_is_not_added_to(tmp_path: Path) -> None:
    table = rows(tmp_path)
    table.open(sidecar())
    table.append(shape(8, 4), 1e-5)
    table.path.with_suffix(".yaml").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        table.open(sidecar())


def test_a_table_with_a_bad_cell_is_not_added_to(tmp_path: Path) -> None:
    table = rows(tmp_path)
    table.open(sidecar())
    table.append(shape(8, 4), 1e-5)
    table.path.write_text(table.path.read_text().replace("4096", "x"))
    with pytest.raises(InputError, match="line 2, n"):
        table.open(sidecar())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file")
    with pytest.raises(InputError, match="cannot be made"):
        rows(tmp_path).open(sidecar())


def test_the_log_is_one_object_a_line(tmp_path: Path) -> None:
    table = rows(tmp_path)
    table.open(sidecar())
    table.note({"refused": "off by 50 %"})
    table.note({"measured_s": 1e-5})
    assert [json.loads(line) for line in table.log.read_text().splitlines()] == [
        {"refused": "off by 50 %"},
        {"measured_s": 1e-5},
    ]
