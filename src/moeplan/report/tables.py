"""The look of every terminal table: no box lines, numbers to the right, the unit in the header or the cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

LEFT = {
    "pipeline",
    "tool",
    "setup",
    "how",
    "kind",
    "GPU",
    "NIC",
    "operator",
    "stage",
    "bound by",
    "from",
    "source",
    "schedule",
    "binds",
    "model",
    "use",
    "attention",
}


def console() -> Console:
    """A console that never wraps a table narrower than its content when the output is a file."""
    result = Console(highlight=False, markup=False)
    if not result.is_terminal:
        result.width = 160
    return result


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> Table:
    """Lay out rows of text under headers."""
    result = Table(
        box=None,
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for header in headers:
        left = header in LEFT
        result.add_column(
            header, justify="left" if left else "right", no_wrap=header not in ("from", "source"), style=None
        )
    for row in rows:
        result.add_row(*(Text(cell) for cell in row))
    return result
