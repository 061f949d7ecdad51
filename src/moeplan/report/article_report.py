"""The throughput article's winners for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from moeplan.article.model import Configuration
from moeplan.article.quirks import Quirk
from moeplan.article.search import Row
from moeplan.article.tensor_parallel import Choice
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


def print_quirks(out: Console, points: Sequence[tuple[str, str, Configuration]], found: Sequence[Quirk]) -> None:
    """One row per shortcut, one column per point: change of tokens per second per card when it is put right."""
    out.print("Change of tok/s per card when a shortcut of the article (V1.0) is put right, all others kept")
    out.print()
    headers = ["put right"]
    for gpu, nic, point in points:
        pipeline = "dual" if point.dual else "naive"
        headers.append(
            f"{gpu} {nic.split()[0]} EP{point.ep} {pipeline} b{int(point.batch)} e{point.linear_bytes} q{point.q_len}"
        )
    rows = [[quirk.name, *(f"{change:+.1%}" for change in quirk.changes)] for quirk in found]
    out.print(table(headers, rows))


def print_tp_argument(
    out: Console, rows: Sequence[tuple[str, int, Choice, Choice]], *, q_len: int, context: float
) -> None:
    """One attention layer either way, the parts that differ apart."""
    out.print(
        f"DeepSeek-V3, one attention layer for b requests x {q_len} token{'s' * (q_len > 1)} on two GPUs, context "
        f"{context:,.0f}: each takes half of the requests, or both take all with half of the heads"
    )
    out.print()
    headers = (
        "GPU",
        "b",
        "half: projections µs",
        "core µs",
        "sum µs",
        "TP 2: projections µs",
        "core",
        "all-reduce",
        "sum",
        "TP 2 is",
    )
    cells = []
    for name, requests, half, two in rows:
        split = [_split(choice) for choice in (half, two)]
        cells.append(
            [
                name,
                str(requests),
                f"{split[0][0]:.1f}",
                f"{split[0][1]:.1f}",
                f"{half.seconds * 1e6:.1f}",
                f"{split[1][0]:.1f}",
                f"{split[1][1]:.1f}",
                f"{split[1][2]:.1f}",
                f"{two.seconds * 1e6:.1f}",
                f"{two.seconds / half.seconds - 1:+.1%}",
            ]
        )
    out.print(table(headers, cells))
    origins = sorted({str(cost.origin) for _, _, half, two in rows for cost in (*half.costs, *two.costs)})
    out.print(f"Origins: {', '.join(origins)}.")


def _split(choice: Choice) -> tuple[float, float, float]:
    """Microseconds of everything but, the attention core, the all-reduce."""
    core = sum(float(cost.seconds) for cost in choice.costs if cost.name == "mla_core") * 1e6
    reduced = sum(float(cost.seconds) for cost in choice.costs if cost.name == "all_reduce") * 1e6
    return choice.seconds * 1e6 - core - reduced, core, reduced
