"""A run as people follow it: rows on one stream, progress with the time left on the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from moeplan.bench.family import Family, Shape, words
from moeplan.bench.harness import Measured, Refused
from moeplan.bench.lines import Lines
from moeplan.bench.session import Outcome, Session
from moeplan.ops.cost import Cost

PATIENCE = 10.0  # seconds between two lines of progress that go to a file
_SAVE, _RESTORE = "\x1b7", "\x1b8\x1b[K"  # of the cursor: the note vanishes before the row is finished


class Out(Protocol):
    """Writes text to the results' stream."""

    def __call__(self, text: str, /, *, end: str = "\n") -> None:
        """Write and flush."""


class Err(Protocol):
    """Writes progress."""

    terminal: bool

    def write(self, text: str) -> None:
        """Write and flush."""


class View:
    """Keeps what came out, so that an interrupted run can still say it. out: None on ranks that do not speak."""

    def __init__(
        self,
        family: Family,
        shapes: Sequence[Shape],
        *,
        out: Out | None,
        err: Err | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.tables: list[str] = []
        self.todo: list[Shape] = []
        self.stopped = False
        self._lines = Lines(family, shapes)
        self._out, self._err, self._clock = out, err, clock
        self._all = len(shapes)
        self._session: Session | None = None
        self._start = self._shown = 0.0
        self._done = 0

    def opens(self, session: Session, kernel: str, todo: list[Shape]) -> None:
        """Name the kernel and the file."""
        self._session, self.todo = session, todo
        self.tables.append(str(session.rows.path))
        self._start = self._shown = self._clock()
        self._done = 0
        self._say(f"{kernel} → {session.rows.path}")
        if len(todo) < self._all:
            self._say(f"{self._all - len(todo)} of {self._all} shapes are there already")
        if todo:
            self._say(self._lines.header())

    def before(self, shape: Shape, predicted: Cost) -> None:
        """The prediction, before anything is measured."""
        self._say(self._lines.before(shape, predicted), end="")
        self._progress(shape)

    def after(self, outcome: Outcome) -> None:
        """The measurement beside it."""
        self.outcomes.append(outcome)
        self._done += 1
        if self._err is not None and self._err.terminal:
            self._err.write(_RESTORE)
        self._say(self._lines.after(outcome))

    def closes(self) -> None:
        """How many rows there are now."""
        assert self._session is not None
        last = self.outcomes[len(self.outcomes) - self._done :]
        refused = sum(isinstance(item.result, Refused) for item in last)
        errors = sorted(
            abs(item.error) for item in last if isinstance(item.result, Measured) and item.error is not None
        )
        text = f"{self._session.written} rows written"
        if errors:
            text += f", median error of the prediction {errors[len(errors) // 2]:.1%}"
        self._say(text + (f", {refused} refused" if refused else ""))

    def interrupted(self) -> None:
        """Say where the rows are."""
        self.stopped = True
        if self._session is None or self._err is None:
            return
        self._say("")
        done, path = self._all - len(self.todo) + self._session.written, self._session.rows.path
        self._err.write(f"interrupted: {done} of {self._all} rows are in {path}; the same command goes on from there\n")

    def _say(self, text: str, *, end: str = "\n") -> None:
        if self._out is not None:
            self._out(text, end=end)

    def _progress(self, shape: Shape) -> None:
        if self._err is None:
            return
        now = self._clock()
        left = (now - self._start) * (len(self.todo) - self._done) / self._done if self._done else None
        text = f"{self._done + 1} of {len(self.todo)}: {words(shape)}" + (f"; {left:.0f} s left" if left else "")
        if self._err.terminal:
            self._err.write(f"{_SAVE}  {text}")
        elif now - self._shown >= PATIENCE:
            self._shown = now
            self._err.write(f"bench: {text}\n")
