"""Overlap and one node's all-to-all, predicted beside measured, for people."""

from __future__ import annotations

from moeplan.explain.overlap_facts import BATCHES, OneNodeTimes, OverlapFacts
from moeplan.report.document import Json
from moeplan.report.tables import Console, table


def print_overlap(out: Console, facts: OverlapFacts) -> None:
    """Gain of two-batch overlap by batch and where it turns; dispatch and combine of one node over the batch."""
    rows = [
        [
            f"{pair.batch}",
            f"{pair.measured:.2f}",
            f"{pair.predicted:.2f}",
            f"{pair.predicted / pair.measured - 1:+.0%}",
            "yes" if pair.agrees else "no",
        ]
        for pair in facts.pairs
    ]
    headers = ("requests per GPU", "gain measured", "predicted", "error", "same side of 1")
    out.print(table(headers, rows, title=f"Two-batch overlap, throughput with over without: {facts.setup}"))
    out.print(f"{_turn(facts)} Nothing was fitted to these gains.")
    node = facts.one_node
    cells = [
        [times.direction, times.gpu, *(f"{times.at(batch) * 1e6:.1f}" for batch in BATCHES), _inside(times)]
        for times in sorted(facts.times, key=lambda times: times.direction, reverse=True)
    ]
    title = (
        f"One node, EP{node.ranks}, {node.experts} experts, top-{node.top_k}, hidden {node.hidden}: µs by requests per "
        "GPU; measured (batch article, neither batch nor card stated): "
        f"dispatch {_range(node.dispatch)} µs, combine {_range(node.combine)} µs"
    )
    out.print()
    out.print(table(("", "GPU", *(f"B={batch}" for batch in BATCHES), "in the measured range"), cells, title=title))
    least, most = node.targets
    out.print(
        f"Ranks that a token goes to: measured {least:g} to {most:g}, {facts.targets:.2f} for distinct experts. Hidden "
        f"by overlap: measured {node.hidden_share[0]:.0%} to {node.hidden_share[1]:.0%}; the share of the SMs taken "
        "inside a node is the middle of that range, so it is no test."
    )


def overlap_content(facts: OverlapFacts) -> Json:
    """The same as JSON, SI units; seconds of every batch from 1 to 128."""
    return {
        "setup": facts.setup,
        "two_batch": [
            {"batch": pair.batch, "measured": pair.measured, "predicted": pair.predicted, "agrees": pair.agrees}
            for pair in facts.pairs
        ],
        "turns_at": facts.turns,
        "one_node": {"measured": facts.one_node, "targets": facts.targets, "predicted": facts.times},
    }


def _turn(facts: OverlapFacts) -> str:
    losing = [pair.batch for pair in facts.pairs if pair.measured < 1]
    gaining = [pair.batch for pair in facts.pairs if pair.measured > 1]
    found = f"from {facts.turns} requests per GPU on" if facts.turns is not None else "nowhere"
    return f"It pays {found} as predicted; measured, the turn lies between {max(losing)} and {min(gaining)}."


def _inside(times: OneNodeTimes) -> str:
    found = times.inside
    return f"from {found[0]} to {found[1]}" if found is not None else "never"


def _range(seconds: tuple[float, ...]) -> str:
    return f"{seconds[0] * 1e6:.0f} to {seconds[1] * 1e6:.0f}"
