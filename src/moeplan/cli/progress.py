"""Progress of a long search: silent for a second, then a bar with the time left, on standard error."""

from __future__ import annotations

import sys
import time

PATIENCE = 1.0  # seconds


class SearchProgress:
    """Called with (tried, all); draws nothing unless the search takes longer than PATIENCE."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._start = time.monotonic()
        self._printed = 0.0
        self._shown = False

    def __call__(self, tried: int, total: int) -> None:
        """Redraw at most ten times a second; without a terminal, a line every ten seconds."""
        elapsed = time.monotonic() - self._start
        terminal = sys.stderr.isatty()
        if elapsed < PATIENCE or elapsed - self._printed < (0.1 if terminal else 10.0):
            return
        self._printed, self._shown = elapsed, True
        left = elapsed * (total - tried) / max(tried, 1)
        text = f"{self._label}: {tried:,} of {total:,} ({tried / total:.0%}), {left:.0f} s left"
        print(f"\r\x1b[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        if self._shown and sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """One line of progress on standard error, written over by the next where there is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
