"""What a measurement needs: a kernel prepared for one shape, and a timer of the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moeplan.bench.family import Shape


class Prepared(Protocol):
    """A kernel with its data for one shape."""

    def before(self) -> None:
        """What each run needs first and is not timed: a barrier, the other half of a round trip."""

    def run(self) -> None:
        """Launch the kernel once."""

    def check(self) -> float:
        """Relative error of the last run's result: norm of the difference to a reference over the reference's."""
        ...


class Kernel(Protocol):
    """One implementation of a family. name: library, version, what it computes; table: the file's stem."""

    @property
    def name(self) -> str:
        """For the sidecar's `kernel`."""
        ...

    @property
    def table(self) -> str:
        """The stem of the file its rows go to."""
        ...

    @property
    def tolerance(self) -> float:
        """The largest relative error of a right result."""
        ...

    @property
    def tile_rows(self) -> int:
        """Rows of its tile, of which it works on whole ones; 1 where that is not known."""
        ...

    def prepare(self, shape: Shape) -> Prepared:
        """Make random inputs and outputs for the shape."""
        ...


class Timer(Protocol):
    """Measures device time. note: how, for the sidecar."""

    @property
    def note(self) -> str:
        """How it measures."""
        ...

    def now(self) -> float:
        """Seconds of the host's clock, for the time budget."""
        ...

    def times(self, prepared: Prepared, count: int) -> Sequence[float]:
        """Seconds of each of `count` runs, caches cold, `before` called ahead of each."""
        ...
