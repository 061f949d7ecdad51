"""A measured kernel table: CSV with shapes and seconds, and a sidecar that says where it comes from."""

from __future__ import annotations

import csv
import importlib
import math
from pathlib import Path
from typing import Any

from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.specs.loading import build, read_mapping

SHORTEST, LONGEST = 1e-7, 10.0  # seconds of a kernel; beyond is a slip of the unit
LARGEST = 1e9  # of a column of a shape


class Sidecar(Struct, frozen=True, kw_only=True):
    """What stands beside a table: on what it was measured, with what, by whom, when, on what terms.

    cold_share: for a table measured with weights left in the L2 cache, the most of the roofline that a kernel is
    believed to reach when they come from memory, as in a real step; None for a table measured cold. tile_rows: rows of
    the kernel's tile, of which it always works on whole ones.
    """

    title: str
    gpu: str
    kernel: str
    precision: str
    source: str
    licence: str
    date: str
    note: str = ""
    command: str = ""
    driver: str = ""
    cold_share: float | None = None
    tile_rows: int = 1

    def __post_init__(self) -> None:
        faults = []
        if self.cold_share is not None and not 0.0 < self.cold_share <= 1.0:
            faults.append(
                Fault("cold_share", f"is {self.cold_share:g}", "a share of the roofline, above 0 and up to 1")
            )
        if self.tile_rows < 1:
            faults.append(Fault("tile_rows", f"is {self.tile_rows}", "give at least 1"))
        if faults:
            raise InputError(self.title, faults)


class Table(Struct, frozen=True, eq=False):
    """Rows of positive numbers by column, and their sidecar."""

    sidecar: Sidecar
    rows: tuple[dict[str, float], ...]


def read_table(path: Path, columns: tuple[str, ...]) -> Table:
    """Read `path`, a .csv or, with pyarrow, a .parquet, and the .yaml beside it.

    Raises InputError naming every missing or unknown column and every cell that is no positive finite number.
    """
    sidecar = build(Sidecar, read_mapping(path.with_suffix(".yaml")), str(path.with_suffix(".yaml")))
    header, written = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    allowed = f"columns: {', '.join(columns)}"
    faults = [Fault("header", f"column {name!r} is missing", allowed) for name in columns if name not in header]
    faults += [Fault("header", f"unknown column {name!r}", allowed) for name in header if name not in columns]
    faults += [
        Fault("header", f"column {name!r} appears twice", allowed)
        for name in sorted({*header})
        if header.count(name) > 1
    ]
    rows = [] if faults else [_row(line, columns, f"line {number}", faults) for number, line in enumerate(written, 2)]
    if not written and not faults:
        faults.append(Fault("rows", "there are none", "measure at least one shape"))
    if faults:
        raise InputError(str(path), faults)
    return Table(sidecar, tuple(rows))


def _csv(path: Path) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            return tuple(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(str(path), [Fault(str(path), f"cannot be read: {error}")]) from error


def _parquet(path: Path) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(str(path), [Fault("pyarrow", "is not installed", "pip install 'moeplan[silicon]'")]) from error
    try:
        content = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are one of them
        raise InputError(str(path), [Fault(str(path), f"cannot be read: {error}")]) from error
    return tuple(content.column_names), content.to_pylist()


def _row(line: dict[str, Any], columns: tuple[str, ...], where: str, faults: list[Fault]) -> dict[str, float]:
    row = {}
    if None in line:  # where csv puts what goes beyond the header
        faults.append(Fault(where, "has more cells than the header", f"columns: {', '.join(columns)}"))
    for name in columns:
        try:
            value = float(line[name])
        except (TypeError, ValueError):
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            faults.append(Fault(f"{where}, {name}", f"holds {line[name]!r}", "write a positive number"))
        elif name == "seconds" and not SHORTEST <= value <= LONGEST:
            faults.append(Fault(f"{where}, {name}", f"holds {line[name]!r}", "no kernel takes that; write seconds"))
        elif value > LARGEST:
            faults.append(Fault(f"{where}, {name}", f"holds {line[name]!r}", "beyond any real shape"))
        row[name] = value
    return row
