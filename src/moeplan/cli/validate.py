"""moeplan validate: predictions beside published measurements."""

from __future__ import annotations

import click

from moeplan.cli.options import data_option, json_option, print_json
from moeplan.report.document import document
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


def _content(comparison: ProfileComparison) -> dict[str, object]:
    items = (*comparison.operators, comparison.layer, comparison.step, comparison.throughput)
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
