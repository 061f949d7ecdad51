"""The look of every terminal table: no box lines, numbers to the right, the unit in the header or the cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

LEFT = {
    "rung",
    "meaning",
    "knob",
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


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> RenderableType:
    """Lay out rows of text under headers, the title on a line of its own."""
    layout = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        wraps = header in ("from", "source", "meaning")
        layout.add_column(header, justify="left" if header in LEFT else "right", no_wrap=not wraps)
    for row in rows:
        layout.add_row(*(Text(cell) for cell in row))
    return Group(Text(title, style="bold"), layout) if title else layout
