"""A run over many shapes: skip what the table holds, measure, write the row, keep a log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from moeplan.bench.family import Family, Shape, key
from moeplan.bench.harness import Effort, Measured, Refused, measure
from moeplan.bench.kernel import Kernel, Timer
from moeplan.bench.ranks import Ranks
from moeplan.bench.rows import Rows
from moeplan.kernels.table import Sidecar
from moeplan.ops.cost import Cost


class Outcome(Struct, frozen=True, kw_only=True, eq=False):
    """A shape, what was predicted for it beforehand, and what came out; result None: listed only."""

    shape: Shape
    predicted: Cost
    result: Measured | Refused | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        if not isinstance(self.result, Measured):
            return None
        return float(self.predicted.seconds) / self.result.seconds - 1

    def content(self) -> dict[str, Any]:
        """Everything, in SI units."""
        predicted = self.predicted
        found: dict[str, Any] = {"shape": dict(self.shape), "predicted_s": float(predicted.seconds)}
        found |= {"bound_by": predicted.bound_by, "origin": str(predicted.origin), "source": predicted.source}
        if isinstance(self.result, Measured):
            result = asdict(self.result)
            found |= {"measured_s": result["seconds"], "p10_s": result["p10"], "p90_s": result["p90"]}
            found |= {"runs": result["runs"], "result_error": result["error"], "prediction_error": self.error}
        elif isinstance(self.result, Refused):
            found["refused"] = self.result.reason
        return found


class Session:
    """One kernel over the shapes that its table does not hold yet.

    Every rank measures; rank 0 decides what is left and writes.
    """

    def __init__(self, family: Family, kernel: Kernel, timer: Timer, rows: Rows, ranks: Ranks, effort: Effort) -> None:
        self._family, self._kernel, self._timer = family, kernel, timer
        self._ranks, self._effort = ranks, effort
        self.rows = rows
        self.written = 0

    def open(self, sidecar: Sidecar, shapes: Sequence[Shape]) -> list[Shape]:
        """Open the table; return the shapes still to measure. Raises InputError where Rows.open does."""
        done = self.rows.open(sidecar) if self._ranks.rank == 0 else set()
        return self._ranks.share([shape for shape in shapes if key(shape, self._family) not in done])

    def measure(self, shape: Shape, predicted: Cost) -> Outcome:
        """Measure one shape and put it on disk."""
        result = measure(self._kernel, shape, self._timer, self._effort)
        outcome = Outcome(shape=shape, predicted=predicted, result=result)
        if self._ranks.rank == 0:
            if isinstance(result, Measured):
                self.rows.append(shape, result.seconds)
                self.written += 1
            self.rows.note({"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **outcome.content()})
        return outcome
