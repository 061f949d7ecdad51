"""Published steps, predicted beside measured, for people."""

from __future__ import annotations

from moeplan.explain.band_coverage import BandCoverage
from moeplan.report.tables import Console, digits, table
from moeplan.validate.steps import StepRow, StepScores

UNITS = {"tok_s_per_gpu": "tok/s/GPU", "tok_s_per_user": "tok/s/user", "layer_s": "µs a layer", "step_s": "ms a step"}
SCALES = {"layer_s": 1e6, "step_s": 1e3}


def print_steps(out: Console, scores: StepScores, bands: BandCoverage) -> None:
    """A row per published figure, the median of every group, what the bands hold, what was left out and why."""
    rows = [_cells(row) for row in scores.rows]
    headers = ("step", "batch", "figure", "measured", "predicted", "error", "trust", "not stated, or not modelled")
    out.print(
        table(headers, rows, title="Decode steps, predicted beside measured; error: predicted speed over measured")
    )
    out.print()
    medians = [[group, str(scores.count(group)), f"{scores.median(group):.1%}"] for group in scores.groups]
    medians.append(["all", str(scores.count()), f"{scores.median():.1%}"])
    out.print(table(("measured by", "rows", "median of |error|"), medians))
    out.print()
    out.print(_coverage(bands))
    out.print()
    out.print("Left out: " + "; ".join(f"{name} ({why})" for name, why in scores.left_out) + ".")


def _coverage(bands: BandCoverage) -> str:
    """How many rows the p10–p90 bands hold, and how many by bands that the rows' source had no part in."""
    rows, unseen = len(bands.rows), bands.unseen()
    missed = [f"{group} {inside} of {every}" for group, (inside, every) in unseen.items() if inside < every]
    total = sum(inside for inside, _ in unseen.values())
    others = f"{total} of {rows}" + (f" ({', '.join(missed)})" if missed else "")
    return (
        f"The p10–p90 band of a step (docs/layouts.md) holds {bands.inside} of the {rows} rows; {bands.shorter} ran "
        f"faster than its lower end. It was calibrated on these very rows: calibrated without a row's source it holds "
        f"{others}. That of a ratio holds {bands.pairs_inside} of {len(bands.pairs)} pairs of one source and chip."
    )


def _cells(row: StepRow) -> list[str]:
    scale = SCALES.get(row.metric, 1.0)
    return [
        row.name,
        str(row.batch),
        UNITS[row.metric],
        digits(row.measured * scale),
        digits(row.predicted * scale),
        f"{row.error:+.1%}",
        row.trust,
        row.weak,
    ]
