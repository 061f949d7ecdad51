"""The look of the terminal: tables without lines, numbers to the right, the unit in the header or the cell.

A layout library would cost more CPU time than a whole prediction; what is needed here is small.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import click

LEFT = {
    "not stated, or not modelled",
    "GPU",
    "NIC",
    "attention",
    "binds",
    "bound by",
    "from",
    "how",
    "kind",
    "knob",
    "meaning",
    "model",
    "operator",
    "pipeline",
    "put right",
    "rung",
    "schedule",
    "setup",
    "statistic",
    "source",
    "stage",
    "tool",
    "use",
}
WRAPS = {"from", "meaning", "source", "not stated, or not modelled"}
GAP = 2
LEAST_WRAP = 24


class Table(NamedTuple):
    """Headers, rows of text, a title on a line of its own."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    def lines(self, width: int) -> list[str]:
        """Lay out for a width: a column that wraps gives way, the others never do.

        Where that is too wide, what is alike in all rows is said once beneath them, and a single row stands upright.
        """
        if self.rows and self._least_width() > width:
            if len(self.rows) == 1:
                return self._upright(width)
            if alike := [index for index in range(1, len(self.headers)) if self._alike(index)]:
                return self._without(alike, width)
        return self._as_columns(width)

    def _as_columns(self, width: int) -> list[str]:
        sizes = self._sizes()
        for index, header in enumerate(self.headers):
            if header in WRAPS:
                others = sum(sizes) - sizes[index] + GAP * (len(sizes) - 1)
                sizes[index] = max(min(sizes[index], width - others), LEAST_WRAP)
        result = [click.style(self.title, bold=True)] if self.title else []
        for row in (self.headers, *self.rows):
            cells = [
                textwrap.wrap(cell, size) or [""] if header in WRAPS else [cell]
                for header, cell, size in zip(self.headers, row, sizes, strict=True)
            ]
            for line in range(max(map(len, cells))):
                parts = [cell[line] if line < len(cell) else "" for cell in cells]
                result.append(self._line(parts, sizes))
        return result

    def _sizes(self) -> list[int]:
        return [max(map(len, column)) for column in zip(self.headers, *self.rows, strict=True)]

    def _least_width(self) -> int:
        sizes = self._sizes()
        least = [
            min(size, LEAST_WRAP) if header in WRAPS else size for header, size in zip(self.headers, sizes, strict=True)
        ]
        return sum(least) + GAP * (len(least) - 1)

    def _alike(self, index: int) -> bool:
        return self.headers[index] not in WRAPS and len({row[index] for row in self.rows}) == 1

    def _without(self, alike: list[int], width: int) -> list[str]:
        kept = [index for index in range(len(self.headers)) if index not in alike]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        lines = Table(tuple(self.headers[index] for index in kept), rows, self.title).lines(width)
        said = ", ".join(f"{self.headers[index]} {self.rows[0][index]}" for index in alike)
        return [*lines, *textwrap.wrap(f"In every row: {said}", width, break_on_hyphens=False)]

    def _upright(self, width: int) -> list[str]:
        widest = max(map(len, self.headers))
        result = [click.style(self.title, bold=True)] if self.title else []
        for header, cell in zip(self.headers, self.rows[0], strict=True):
            wrapped = textwrap.wrap(cell, max(width - widest - GAP, LEAST_WRAP)) or [""]
            result += [
                f"{name:<{widest + GAP}}{part}".rstrip() for name, part in zip_longest([header], wrapped, fillvalue="")
            ]
        return result

    def _line(self, parts: list[str], sizes: list[int]) -> str:
        padded = [
            part.ljust(size) if header in LEFT else part.rjust(size)
            for header, part, size in zip(self.headers, parts, sizes, strict=True)
        ]
        return (" " * GAP).join(padded).rstrip()


class Console:
    """Standard output: prose wrapped to its width, tables, and text as it is."""

    def __init__(self) -> None:
        self.width = _terminal_width() if sys.stdout.isatty() else 160

    def print(self, content: str | Table = "", *, raw: bool = False) -> None:
        """Write prose or a table; `raw` text is not wrapped, so that it can be copied."""
        if isinstance(content, Table):
            text = "\n".join(content.lines(self.width))
        elif raw:
            text = content
        else:
            text = "\n".join(textwrap.wrap(content, self.width, break_on_hyphens=False)) if content.strip() else content
        click.echo(text)


def _terminal_width() -> int:
    """Columns of the terminal; 80 where it does not tell, as in a container."""
    try:
        return os.get_terminal_size().columns or 80
    except OSError:
        return 80


def console() -> Console:
    """The console of this process."""
    return Console()


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> Table:
    """Lay out rows of text under headers."""
    return Table(tuple(headers), tuple(tuple(row) for row in rows), title)
