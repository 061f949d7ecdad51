"""moeplan explain: where a step's time goes, and how far it is from the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from moeplan.cli.options import chart_option, check_chart, json_option, print_json
from moeplan.cli.step_question import answer, asked, question_options, said_to_fit


@click.command("explain")
@click.argument("model")
@question_options
@chart_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Explain one deployment of MODEL: what binds its time, and the ladder from the limit to the prediction.

    MODEL as for `moeplan predict`. The limit is the whole step as one perfect kernel; each rung adds one loss.
    """
    check_chart(options["chart"])
    question, rest = asked(ctx, options)
    predictor, step = answer(question)
    from moeplan.explain.ladder import ladder
    from moeplan.explain.operators import step_operators
    from moeplan.explain.shares import resource_shares

    rungs, operators, shares = ladder(predictor, step), step_operators(step), resource_shares(step)
    if rest["chart"]:
        from moeplan.charts.breakdown import breakdown_chart
        from moeplan.charts.ladder import ladder_chart
        from moeplan.charts.render import write_chart
        from moeplan.report.headline import headline

        subtitle = headline(step)
        specs = [ladder_chart(rungs, subtitle=subtitle), breakdown_chart(operators, subtitle=subtitle)]
        write_chart(specs, Path(rest["chart"]))
    if rest["as_json"]:
        from moeplan.report.document import document, prediction_content

        content = {"ladder": rungs, "shares": shares, "operators": operators, "prediction": prediction_content(step)}
        print_json(document("explain", content))
    else:
        from moeplan.report.explain_report import print_explanation
        from moeplan.report.tables import console

        print_explanation(console(), step, rungs, shares, operators)
    return 0 if said_to_fit(step) else 1
