"""Fits and their errors for people."""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.calibrate.tables import Calibration
from moeplan.kernels.fit import FitError, FitFile
from moeplan.report.tables import Console, table

NONE = ("-", "-", "-")


def print_calibrations(out: Console, found: Sequence[Calibration], written: Sequence[str]) -> None:
    """A row per GPU and kind: errors on the rows left out, before and after; then the parameters."""
    rows = [
        [
            f"{item.gpu}, {item.kind}",
            f"{item.rows} ({item.held_out})",
            *(NONE if item.before is None else _error(item.before)),
            *_error(item.after),
        ]
        for item in found
    ]
    headers = ("kind", "rows (left out)", "before: median", "p90", "bias", "after: median", "p90", "bias")
    out.print(table(headers, rows, title="Errors on whole shapes left out"))
    for item in found:
        out.print()
        out.print(f"{item.gpu}, {item.kind}; before: {item.before_title or 'nothing answered'}")
        out.print("  " + ", ".join(f"{name} {value}" for name, value in item.file.parameters.items()))
        if item.suspect:
            out.print(
                f"  warning: at {item.ratio:.0%} of the expected speed; look for a fault of the machine (its network, "
                "clocks, other jobs) before you call it an efficiency: not written, unless --force says so"
            )
        if item.worse:
            out.print("  further off than what answered before: not written, unless --force says so")
    for path in written:
        out.print(f"written: {path}")


def print_fits(out: Console, files: Sequence[FitFile]) -> None:
    """Each chip with its cross-validated error, each generation with its worst left out, then each carried over."""
    rows = []
    for file in files:
        alone = len(file.gpus) == 1
        what = "fitted" if alone else "together, worst left out"
        rows.append([what, " + ".join(file.gpus), f"{file.error.rows:,}", *_error(file.error)])
    for file in files:
        rows += [
            [f"carried to {file.gpus[0]}", " + ".join(item.of), f"{item.error.rows:,}", *_error(item.error)]
            for item in file.carried
        ]
    out.print(table(("kind", "GPU", "rows", "median", "p90", "bias"), rows, title=files[0].title))
    out.print()


def _error(error: FitError) -> tuple[str, str, str]:
    return f"{error.median:.1%}", f"{error.p90:.1%}", f"{error.bias:+.1%}"
