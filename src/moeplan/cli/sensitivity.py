"""moeplan sensitivity: what one more percent of each thing gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from moeplan.cli.options import chart_option, check_chart, json_option, positive, print_json
from moeplan.cli.saved import is_saved
from moeplan.cli.step_question import answer, asked, question_options
from moeplan.specs.loading import read_mapping


@click.command("sensitivity")
@click.argument("model")
@question_options
@click.option(
    "--min-tps",
    metavar="TPS",
    help="Promised tokens per second per user; default: a plan's, else what the deployment gives.",
)
@chart_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Elasticities of throughput around a deployment of MODEL: % more tok/s per GPU for 1 % better of each knob.

    EP size, schedule and formats stay, the batch follows. MODEL as for `moeplan predict`; of a plan, its winner.
    """
    check_chart(options["chart"])
    promised = options["min_tps"] if options["min_tps"] is not None else _saved_promise(options["model"])
    question, rest = asked(ctx, {name: value for name, value in options.items() if name != "min_tps"})
    predictor, step = answer(question)
    from moeplan.explain.sensitivity import sensitivity, settled

    target = positive(promised, "--min-tps") if promised is not None else float(step.tps_per_user)
    elasticities = sensitivity(predictor, step.deployment, min_tps=target)
    batch, throughput = settled(predictor, step.deployment, target)
    if rest["chart"]:
        from moeplan.charts.render import write_chart
        from moeplan.charts.tornado import tornado_chart
        from moeplan.report.headline import headline

        write_chart([tornado_chart(elasticities, subtitle=headline(step))], Path(rest["chart"]))
    if rest["as_json"]:
        from moeplan.report.document import document, prediction_content

        content = {
            "min_tok_s_per_user": target,
            "elasticities": elasticities,
            "around": {"batch": batch, "tok_s_per_gpu": throughput},
            "unit": "% of tok/s per GPU for 1 % of the knob in the direction that helps",
            "prediction": prediction_content(step),
        }
        print_json(document("sensitivity", content))
    else:
        from moeplan.report.explain_report import print_sensitivity
        from moeplan.report.tables import console

        print_sensitivity(console(), step, elasticities, target, around=(batch, throughput))
    return 0


def _saved_promise(model: str) -> str | None:
    """The promise of a saved plan."""
    if not is_saved(model):
        return None
    plan = read_mapping(Path(model)).get("plan")
    return str(plan["min_tps"]) if isinstance(plan, dict) and "min_tps" in plan else None
