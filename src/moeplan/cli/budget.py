"""moeplan budget: what binds over the batch, and where to run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from msgspec.structs import replace

from moeplan.cli.machines import machine_options
from moeplan.cli.options import (
    MOST_DRAFTS,
    MOST_GPUS,
    acceptance,
    chart_option,
    check_chart,
    count,
    data_option,
    deployment_options,
    edited_model,
    edits_of,
    formats,
    json_option,
    positive,
    print_json,
    step_options,
    whole_range,
)
from moeplan.cli.question import Question
from moeplan.errors import Fault, InputError, together
from moeplan.predict import Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import LOW_LATENCY, Deployment, Precision
from moeplan.specs.exchange import usual_beside
from moeplan.specs.schedule import PLAIN, schedule

Command = TypeVar("Command", bound=Callable[..., Any])

MOST_BATCH = 65_536


class BudgetQuestion(Question, frozen=True, kw_only=True):
    """The options of a budget; what is missing is None."""

    model: str | None  # type: ignore[assignment]  # missing is a fault like any other, named with the rest
    ep: str | None
    min_tps: str | None
    batches: str
    redundant: str | None


def _own_options(command: Command) -> Command:
    for option in reversed(
        [
            machine_options(several=False),
            click.option("--ep", metavar="N", help="GPUs of the group: EP size, and DP size of attention."),
            click.option("--min-tps", metavar="TPS", help="Promised speed: accepted tokens per second per user."),
            click.option(
                "--batches",
                default="1..1024",
                show_default=True,
                metavar="N|A..B|A,B",
                help="Requests per GPU to show; the limits are sought whatever is shown.",
            ),
            deployment_options,
            click.option("--redundant", metavar="N", help="Redundant expert slots; default: what fills every rank."),
            step_options,
        ]
    ):
        command = option(command)
    return command


@click.command("budget")
@click.argument("model", required=False)
@_own_options
@click.option("--article", is_flag=True, help="Print the batch article's own table and claims, computed; no MODEL.")
@chart_option
@data_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, article: bool, **options: Any) -> int:
    """Show what binds over the batch of MODEL: the batch article's four chains, the operating point, what moves it.

    Weights read and their intensity, rows and tiles, all-to-all, KV cache over B = requests per GPU; then B*, B_SLA,
    B_max_mem and the smallest of them.

    Example: moeplan budget deepseek-v3 --gpu h800 --nic cx7 --ep 128 --context 5k --min-tps 20
    """
    if article:
        return _article(ctx, options)
    check_chart(options["chart"])
    names = set(BudgetQuestion.__struct_fields__)
    question = BudgetQuestion(**{name: value for name, value in options.items() if name in names})
    predictor, deployment, min_tps = _read(question)
    from moeplan.explain.batch_article import batch_article
    from moeplan.explain.operating_point import budget

    host = batch_article(Catalog.standard(question.data)).host_launch
    answer = budget(predictor, deployment, schedule=question.schedule, min_tps=min_tps, host_launch=host)
    from moeplan.report.budget_report import budget_content, print_budget, question_line

    asked = question_line(predictor, deployment, question.schedule, min_tps)
    if options["chart"]:
        from moeplan.charts.four_chains import four_chains_chart
        from moeplan.charts.render import write_chart

        write_chart([four_chains_chart(answer, subtitle=asked, min_tps=min_tps)], Path(options["chart"]))
    if options["as_json"]:
        from moeplan.report.document import document

        content = budget_content(answer, predictor, deployment, schedule=question.schedule, min_tps=min_tps)
        print_json(document("budget", content))
    else:
        from moeplan.report.tables import console

        print_budget(console(), answer, predictor, deployment, question=asked)
    if answer.point.best is None:
        print(f"moeplan: {_why(predictor, deployment, answer.point.fastest, min_tps)}", file=sys.stderr)
        return 1
    return 0


def _read(question: BudgetQuestion) -> tuple[Predictor, Deployment, float]:
    """Read every option before anything is computed; raise InputError naming all that is wrong."""
    catalog = Catalog.standard(question.data)
    ready: dict[str, Any] = {}

    def machine() -> None:
        ready["cluster"] = question.machines.one(catalog, edits_of(question.edits))

    def model() -> None:
        if question.model is None:
            raise InputError("options", [Fault("MODEL", "is missing", "name a model (`moeplan models`)")])
        ready["model"] = edited_model(catalog, question.model, question.edits)[0]
        formats(ready["model"], question.formats)

    def drafts() -> None:
        ready["drafts"] = int(count(question.mtp, "--mtp", least=0, most=MOST_DRAFTS))

    together(
        "options",
        model,
        machine,
        drafts,
        lambda: count(_given(question.ep, "--ep"), "--ep", most=MOST_GPUS),
        lambda: count(_given(question.context, "--context"), "--context"),
        lambda: positive(_given(question.min_tps, "--min-tps"), "--min-tps"),
        lambda: whole_range(question.batches, "--batches", least=1, most=MOST_BATCH),
        lambda: count(question.redundant, "--redundant", least=0) if question.redundant is not None else None,
        lambda: acceptance(question.acceptance, 1),
        lambda: question.sources,
    )
    spec, cluster = ready["model"], ready["cluster"]
    ranks = _ranks(_given(question.ep, "--ep"), cluster)
    name = PLAIN if question.schedule == "auto" else question.schedule
    sends = spec.is_moe and ranks > 1 and not question.sources.article  # the article has figures of one all-to-all
    deployment = Deployment(
        batch=np.array(whole_range(question.batches, "--batches", least=1, most=MOST_BATCH), dtype=float),
        ep=ranks,
        exchange=usual_beside(name, cluster, ranks) if sends else LOW_LATENCY,
        context=int(count(_given(question.context, "--context"), "--context")),
        drafts=ready["drafts"],
        precision=Precision.of(
            spec, experts=question.experts, linear=question.linear, core=question.attention, kv=question.kv
        ),
        acceptance=acceptance(question.acceptance, ready["drafts"] + 1),  # one more than asked, for «one draft more»
        redundant=int(count(question.redundant, "--redundant", least=0)) if question.redundant is not None else None,
    )
    predictor = Predictor.of(spec, cluster, catalog, question.sources)
    # One batch that every schedule takes, so that the rules of a deployment are all checked before the arrays.
    predictor.predict(replace(deployment, batch=schedule(name).micro_batches, schedule=name))
    return predictor, deployment, positive(_given(question.min_tps, "--min-tps"), "--min-tps")


def _given(text: str | None, name: str) -> str:
    if text is None:
        raise InputError("options", [Fault(name, "is missing", "see --help")])
    return text


def _ranks(text: str, cluster: Cluster) -> int:
    ranks, total = int(count(text, "--ep", most=MOST_GPUS)), cluster.total_gpus
    if total is not None and ranks > total:
        raise InputError("options", [Fault("--ep", f"is {ranks}", f"the cluster has {total} GPUs")])
    return ranks


def _why(predictor: Predictor, deployment: Deployment, fastest: float, min_tps: float) -> str:
    """Why no batch is feasible."""
    from moeplan.explain.shortfall import shortage

    step = predictor.predict(replace(deployment, batch=1))
    if not bool(step.fits):
        return f"does not fit: {shortage(step)}"
    return f"nothing keeps {min_tps:g} tok/s per user: the smallest batch runs at {fastest:.2f}"


def _article(ctx: click.Context, options: dict[str, Any]) -> int:
    """The article's table and claims; other questions cannot be asked with it."""
    typed = click.core.ParameterSource.COMMANDLINE
    given = [
        parameter
        for parameter in ctx.command.params
        if parameter.name not in ("article", "as_json", "data")
        and ctx.get_parameter_source(str(parameter.name)) == typed
    ]
    if given:
        names = [item.opts[0] if isinstance(item, click.Option) else "MODEL" for item in given]
        raise InputError("options", [Fault(name, "contradicts --article", "drop one of the two") for name in names])
    from moeplan.explain.batch_article import batch_article
    from moeplan.explain.expert_shapes import expert_shapes

    catalog = Catalog.standard(options["data"])
    article = batch_article(catalog)
    shapes = expert_shapes(catalog, [row.built_in for row in article.shapes if row.built_in])
    if options["as_json"]:
        from moeplan.report.batch_article_report import batch_article_content
        from moeplan.report.document import document

        print_json(document("batch-article", batch_article_content(article, shapes)))
        return 0
    from moeplan.report.batch_article_report import print_batch_article
    from moeplan.report.tables import console

    print_batch_article(console(), article, shapes)
    return 0
