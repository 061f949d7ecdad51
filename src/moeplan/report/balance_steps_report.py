"""What balancing gives to steps: by batch, and by redundant slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeplan.report.document import Json, placement_content
from moeplan.report.tables import Console, Table, table
from moeplan.units import gib

if TYPE_CHECKING:
    from moeplan.explain.placement_gain import BalancedSteps


def print_steps(out: Console, found: BalancedSteps) -> None:
    """Gains by batch, then what every number of redundant slots leaves to serve."""
    out.print()
    if found.gains:
        out.print(_gains_table(found))
        out.print(
            "f: share of the step before that experts and their all-to-all take, as far as nothing hides it. By the "
            "step: rows, received bytes and active experts of the busiest rank put through the step model."
        )
    else:
        out.print(f"No batch of the table fits in memory at a context of {found.context:,} tokens.")
    out.print()
    out.print(_served_table(found))
    if found.best is None:
        out.print("With no number of slots does a batch fit in memory and keep what --min-tps promises, if given.")


def _gains_table(found: BalancedSteps) -> Table:
    rows = []
    for one in found.gains:
        before, after = one.skews
        rows.append(
            [
                f"{int(one.after.deployment.batch)}",
                f"{float(one.before.seconds) * 1e3:.1f}",
                f"{float(one.after.seconds) * 1e3:.1f}",
                f"{before:.2f} → {after:.2f}",
                f"{one.share:.2f}",
                f"{one.formula:.2f}×",
                f"{one.gain:.2f}×",
            ]
        )
    first = found.gains[0].after
    title = f"A step of {first.model.name} on {first.cluster.gpu.name}, context {found.context:,} tokens"
    headers = ("batch per rank", "before, ms", "after, ms", "S0 → S1", "f", "by the formula", "by the step")
    return table(headers, rows, title=title)


def _served_table(found: BalancedSteps) -> Table:
    rows = [
        [
            f"{point.redundant}",
            gib(point.kv_bytes),
            f"{point.batch}",
            f"{point.tps_per_gpu:,.0f}",
            f"{point.tps_per_user:.1f}",
            "worth having" if point is found.best else "" if point.batch else "nothing fits",
        ]
        for point in found.served
    ]
    headers = ("redundant", "free for KV", "batch per rank", "tok/s/GPU", "tok/s/user", "meaning")
    return table(headers, rows, title="What redundant experts leave to serve, balanced")


def steps_content(found: BalancedSteps) -> Json:
    """The document's part."""
    return {
        "context": found.context,
        "gains": [{"batch": int(one.after.deployment.batch), **placement_content(one)} for one in found.gains],
        "served": found.served,
        "worth_having": None if found.best is None else found.best.redundant,
    }
