"""Scores of kernel predictions for people."""

from __future__ import annotations

from moeplan.report.tables import Console, table
from moeplan.validate.kernels import KernelScores


def print_kernels(out: Console, scores: KernelScores, *, worst: int) -> None:
    """A row per GPU and family, what was skipped and why, the worst rows if asked for."""
    rows = [
        [
            item.family,
            str(item.n),
            *(f"{value:.1%}" for value in (item.median, item.mean, item.p90)),
            f"{item.bias:+.1%}",
        ]
        for item in scores.scores
    ]
    out.print(table(("kind", "rows", "median", "mean", "p90", "bias"), rows, title=scores.title))
    if scores.skipped:
        reasons = sorted(scores.skipped.items(), key=lambda item: -item[1])
        out.print()
        out.print(
            f"Skipped {sum(scores.skipped.values()):,}: " + "; ".join(f"{why} ({count})" for why, count in reasons)
        )
    if scores.suspects:
        out.print()
        cells = [
            [family, shape, f"{measured * 1e6:.1f}", f"{predicted * 1e6:.1f}", f"{predicted / measured:.0%}"]
            for family, shape, measured, predicted in scores.suspects
        ]
        title = "Less than half the expected speed: a fault of the network sooner than an efficiency"
        out.print(table(("kind", "source", "measured µs", "predicted µs", "speed"), cells, title=title))
    if worst > 0:
        ranked = sorted(scores.rows, key=lambda row: -abs(row[3] / row[2] - 1))[:worst]
        out.print()
        cells = [
            [family, shape, f"{measured * 1e6:.1f}", f"{predicted * 1e6:.1f}", f"{predicted / measured - 1:+.0%}"]
            for family, shape, measured, predicted in ranked
        ]
        out.print(table(("kind", "source", "measured µs", "predicted µs", "error"), cells, title="Worst rows"))
