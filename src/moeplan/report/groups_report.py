"""Groups and rows of the experts' products for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moeplan.engines.rules.flags.launched import LaunchedLayout
from moeplan.explain.group_claims import Claim
from moeplan.explain.group_curves import GroupCurve, Turn
from moeplan.explain.tile_rows import TileRow
from moeplan.report.tables import Console, table
from moeplan.routing.group_shapes import GroupShapes
from moeplan.routing.tiles import strategies
from moeplan.specs.model import ModelSpec

SHOWN_BATCHES = (8, 64, 256)


def print_groups(out: Console, spec: ModelSpec, shapes: Sequence[GroupShapes], layout: LaunchedLayout | None) -> None:
    """One table per EP size and q_len: the article's estimates, then the exact expectations and tails."""
    assert spec.experts is not None, "the command has refused a dense model"
    if layout is not None:
        out.print(
            f"{layout.engine} {layout.version}: EP{layout.ep}, attention on {layout.ranks} ranks of {layout.tp} GPUs, "
            f"{layout.q_len} tokens per request and step, {layout.redundant} redundant slots"
        )
        for note in layout.notes:
            out.print(f"  {note}")
        out.print("  batch: of the fullest attention rank, which takes the rounded-up share of the server's requests")
        out.print()
    headers = (
        "batch",
        "tokens",
        "groups ≤",
        "m ≈",
        "groups",
        "idle",
        "m mean",
        "m p50",
        "m p99",
        "largest",
        "busiest rank",
        "imbalance",
    )
    for found in shapes:
        columns = [
            found.batch,
            found.tokens,
            found.article.groups,
            found.article.rows_per_expert,
            found.active,
            found.idle,
            found.rows_if_active,
            found.rows_p50,
            found.rows_p99,
            found.largest.mean,
            found.busiest.mean,
            found.imbalance,
        ]
        size = max(np.size(column) for column in columns)
        cells = [np.broadcast_to(np.ravel(column), (size,)) for column in columns]
        rows = [
            [_cell(header, float(cell[place])) for header, cell in zip(headers, cells, strict=True)]
            for place in range(size)
        ]
        ep, q_len = float(np.max(found.ep)), float(np.max(found.tokens / (found.batch * found.ep)))
        title = (
            f"{spec.name}, {spec.experts.top_k} of {spec.experts.count} experts, EP{ep:.0f}, q_len {q_len:.0f}, "
            f"{found.popularity.name}, experts {found.placement}, {found.held} held; {found.method}"
        )
        out.print(table(headers, rows, title=title))
        dropped = np.max(found.dropped)
        if dropped > 0:
            upto = "up to " if np.size(found.dropped) > 1 else ""
            out.print(f"A capacity limit drops {upto}{float(np.max(found.dropped / found.rows)):.1%} of the rows.")
        if found.popularity.note:
            out.print(found.popularity.note)
        out.print()
    drawn = any(found.method != "closed form" for found in shapes)
    nearness = "largest and busiest are means of the draws" if drawn else "largest and busiest to a few percent"
    out.print(
        f"groups ≤ and m ≈ are the grouped-GEMM article's (eqs. 4 and 5); the rest is exact, {nearness}: "
        "groups with rows on a rank, chance that an expert has none, rows of an active expert, of the "
        "largest anywhere, of the busiest rank and over the mean."
    )


def print_tiles(out: Console, rows: Sequence[TileRow]) -> None:
    """FLOP done over asked by tile, and how experts of unequal rows can be run."""
    shown: dict[tuple[int, int, float], list[TileRow]] = {}
    for row in rows:
        shown.setdefault((row.ep, row.q_len, row.batch), []).append(row)
    on_gpu = any(row.critical_tile is not None for row in rows)
    cells = [
        [
            f"{ep}",
            f"{q_len}",
            f"{batch:,.0f}",
            *(f"{row.waste:.1f}×" for row in found),
            *([f"{found[2].waves:.0f} ({found[2].last_wave:.0%})"] if on_gpu else []),
        ]
        for (ep, q_len, batch), found in shown.items()
    ]
    tiles = [row.tile for row in next(iter(shown.values()))]
    headers = (
        "EP",
        "q_len",
        "batch",
        *(f"BM {tile}" for tile in tiles),
        *(["waves at BM 64 (last)"] if on_gpu else []),
    )
    out.print()
    out.print(table(headers, cells, title="FLOP done over asked, by rows of a tile"))
    if on_gpu and rows[0].critical_tile is not None:
        out.print(f"BM* = {rows[0].critical_tile:.0f}: pad rows of a smaller tile cost FLOP, not time.")
    plans = ", ".join(
        f"{plan.name} at BM {plan.tile} ({'in' if plan.capturable else 'not in'} a CUDA graph)"
        for plan in strategies(8.0, most_rows=64)
    )
    out.print(f"Ways to run experts of unequal rows: {plans}; a masked tile without a row does nothing.")


def print_costs(
    out: Console, curves: Sequence[GroupCurve], turns: Mapping[str, Sequence[Turn]], claims: Sequence[Claim]
) -> None:
    """Both products at one token per request, the EP size at which they turn, and the article's claims."""
    rows = []
    for curve in curves:
        if curve.product == "both" and curve.q_len == 1:
            at = [int(np.flatnonzero(curve.batch == batch)[0]) for batch in SHOWN_BATCHES]
            rows.append(
                [
                    curve.gpu,
                    str(curve.ep),
                    *(f"{curve.seconds[place] * 1e6:,.0f} ({curve.mfu[place]:.1%})" for place in at),
                    f"{curve.origin}",
                ]
            )
    out.print()
    headers = ("GPU", "EP", *(f"B={batch}: µs (MFU)" for batch in SHOWN_BATCHES), "from")
    out.print(table(headers, rows, title="gate_up and down of one rank, one token per request"))
    out.print()
    for gpu, found in turns.items():
        best = min(found, key=lambda turn: turn.seconds)
        listed = ", ".join(f"{turn.ep}: {turn.products * 1e6:.0f} + {turn.all_to_all * 1e6:.0f}" for turn in found)
        means = " or ".join(dict.fromkeys(turn.exchange for turn in found if turn.exchange))
        out.print(
            f"{gpu}, {found[0].batch:.0f} requests per rank, products + all-to-all in µs by EP size: {listed}; "
            f"shortest at EP{best.ep}. Tokens by {means}."
        )
    for claim in claims:
        out.print()
        out.print(f"{'Holds' if claim.holds else 'Does not hold'}: {claim.claim} {claim.evidence}.")


def shapes_content(found: GroupShapes) -> dict[str, Any]:
    """One set of shapes for a document."""
    names = (
        "held",
        "placement",
        "method",
        "article",
        "batch",
        "ep",
        "tokens",
        "rows",
        "slots_per_rank",
        "active",
        "active_most",
        "idle",
        "rows_per_slot",
        "rows_if_active",
        "rows_p50",
        "rows_p99",
        "largest_on_rank",
        "largest",
        "rank_rows",
        "busiest",
        "imbalance",
        "targets",
        "dropped",
    )
    return {"popularity": found.popularity.name} | {name: getattr(found, name) for name in names}


def _cell(header: str, value: float) -> str:
    if header == "idle":
        return f"{value:.1%}"
    if header == "imbalance":
        return f"{value:.2f}"
    if header in ("batch", "tokens", "m p50", "m p99"):
        return f"{value:,.0f}"
    return f"{value:,.1f}"
