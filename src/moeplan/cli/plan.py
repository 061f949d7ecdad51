"""moeplan plan: search all deployments of a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict, replace

from moeplan.cli.load_option import load_options
from moeplan.cli.machines import machine_options
from moeplan.cli.options import (
    chart_option,
    check_chart,
    data_option,
    json_option,
    print_json,
    save_option,
    step_options,
)
from moeplan.cli.plan_question import PlanQuestion, ReadPlan, Search, check_question, read_plan
from moeplan.cli.progress import SearchProgress
from moeplan.cli.saved import kept, required, save, with_saved
from moeplan.errors import together
from moeplan.explain.alternatives import MOST_CONFIGURATIONS, alternatives
from moeplan.explain.answer import RANKINGS, Answer, Result
from moeplan.explain.attention_cut import cut_gain
from moeplan.explain.shortfall import Shortfall, shortfall
from moeplan.predict import Prediction
from moeplan.search.best import Found, best


@click.command("plan")
@click.argument("model")
@machine_options(several=True)
@click.option(
    "--gpus",
    metavar="N|A..B|A,B",
    help="GPUs of one instance (EP = DP); whole nodes are tried. Default: all sizes of a --cluster of fixed size.",
)
@click.option("--context", metavar="TOKENS", help="Cached tokens per request in a step; 5k is 5,000, 5Ki is 5,120.")
@click.option("--min-tps", metavar="TPS", help="Promised speed: accepted tokens per second per user.")
@click.option("--mtp", default="0..1", show_default=True, metavar="N|A..B", help="Drafts per step to try.")
@click.option("--kv", default="bf16,fp8", show_default=True, metavar="FORMAT[,…]", help="KV cache formats to try.")
@click.option(
    "--attention", default="bf16", show_default=True, metavar="FORMAT[,…]", help="Attention core formats to try."
)
@click.option(
    "--layout",
    default="dep,dep-ag,dtp-ag,tep,tp",
    show_default=True,
    metavar="NAME[,NAME…]",
    help="Layouts to try: attention by requests (d…) or by heads, experts whole (ep) or cut (tp), all-to-all or "
    "all-gather (-ag); docs/layouts.md.",
)
@click.option(
    "--exchange",
    default="auto",
    show_default=True,
    metavar="NAME[,NAME…]",
    help="All-to-alls to try in layout dep, such as deepep-low-latency,deepep-normal; auto: the usual one of each "
    "cluster and size; docs/wire.md.",
)
@click.option(
    "--tp", default="1", show_default=True, metavar="N|A..B|A,B", help="GPUs per attention rank to try in d… layouts."
)
@click.option(
    "--schedule", default="naive,two-batch", show_default=True, metavar="NAME[,NAME…]", help="Schedules to try."
)
@load_options
@click.option("--max-batch", default="512", show_default=True, metavar="N", help="Largest batch per GPU to try.")
@click.option(
    "--rank-by",
    type=click.Choice(list(RANKINGS)),
    default="tok/s",
    show_default=True,
    help="How GPUs are ranked: per GPU, per dollar, per watt.",
)
@click.option("--front", is_flag=True, help="Print the front of speed per user against throughput, too.")
@click.option("--isl", hidden=True)
@click.option("--osl", hidden=True)
@click.option("--ttft", hidden=True)
@click.option("--tpot", hidden=True)
@step_options
@save_option
@chart_option
@data_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Search all deployments of MODEL: EP/DP size, batch, MTP, precision, schedule; print the best and how to start it.

    MODEL is a built-in name, a config.json, or a question saved with --save.

    Example: moeplan plan deepseek-v3 --gpu h800,h20 --nic cx7 --gpus 16..320 --context 5k --min-tps 20
    """
    workload = {f"--{name}": options.pop(name) for name in ("isl", "osl", "ttft", "tpot")}
    check_chart(options["chart"])
    filled = with_saved(ctx, options, ("plan",))
    together(
        "options",
        lambda: check_question(filled["context"], filled["min_tps"], workload),
        lambda: required(filled, *(() if filled["cluster"] is not None else ("gpu", "gpus"))),
    )
    fields = set(PlanQuestion.__struct_fields__)
    question = PlanQuestion(**{name: value for name, value in filled.items() if name in fields})
    plan = read_plan(question)
    answer = _compared(Answer(results=(*_search(plan), *_unsupported(plan)), rank_by=question.rank_by), plan)
    if filled["save"]:
        _save(Path(filled["save"]), question, answer)
    if filled["chart"]:
        _draw(answer, plan, Path(filled["chart"]))
    _print(answer, plan, as_json=filled["as_json"], front=filled["front"])
    if not answer.complete:
        print("moeplan: interrupted: the answer covers only what was tried", file=sys.stderr)
        return 130
    return 0 if answer.winner is not None else 1


def _search(plan: ReadPlan) -> list[Result]:
    """Search every GPU and NIC; an interrupt keeps what was found and leaves the rest."""
    results: list[Result] = []
    for search in plan.searches:
        progress = SearchProgress(" with ".join(search.asked.values()))
        try:
            result = _one(search, plan.min_tps, progress)
        except KeyboardInterrupt:
            if not results:
                raise
            return [replace(item, complete=False) for item in results]
        finally:
            progress.close()
        results.append(result)
        if not result.complete:
            break
    return results


