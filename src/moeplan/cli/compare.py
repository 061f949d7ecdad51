"""moeplan compare: where the difference of two steps comes from, or of a step and a measured profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from moeplan.cli.options import data_option, json_option, print_json
from moeplan.cli.predict import command as predict_command
from moeplan.cli.step_question import answer, asked, said_to_fit
from moeplan.errors import Fault, InputError
from moeplan.predict import Prediction


@click.command("compare")
@click.argument("first")
@click.argument("second", required=False)
@click.option(
    "--profile", metavar="CSV", help="Measured seconds per step (columns operator, seconds) instead of SECOND."
)
@click.option("--set", "edits", multiple=True, metavar="PATH=VALUE", help="Edit a figure on both sides; see predict.")
@data_option
@json_option
def command(
    first: str, second: str | None, profile: str | None, edits: tuple[str, ...], data: str | None, as_json: bool
) -> int:
    """Compare two deployments saved as YAML (by predict or plan --save), operator by operator.

    With --profile: one deployment beside a measured profile.
    """
    if (second is None) == (profile is None):
        raise InputError("options", [Fault("SECOND", "give a second file or --profile", "one of the two")])
    from moeplan.explain.compare import compare_profile, compare_steps, read_profile

    left = _step(first, edits, data)
    right = _step(second, edits, data) if second is not None else None
    if right is not None:
        differences = compare_steps(left, right)
    else:
        assert profile is not None
        differences = compare_profile(left, read_profile(Path(profile)))
    if as_json:
        from moeplan.report.document import document, prediction_content

        sides = {"first": prediction_content(left), "second": prediction_content(right) if right is not None else None}
        rows = [
            {"operator": d.operator, "first_s": d.first, "second_s": d.second, "difference_s": d.seconds}
            for d in differences
        ]
        kind = "exposed seconds per step" if right is not None else "busy seconds per step"
        print_json(document("compare", {"operators": rows, "seconds_are": kind, **sides}))
    else:
        from moeplan.report.explain_report import print_comparison
        from moeplan.report.tables import console

        print_comparison(console(), left, right, differences, profile=profile)
    return 0


def _step(path: str, edits: tuple[str, ...], data: str | None) -> Prediction:
    """Predict a saved deployment as `moeplan predict FILE` would."""
    arguments = [path, *(word for edit in edits for word in ("--set", edit))]
    arguments += ["--data", data] if data is not None else []
    with predict_command.make_context("predict", arguments) as ctx:
        options: dict[str, Any] = dict(ctx.params)
        question, _ = asked(ctx, options)
        step = answer(question)[1]
        said_to_fit(step)
        return step
