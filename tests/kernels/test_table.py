"""The reader of kernel tables: every fault is named, nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError
from moeplan.kernels.table import Table, read_table

SIDECAR = """
title: A table
gpu: H800
kernel: a kernel
precision: fp8
source: this test
licence: none
date: "2025-03"
"""
COLUMNS = ("m", "n", "seconds")


def write(folder: Path, text: str, sidecar: str = SIDECAR) -> Path:
    path = folder / "table.csv"
    path.write_bytes(text.encode())
    path.with_suffix(".yaml").write_text(sidecar, encoding="utf-8")
    return path


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_table(write(folder, text), COLUMNS)
    return [str(fault) for fault in caught.value.faults]


def test_a_good_table(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "seconds,m,n\n1e-6,8,4096\n2.5e-6,16,4096\r\n"), COLUMNS)
    assert table.rows == ({"m": 8.0, "n": 4096.0, "seconds": 1e-6}, {"m": 16.0, "n": 4096.0, "seconds": 2.5e-6})
    assert table.sidecar.title == "A table"
    assert table.sidecar.cold_share is None


def test_a_missing_and_an_unknown_column_are_both_named(tmp_path: Path) -> None:
    found = faults(tmp_path, "m,k,seconds\n1,2,3\n")
    assert len(found) == 2
    assert "column 'n' is missing" in found[0]
    assert "unknown column 'k'" in found[1]
    assert all("columns: m, n, seconds" in fault for fault in found)


@pytest.mark.parametrize("cell", ["nan", "NaN", "inf", "-inf", "1e999", "0", "0.0", "-1", "", "x", "1,2", "1 2"])
def test_a_cell_that_is_no_positive_number(tmp_path: Path, cell: str) -> None:
    quoted = f'"{cell}"'
    found = faults(tmp_path, f"m,n,seconds\n1,2,3\n4,{quoted},6\n")
    assert len(found) == 1
    assert found[0].startswith("line 3, n: holds ")
    assert repr(cell) in found[0]


def test_every_bad_cell_is_named(tmp_path: Path) -> None:
    found = faults(tmp_path, "m,n,seconds\n0,2,3\n4,nan,-6\n7,8,9\n")
    assert [fault.split(":")[0] for fault in found] == ["line 2, m", "line 3, n", "line 3, seconds"]


def test_short_and_long_lines(tmp_path: Path) -> None:
    assert "line 2, seconds: holds None" in faults(tmp_path, "m,n,seconds\n1,2\n")[0]
    assert "more cells than the header" in faults(tmp_path, "m,n,seconds\n128,7168,16384,4.6e-5\n")[0]


def test_a_column_twice(tmp_path: Path) -> None:
    assert "column 'm' appears twice" in faults(tmp_path, "m,n,seconds,m\n1,2,3,4\n")[0]


@pytest.mark.parametrize(("text", "words"), [("m,n,seconds\n", "there are none"), ("", "is missing")])
def test_an_empty_table(tmp_path: Path, text: str, words: str) -> None:
    assert words in faults(tmp_path, text)[0]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = write(tmp_path, "m,n,seconds\n1,2,3\n")
    path.write_bytes(b"m,n,seconds\n1,2,\xff\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_table(path, COLUMNS)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        read_table(path, COLUMNS)


def test_no_table_without_its_sidecar(tmp_path: Path) -> None:
    path = write(tmp_path, "m,n,seconds\n1,2,3\n", SIDECAR.replace("source: this test\n", "sauce: this test\n"))
    with pytest.raises(InputError) as caught:
        read_table(path, COLUMNS)
    assert {fault.path for fault in caught.value.faults} == {"source", "sauce"}
    path.with_suffix(".yaml").unlink()
    with pytest.raises(InputError, match=r"table\.yaml.*cannot be read"):
        read_table(path, COLUMNS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@settings(max_examples=80, deadline=None)
@given(
    text=st.one_of(st.text(max_size=40), st.text(alphabet='mn,seconds\n\r"0123.e-', max_size=40)), good=st.booleans()
)
def test_any_text_is_a_table_or_an_input_error(folder: Path, text: str, good: bool) -> None:
    path = folder / "table.csv"
    path.write_bytes((("m,n,seconds\n" if good else "") + text).encode("utf-8", "surrogatepass"))
    path.with_suffix(".yaml").write_text(SIDECAR, encoding="utf-8")
    try:
        table = read_table(path, COLUMNS)
    except InputError:
        return
    assert isinstance(table, Table)
    assert table.rows
    assert all(0 < value < float("inf") for row in table.rows for value in row.values())
