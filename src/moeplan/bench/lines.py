"""A run as it goes, for people: a header, and a line per shape whose prediction stands before its measurement."""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.bench.family import COLUMNS, Family, Shape
from moeplan.bench.harness import Measured, Refused
from moeplan.bench.session import Outcome
from moeplan.ops.cost import Cost

_AFTER = ("measured µs", "p10", "p90", "runs", "error", "result off by")
_PREDICTED, _GAP = "predicted µs", "  "


class Lines:
    """Columns as wide as the widest shape needs."""

    def __init__(self, family: Family, shapes: Sequence[Shape]) -> None:
        self._widths = {
            name: max([len(name), *(len(str(shape[name])) for shape in shapes)]) for name in COLUMNS[family]
        }

    def header(self) -> str:
        """Names of the columns, units with them."""
        shape = [name.rjust(width) for name, width in self._widths.items()]
        return _GAP.join([*shape, _PREDICTED, *_AFTER])

    def before(self, shape: Shape, predicted: Cost) -> str:
        """The shape and its prediction."""
        cells = [str(shape[name]).rjust(width) for name, width in self._widths.items()]
        return _GAP.join([*cells, _micro(float(predicted.seconds), _PREDICTED)])

    def after(self, outcome: Outcome) -> str:
        """The measurement, its spread, the prediction's error, how far the result is from the reference."""
        result = outcome.result
        if isinstance(result, Refused):
            return f"{_GAP}refused: {result.reason}"
        assert isinstance(result, Measured)
        times = [result.seconds, result.p10, result.p90]
        cells = [_micro(value, name) for value, name in zip(times, _AFTER, strict=False)]
        cells += [f"{result.runs:>4}", f"{outcome.error:>+6.1%}".rjust(len("error")), f"{result.error:.2g}"]
        return _GAP + _GAP.join(cells)


def _micro(seconds: float, header: str) -> str:
    return f"{seconds * 1e6:,.1f}".rjust(max(len(header), 7))
