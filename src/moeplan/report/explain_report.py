"""Reasons for people: the ladder, the shares, the elasticities, the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeplan.explain.compare import Difference
from moeplan.explain.ladder import Rung
from moeplan.explain.operators import StepOperator
from moeplan.explain.sensitivity import Elasticity
from moeplan.predict import Prediction
from moeplan.report.headline import headline
from moeplan.report.tables import Console, table

LONGEST = 12


def print_explanation(
    out: Console,
    step: Prediction,
    rungs: Sequence[Rung],
    shares: Mapping[str, float],
    operators: Sequence[StepOperator],
) -> None:
    """The ladder, then what the exposed time goes to, then the longest operators."""
    out.print(headline(step) + ".")
    out.print()
    limit, total, reached = rungs[0].seconds, float(step.seconds), 0.0
    rows = []
    for rung in rungs:
        reached += rung.seconds
        rows.append(
            [rung.name, f"{rung.seconds * 1e3:+.2f}", f"{reached * 1e3:.2f}", f"{limit / reached:.0%}", rung.meaning]
        )
    title = f"From the limit, {limit * 1e3:.2f} ms, to the prediction, {total * 1e3:.2f} ms: {limit / total:.0%} of it"
    out.print(table(("rung", "ms", "reached ms", "of the limit", "meaning"), rows, title=title))
    out.print()
    spent = [[name, f"{share:.1%}"] for name, share in sorted(shares.items(), key=lambda item: -item[1])]
    out.print(table(("use", "share"), spent, title="What the exposed time goes to"))
    out.print()
    longest = sorted(operators, key=lambda item: -item.exposed)[:LONGEST]
    rows = [
        [
            item.name,
            f"{item.exposed * 1e3:.2f}",
            f"{(item.seconds - item.exposed) * 1e3:.2f}" if item.seconds > item.exposed * (1 + 1e-9) else "",
            f"{item.exposed / total:.1%}",
            item.resource,
            str(item.origin),
        ]
        for item in longest
    ]
    out.print(table(("operator", "ms/step", "hidden ms", "share", "bound by", "from"), rows, title="Longest operators"))


def print_sensitivity(
    out: Console,
    step: Prediction,
    elasticities: Sequence[Elasticity],
    min_tps: float,
    *,
    around: tuple[float, float],
) -> None:
    """The elasticities, the largest first; around: the batch where they hold, and its throughput."""
    out.print(headline(step) + ".")
    out.print(f"Promised {min_tps:.2f} tok/s per user; the batch follows each change, EP size and schedule stay.")
    out.print(
        f"They hold around the best batch under that promise: {around[0]:.1f} per GPU, {around[1]:,.0f} tok/s/GPU."
    )
    out.print()
    rows = [[item.knob, f"{item.value:+.3f}", item.meaning] for item in elasticities]
    out.print(table(("knob", "% tok/s/GPU per 1 %", "meaning"), rows))


def print_comparison(
    out: Console, left: Prediction, right: Prediction | None, differences: Sequence[Difference], *, profile: str | None
) -> None:
    """Operator by operator, the largest difference first."""
    out.print(f"first:  {headline(left)}")
    out.print(f"second: {headline(right) if right is not None else f'measured, {profile}'}")
    out.print()
    rows = []
    for item in differences:
        first, second = (f"{x * 1e3:.3f}" if x is not None else "-" for x in (item.first, item.second))
        ratio = f"{item.second / item.first - 1:+.1%}" if item.first and item.second else "-"
        rows.append([item.operator, first, second, f"{item.seconds * 1e3:+.3f}", ratio])
    out.print(table(("operator", "first ms", "second ms", "difference ms", "ratio"), rows))
    if right is None:
        out.print("Busy milliseconds per step of the operators that the profile names.")
        return
    out.print("Exposed milliseconds per step.")
    out.print()
    totals = [
        ("step, ms", float(left.seconds) * 1e3, float(right.seconds) * 1e3),
        ("tok/s per user", float(left.tps_per_user), float(right.tps_per_user)),
        ("tok/s per GPU", float(left.tps_per_gpu), float(right.tps_per_gpu)),
    ]
    rows = [[name, f"{a:,.2f}", f"{b:,.2f}", f"{b - a:+,.2f}", f"{b / a - 1:+.1%}"] for name, a, b in totals]
    out.print(table(("operator", "first", "second", "difference", "ratio"), rows))
