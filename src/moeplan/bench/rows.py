"""The table that grows row by row: what is measured is on disk before the next shape starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import asdict, fields

from moeplan.bench.family import COLUMNS, Family, Shape, key
from moeplan.errors import Fault, InputError
from moeplan.files import write_whole
from moeplan.kernels.table import Sidecar, read_table
from moeplan.specs.loading import build, read_mapping

SOURCE = "moeplan bench"
_SAME = ("gpu", "kernel", "precision", "driver", "source")  # rows that differ in one of these make two tables


class Rows:
    """A family's CSV at `path`, its sidecar, and a log of everything that was found beside the seconds.

    The CSV comes with its first row, so that there is never a table without one; the sidecar comes before it.
    """

    def __init__(self, path: Path, family: Family) -> None:
        self.path = path
        self._family = family
        self._columns = (*COLUMNS[family], "seconds")

    @property
    def log(self) -> Path:
        """One JSON object a line: prediction, median, spread, errors, refusals."""
        return self.path.with_suffix(".log.jsonl")

    def open(self, sidecar: Sidecar) -> set[tuple[int, ...]]:
        """Write the sidecar of a new table; return the shapes that an old one holds.

        A last line without its end, left by an interruption, is dropped. Raises InputError when the old table was
        measured on another GPU, with another kernel or driver, or by hand, or cannot be read.
        """
        if not self.path.exists():
            self._make_folder()
            write_whole(self.path.with_suffix(".yaml"), _yaml(sidecar))
            return set()
        self._must_match(sidecar)
        self._drop_torn_line()
        if not self.path.exists():
            return set()
        return {key({c: int(row[c]) for c in COLUMNS[self._family]}, self._family) for row in self._read()}

    def append(self, shape: Shape, seconds: float) -> None:
        """Add a row and wait until it is on disk."""
        line = ",".join([*map(str, key(shape, self._family)), repr(seconds)])
        head = "" if self.path.exists() else ",".join(self._columns) + "\n"
        _append(self.path, f"{head}{line}\n")

    def note(self, content: Mapping[str, Any]) -> None:
        """Add a line to the log and wait until it is on disk."""
        _append(self.log, json.dumps(content, ensure_ascii=False) + "\n")

    def _read(self) -> tuple[dict[str, float], ...]:
        return read_table(self.path, self._columns).rows

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            folder = self.path.parent
            raise InputError("--out", [Fault(str(folder), f"cannot be made: {error.strerror}")]) from error

    def _must_match(self, wanted: Sidecar) -> None:
        path = self.path.with_suffix(".yaml")
        found = build(Sidecar, read_mapping(path), str(path))
        fix = "give another folder with --out: one table holds one kernel on one machine"
        faults = [
            Fault(name, f"the table there has {getattr(found, name)!r}, this run {getattr(wanted, name)!r}", fix)
            for name in _SAME
            if getattr(found, name) != getattr(wanted, name)
        ]
        if faults:
            raise InputError(str(self.path), faults)

    def _drop_torn_line(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole.count(b"\n") <= 1:  # the header alone is no table
            self.path.unlink()
        elif whole != content:
            write_whole(self.path, whole)


def _yaml(sidecar: Sidecar) -> bytes:
    defaults = {item.name: item.default for item in fields(sidecar)}
    written = {name: value for name, value in asdict(sidecar).items() if value != defaults[name]}
    text: str = yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=120)
    return text.encode()


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
