"""moeplan validate: predictions beside published measurements."""

from __future__ import annotations

from pathlib import Path

import click

from moeplan.cli.options import data_option, json_option, positive, print_json
from moeplan.report.document import document, plain
from moeplan.specs.catalog import Catalog
from moeplan.validate.profile import ProfileComparison, compare_profile


@click.group("validate")
def command() -> None:
    """Compare predictions with published measurements."""


@command.command("profile")
@data_option
@json_option
def profile(data: str | None, as_json: bool) -> int:
    """DeepSeek's decode profile (H800, EP128): every operator, the layer, the step, and what peers give."""
    comparison = compare_profile(Catalog.standard(data))
    if as_json:
        print_json(document("validate-profile", _content(comparison)))
        return 0
    from moeplan.report.profile_report import print_profile
    from moeplan.report.tables import console

    print_profile(console(), comparison)
    return 0


@command.command("kernels")
@click.argument("file", required=False)
@click.option("--trust", metavar="WORD", help="Only rows whose column trust says so, such as high.")
@click.option("--min-us", default="0", show_default=True, metavar="µs", help="Only rows that measure at least so long.")
@click.option("--kernels", "sources", default="", metavar="SOURCES", help="What may answer, such as fitted,assumed.")
@click.option("--worst", default=0, metavar="N", help="Print the N rows with the largest error, too.")
@data_option
@json_option
def kernels(
    file: str | None, trust: str | None, min_us: str, sources: str, worst: int, data: str | None, as_json: bool
) -> int:
    """Kernel times of FILE (gemm, grouped gemm, attention or all-to-all rows), predicted beside measured.

    Without FILE: the packaged tables, each row left out in turn and interpolated from the others.
    """
    from moeplan.kernels.sources import ALL, read_sources
    from moeplan.validate.kernels import score_file, score_tables

    catalog = Catalog.standard(data)
    if file is None:
        scores = score_tables(catalog)
    else:
        least = float(min_us) if min_us.replace(".", "", 1).isdigit() else positive(min_us, "--min-us")
        may = read_sources(sources) if sources else ALL
        scores = score_file(catalog, Path(file), trust=trust, least_seconds=least * 1e-6, sources=may)
    if as_json:
        content = {
            "title": scores.title,
            "families": {item.family: item for item in scores.scores},
            "skipped": scores.skipped,
            "suspects": [
                {"family": family, "row": row, "measured_s": measured, "predicted_s": predicted}
                for family, row, measured, predicted in scores.suspects
            ],
        }
        print_json(document("validate-kernels", content))
        return 0
    from moeplan.report.kernel_report import print_kernels
    from moeplan.report.tables import console

    print_kernels(console(), scores, worst=worst)
    return 0


@command.command("steps")
@data_option
@json_option
def steps(data: str | None, as_json: bool) -> int:
    """Published decode steps of whole deployments, predicted beside measured, and the median of the errors."""
    from moeplan.explain.band_coverage import band_coverage
    from moeplan.validate.steps import compare_steps

    catalog = Catalog.standard(data)
    scores, bands = compare_steps(catalog), band_coverage(catalog)
    if as_json:
        content = {
            "rows": [{**plain(row), "error": row.error} for row in scores.rows],
            "median": {group: scores.median(group) for group in scores.groups} | {"all": scores.median()},
            "left_out": [{"name": name, "why": why} for name, why in scores.left_out],
            "band": {
                "rows": len(bands.rows),
                "inside": bands.inside,
                "shorter": bands.shorter,
                "unseen": {group: {"inside": inside, "rows": rows} for group, (inside, rows) in bands.unseen().items()},
                "pairs": len(bands.pairs),
                "pairs_inside": bands.pairs_inside,
            },
        }
        print_json(document("validate-steps", content))
        return 0
    from moeplan.report.steps_report import print_steps
    from moeplan.report.tables import console

    print_steps(console(), scores, bands)
    return 0


@command.command("overlap")
@data_option
@json_option
def overlap(data: str | None, as_json: bool) -> int:
    """When two-batch overlap pays (72 H100), and one node's dispatch and combine over the batch, beside measured."""
    from moeplan.explain.overlap_facts import overlap_facts
    from moeplan.report.overlap_report import overlap_content, print_overlap

    facts = overlap_facts(Catalog.standard(data))
    if as_json:
        print_json(document("validate-overlap", plain(overlap_content(facts))))
        return 0
    from moeplan.report.tables import console

    print_overlap(console(), facts)
    return 0


def _content(comparison: ProfileComparison) -> dict[str, object]:
    items = (
        *comparison.operators,
        comparison.layer,
        comparison.step,
        comparison.throughput,
        comparison.throughput_of_step,
    )
    return {
        "title": comparison.setup.title,
        "source": comparison.setup.source,
        "rows": [
            {
                "name": item.name,
                "kind": item.kind,
                "measured": item.measured,
                "predicted": item.predicted,
                "error": item.error,
                "share_of_layer": item.share,
            }
            for item in items
        ],
        "peers": [
            {"tool": tool, "setup": setup, "tok_s_per_gpu": rate, "how": how}
            for tool, setup, rate, how in comparison.peers
        ],
    }
