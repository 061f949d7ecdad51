"""moeplan reproduce: a published article's tables."""

from __future__ import annotations

import click

from moeplan.article.profile import Switches, article_profile
from moeplan.article.search import walk
from moeplan.cli.options import data_option, json_option, print_json
from moeplan.errors import Fault, InputError
from moeplan.report.document import document
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import AttentionOverlap
from moeplan.units import UnitError, parse


@click.group("reproduce")
def command() -> None:
    """Reproduce a published article's tables to the last printed digit."""


@command.command("throughput-article")
@click.option(
    "--expert-mfu/--no-expert-mfu", default=None, help="DeepGEMM's factors for the experts; default: the revision's."
)
@click.option("--gemm-mfu/--no-gemm-mfu", default=None, help="The A100 curve for other GEMMs; default: the revision's.")
@click.option(
    "--overlap",
    type=click.Choice(["none", "two-stage", "three-stage"]),
    help="Every chip's attention overlap; three-stage is the article's ideal chip.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=128),
    metavar="TOKENS",
    help="FlashMLA chunk that the SRAM holds; more chunks pad, reduce and rescale.",
)
@click.option("--thread-all-reduce", metavar="TIME", help="Latency of a reduction over threads, such as 0.5µs.")
@data_option
@json_option
def throughput_article(
    expert_mfu: bool | None,
    gemm_mfu: bool | None,
    overlap: AttentionOverlap | None,
    chunk: int | None,
    thread_all_reduce: str | None,
    data: str | None,
    as_json: bool,
) -> int:
    """ShineZ's article on DeepSeek-V3's decode throughput per card (V0 and V1.0): the whole grid, and its winners."""
    catalog = Catalog.standard(data)
    switches = Switches(
        expert_mfu=expert_mfu,
        gemm_mfu=gemm_mfu,
        overlap=overlap,
        chunk=chunk,
        thread_all_reduce=_seconds(thread_all_reduce),
    )
    rows = walk(catalog, switches)
    source = article_profile(catalog).source
    if as_json:
        print_json(document("throughput-article", {"source": source, "switches": switches, "rows": rows}))
        return 0
    from moeplan.report.article_report import print_article
    from moeplan.report.tables import console

    print_article(console(), rows, source, switched=switches != Switches())
    return 0


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse(text, "s")
    except UnitError as error:
        raise InputError("options", [Fault("--thread-all-reduce", str(error))]) from error