def _compared(answer: Answer, plan: ReadPlan) -> Answer:
    """Add what each choice of the winner is worth."""
    winner = answer.winner
    if winner is None or winner.found is None or not answer.complete:
        return answer
    search = next(search for search in plan.searches if search.asked == winner.asked)
    predictor, space = search.predictor, search.space
    answer = replace(answer, cut=cut_gain(predictor, winner.found.prediction))
    if space.size > MOST_CONFIGURATIONS:
        return answer
    try:
        found = alternatives(predictor, space, winner.found, min_tps=plan.min_tps)
    except KeyboardInterrupt:
        return replace(answer, compared=False)
    return replace(answer, alternatives=tuple(found))


def _one(search: Search, min_tps: float, progress: SearchProgress) -> Result:
    predictor, space = search.predictor, search.space
    found = best(predictor, space, min_tps=min_tps, progress=progress)
    missing: Shortfall | None = None
    if not isinstance(found, Found) and found.complete:
        missing = shortfall(predictor, space, found, min_tps=min_tps)
    cluster = predictor.machine.cluster
    return Result(
        gpu=cluster.gpu.name,
        nic=cluster.nic.name,
        asked=search.asked,
        found=found if isinstance(found, Found) else None,
        front=found.front,
        tried=found.tried,
        missing=missing,
        unsupported=None,
        complete=found.complete,
        left_out=search.left_out,
    )


def _unsupported(plan: ReadPlan) -> list[Result]:
    """GPUs of the comparison that cannot run the model."""
    return [
        Result(
            gpu=cluster.gpu.name,
            nic=cluster.nic.name,
            asked=asked,
            found=None,
            front=(),
            tried=0,
            missing=None,
            unsupported=reason,
            complete=True,
        )
        for asked, cluster, reason in plan.unsupported
    ]


def _save(path: Path, question: PlanQuestion, answer: Answer) -> None:
    """The question, and beside it the winner as a question of its own and its figures for the reader."""
    extra: dict[str, Any] = {}
    winner = answer.winner
    if winner is not None and winner.found is not None:
        step = winner.found.prediction
        extra["winner"] = kept(_as_step_question(question, winner, step))
        extra["figures"] = {
            "tok_s_per_gpu": round(float(step.tps_per_gpu), 2),
            "tok_s_per_user": round(float(step.tps_per_user), 3),
            "binds": winner.found.binding,
        }
    save(path, "plan", asdict(question), extra)


def _as_step_question(question: PlanQuestion, winner: Result, step: Prediction) -> dict[str, Any]:
    deployment = step.deployment
    return {
        "model": question.model,
        **winner.asked,
        "ep": str(int(deployment.gpus)),
        "layout": deployment.layout,
        "exchange": deployment.exchange if step.model.is_moe and deployment.layout == "dep" else None,
        "tp": str(deployment.tp),
        "batch": str(int(deployment.batch)),
        "context": str(int(deployment.context)),
        "mtp": str(int(deployment.drafts)),
        "schedule": deployment.schedule,
        "kv": deployment.precision.kv.name,
        "attention": deployment.precision.core.name,
        "experts": question.experts,
        "linear": question.linear,
        "acceptance": question.acceptance,
        "nics_per_node": question.nics_per_node,
        "load": question.load,
        "redundant": None if question.redundant is None or step.slots is None else str(int(step.slots.redundant)),
        "kernels": question.kernels,
        "strict": question.strict,
        "edits": question.edits,
    }


def _draw(answer: Answer, plan: ReadPlan, path: Path) -> None:
    from moeplan.charts.breakdown import breakdown_chart
    from moeplan.charts.pareto import pareto_chart
    from moeplan.charts.render import write_chart
    from moeplan.explain.operators import step_operators
    from moeplan.report.headline import headline

    fronts = {result.cluster or f"{result.gpu}, {result.nic}": result.front for result in answer.results}
    subtitle = (
        f"{plan.model.name}, decode at a context of {plan.context:,.0f} tokens; every point the best of its speed"
    )
    winner = answer.winner
    if winner is None or winner.found is None:
        specs = [pareto_chart(fronts, subtitle=subtitle, min_tps=plan.min_tps)]
    else:
        step = winner.found.prediction
        place = (float(step.tps_per_user), float(step.tps_per_gpu))
        subtitle += "; ring: the winner"
        specs = [pareto_chart(fronts, subtitle=subtitle, min_tps=plan.min_tps, winner=place)]
        specs.append(breakdown_chart(step_operators(step), subtitle=headline(step)))
    write_chart(specs, path)


def _print(answer: Answer, plan: ReadPlan, *, as_json: bool, front: bool) -> None:
    if as_json:
        from moeplan.report.document import document
        from moeplan.report.plan_document import plan_content

        print_json(document("plan", plan_content(answer, plan.model.name, plan.context, plan.min_tps)))
        return
    from moeplan.report.plan_report import print_plan
    from moeplan.report.tables import console

    what = f"{plan.model.name}, decode at a context of {plan.context:,.0f} tokens"
    print_plan(
        console(),
        answer,
        question=f"{what}, at least {plan.min_tps:g} tok/s per user",
        min_tps=plan.min_tps,
        front=front,
    )
