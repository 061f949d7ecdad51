"""moeplan predict: one decode step, operator by operator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from moeplan.cli.options import chart_option, check_chart, json_option, print_json, save_option
from moeplan.cli.saved import save
from moeplan.cli.step_question import answer, asked, question_options, said_to_fit
from moeplan.explain.hand_over import kv_hand_over
from moeplan.predict import Prediction, Predictor

if TYPE_CHECKING:
    from moeplan.explain.placement_gain import PlacementGain


@click.command("predict")
@click.argument("model")
@question_options
@click.option("--explain", is_flag=True, help="Print each formula with its numbers.")
@save_option
@chart_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Predict one decode step of MODEL, operator by operator; by itself under attention-DP × EP (see --layout).

    MODEL is a built-in name, a config.json, or a question saved with --save (also a plan's: its winner).
    """
    check_chart(options["chart"])
    question, rest = asked(ctx, options)
    predictor, step = answer(question)
    gain, cache = _placement_gain(predictor, step), kv_hand_over(predictor.machine, step)
    if rest["save"]:
        save(Path(rest["save"]), "predict", asdict(question))
    if rest["chart"]:
        _draw(step, Path(rest["chart"]))
    if rest["as_json"]:
        from moeplan.report.document import document, prediction_content

        content = prediction_content(step, explain=rest["explain"])
        if gain is not None:
            from moeplan.report.document import placement_content

            content["balancing"] = placement_content(gain)
        content["kv_hand_over"] = {"bytes": cache.bytes_, "seconds": cache.seconds, "origin": str(cache.origin)}
        print_json(document("predict", content))
    else:
        from moeplan.report.step_report import print_hand_over, print_placement, print_prediction
        from moeplan.report.tables import console

        print_prediction(console(), step, explain=rest["explain"])
        print_hand_over(console(), cache)
        if gain is not None:
            print_placement(console(), gain)
    return 0 if said_to_fit(step) else 1


def _placement_gain(predictor: Predictor, step: Prediction) -> PlacementGain | None:
    """What balancing is worth, where loads of experts are given."""
    if step.deployment.routed is None:
        return None
    from moeplan.explain.placement_gain import placement_gain

    return placement_gain(predictor, step)


def _draw(step: Prediction, path: Path) -> None:
    from moeplan.charts.breakdown import breakdown_chart
    from moeplan.charts.layer_timeline import layer_timeline_chart
    from moeplan.charts.render import write_chart
    from moeplan.charts.roofline import roofline_chart
    from moeplan.explain.operators import step_operators
    from moeplan.report.headline import headline
    from moeplan.schedules.intervals import intervals

    operators, subtitle = step_operators(step), headline(step)
    specs = [
        breakdown_chart(operators, subtitle=subtitle),
        roofline_chart(operators, step.cluster.gpu, subtitle=subtitle),
    ]
    sparse = [group for group in step.groups if group.group.ffn == "moe"]
    if sparse:
        most, name = max(sparse, key=lambda group: float(group.seconds)), step.deployment.schedule
        specs.append(layer_timeline_chart(intervals(most.layer, name), schedule=name, subtitle=subtitle))
    write_chart(specs, path)
