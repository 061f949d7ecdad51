"""A profile, predicted beside measured, for people."""

from __future__ import annotations

from moeplan.report.tables import Console, table
from moeplan.validate.profile import Compared, ProfileComparison


def print_profile(out: Console, comparison: ProfileComparison) -> None:
    """Operators, totals, peers."""
    setup = comparison.setup
    out.print(
        f"{setup.title}: EP{setup.ep}, {setup.batch} requests x {1 + setup.mtp} tokens per GPU, "
        f"context {setup.context:,}, {setup.schedule}"
    )
    out.print()
    rows = [
        [*_row(item, 1e6), f"{item.share:.1%}" if item.share is not None else "", item.kind]
        for item in comparison.operators
    ]
    out.print(table(("operator", "measured µs", "predicted µs", "error", "of the layer", "kind"), rows))
    out.print()
    totals = [
        _row(comparison.layer, 1e6, "layer, µs"),
        _row(comparison.step, 1e3, "step, ms"),
        _row(comparison.throughput, 1, "tok/s/GPU, derived"),
        _row(comparison.throughput_of_step, 1, "tok/s/GPU, from the measured step"),
    ]
    out.print(table(("operator", "measured", "predicted", "error"), totals))
    out.print()
    base = setup.tok_s_per_gpu
    ours = [
        "moeplan",
        "the profile's own",
        f"{comparison.throughput.predicted:,.0f}",
        f"{comparison.throughput.error:+.1%}",
        "run",
    ]
    peers = [[tool, made, f"{rate:,.0f}", f"{rate / base - 1:+.1%}", how] for tool, made, rate, how in comparison.peers]
    out.print(table(("tool", "setup", "tok/s/GPU", "against the derived", "how"), [ours, *peers]))
    out.print(
        f"The derived {base:,.0f} tok/s/GPU is 128 requests x {1 + setup.acceptance:g} tokens / 88 ms; "
        "peers were set up as each allows."
    )
    out.print(f"Source: {setup.source}")


def _row(item: Compared, scale: float, name: str = "") -> list[str]:
    return [name or item.name, f"{item.measured * scale:,.1f}", f"{item.predicted * scale:,.1f}", f"{item.error:+.1%}"]
