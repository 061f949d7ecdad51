"""The throughput article's winners for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from moeplan.article.search import Row
from moeplan.report.tables import Console, table


def print_article(out: Console, rows: Sequence[Row], source: str, *, switched: bool) -> None:
    """One table per revision and target, as the article prints them: the best per GPU, NIC, EP and weight bytes."""
    headers = ("GPU", "NIC", "EP", "pipeline", "KV B", "weight B", "MTP", "batch", "tok/s/user", "tok/s/card")
    winners = [row for row in rows if row.winner]
    for (revision, target), group in groupby(winners, key=lambda row: (row.revision, row.min_tps)):
        best = sorted(group, key=lambda row: -row.throughput_per_gpu)
        out.print(table(headers, [_cells(row) for row in best], title=f"{revision}, at least {target} tok/s per user"))
        out.print()
    note = "with switches: not the published tables" if switched else "as published"
    out.print(f"{len(rows):,} rows walked, {len(winners)} winners, {note}. --json prints every row. Source: {source}.")


def _cells(row: Row) -> list[str]:
    return [
        row.gpu,
        row.nic,
        str(row.ep),
        row.pipeline,
        str(row.kv_elem_bytes),
        str(row.nonexpert_elem_bytes),
        str(row.mtp_len),
        str(row.batch_per_gpu),
        f"{row.ux_tps:.4f}",
        f"{row.throughput_per_gpu:,.3f}",
    ]
