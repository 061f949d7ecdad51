"""One deployment asked about: the options that describe it, and the step that they mean."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from moeplan.cli.load_option import BEST, check_load_options, load_options, read_load, redundant_slots
from moeplan.cli.machines import machine_options
from moeplan.cli.options import (
    MOST_DRAFTS,
    acceptance,
    corrections,
    count,
    data_option,
    deployment_options,
    edited_model,
    edits_of,
    formats,
    step_options,
)
from moeplan.cli.question import Question
from moeplan.cli.saved import required, with_saved
from moeplan.errors import Fault, InputError, together
from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import HOSTS, Deployment, HostName, Precision, head_faults, is_all_to_all
from moeplan.specs.exchange import AUTO, usual, usual_beside
from moeplan.specs.model import ModelSpec
from moeplan.specs.spread import LAYOUTS, Spread, named_layouts, spreads

Command = TypeVar("Command", bound=Callable[..., Any])


class StepQuestion(Question, frozen=True, kw_only=True, eq=False):
    """The options of one deployment."""

    ep: str
    layout: str
    tp: str | None
    exchange: str = AUTO
    host: HostName
    batch: str
    correct: tuple[str, ...]


def question_options(command: Command) -> Command:
    """The options of a StepQuestion."""
    for option in reversed(
        [
            machine_options(several=False),
            click.option("--gpus", "--ep", "ep", metavar="N", help="GPUs of the instance."),
            click.option(
                "--layout",
                default="dep",
                show_default=True,
                metavar="NAME",
                help="How the model is spread: dep, dep-ag, dtp-ag, tep or tp; docs/layouts.md.",
            ),
            click.option("--tp", metavar="N", help="GPUs per attention rank; default: 1 in d… layouts, else all."),
            click.option(
                "--exchange",
                default=AUTO,
                show_default=True,
                metavar="NAME",
                help="All-to-all of layout dep, such as deepep-normal; auto: the cluster's usual one; docs/wire.md.",
            ),
            click.option(
                "--host",
                type=click.Choice(HOSTS),
                default="overlapped",
                show_default=True,
                help="Whether scheduling hides behind the GPUs' step, or the next step waits for it.",
            ),
            click.option("--batch", metavar="N", help="Requests per DP rank in a step: a GPU, or --tp of them."),
            deployment_options,
            load_options,
            click.option(
                "--correct", multiple=True, metavar="OPERATOR=FACTOR", help="Multiply an operator's time by hand."
            ),
            step_options,
            data_option,
        ]
    ):
        command = option(command)
    return command


def asked(ctx: click.Context, options: dict[str, Any]) -> tuple[StepQuestion, dict[str, Any]]:
    """Split a command's options into the question (a saved one filled in) and the rest.

    Raises InputError for what is missing and for a bad file.
    """
    filled = with_saved(ctx, options, ("predict", "winner"))
    required(filled, *(() if filled["cluster"] is not None else ("gpu",)), "ep", "batch", "context")
    names = set(StepQuestion.__struct_fields__)
    question = StepQuestion(**{name: value for name, value in filled.items() if name in names})
    return question, {name: value for name, value in filled.items() if name not in names}


def answer(question: StepQuestion) -> tuple[Predictor, Prediction]:
    """Predict the step; raise InputError naming what is wrong with the question."""
    catalog = Catalog.standard(question.data)
    machines = question.machines
    together(
        "options",
        lambda: edited_model(catalog, question.model, question.edits),
        lambda: machines.one(catalog, edits_of(question.edits)),
        lambda: formats(catalog.model(question.model), question.formats),
        lambda: check_load_options(question.load, question.redundant),
        lambda: count(question.mtp, "--mtp", least=0, most=MOST_DRAFTS),
        lambda: count(question.batch, "--batch"),
        lambda: count(question.ep, "--gpus"),
        lambda: count(question.context, "--context"),
        lambda: acceptance(question.acceptance, 1),
        lambda: question.sources,
        lambda: corrections(question.correct),
        lambda: named_layouts([question.layout]),
        lambda: count(question.tp, "--tp") if question.tp is not None else None,
    )
    spec, edits = edited_model(catalog, question.model, question.edits)
    cluster = machines.one(catalog, edits)
    drafts = int(count(question.mtp, "--mtp", least=0, most=MOST_DRAFTS))
    spread = asked_spread(spec, question.layout, question.tp, _ranks(question.ep, cluster))
    predictor = Predictor.of(spec, cluster, catalog, question.sources)
    deployment = Deployment(
        batch=int(count(question.batch, "--batch")),
        ep=spread.counts[0] // spread.moe_tp,
        tp=spread.tp,
        moe_tp=spread.moe_tp,
        exchange=_exchange(question, spread, predictor),
        host=question.host,
        context=int(count(question.context, "--context")),
        drafts=drafts,
        precision=Precision.of(
            spec, experts=question.experts, linear=question.linear, core=question.attention, kv=question.kv
        ),
        acceptance=acceptance(question.acceptance, drafts),
        redundant=redundant_slots(question.redundant),
        routed=read_load(question.load, spec, balanced=question.redundant is not None),
        corrections=corrections(question.correct),
    )
    if question.redundant == BEST and spec.experts is not None:
        from moeplan.search.redundancy import fastest_redundancy

        experts = spec.experts.count
        return predictor, fastest_redundancy(
            deployment, experts, lambda one: _predict(predictor, one, question.schedule)
        )
    return predictor, _predict(predictor, deployment, question.schedule)


def _exchange(question: StepQuestion, spread: Spread, predictor: Predictor) -> str:
    """How tokens reach their experts: the spread's own way, the usual all-to-all of the cluster, or the one named."""
    if question.exchange.strip() != AUTO:
        from moeplan.cli.exchanges import one_exchange

        return one_exchange(question.exchange, spread, predictor, question.experts)
    article, cluster = predictor.machine.kernels.sources.article, predictor.machine.cluster
    usual_one = usual_spread(spread, predictor.model, cluster, article=article).exchange
    if question.schedule == "auto" or article or not is_all_to_all(usual_one) or not predictor.model.is_moe:
        return usual_one
    return usual_beside(question.schedule, cluster, spread.counts[0])


def usual_spread(spread: Spread, model: ModelSpec, cluster: Cluster, *, article: bool) -> Spread:
    """The spread by the usual all-to-all of a cluster where it sends tokens; the article has figures of one alone."""
    ranks = spread.counts[0]
    sends = spread.layout == "dep" and ranks > 1 and model.is_moe and not article
    return replace(spread, exchange=usual(cluster, ranks)) if sends else spread


def asked_spread(model: ModelSpec, layout: str, tp: str | None, gpus: int) -> Spread:
    """The spread of that name over so many GPUs; raise InputError where the model or the name does not allow it."""
    (name,) = named_layouts([layout])
    by_heads = name in ("tep", "tp")
    ranks = int(count(tp, "--tp")) if tp is not None else gpus if by_heads else 1
    if by_heads and ranks != gpus:
        fix = f"leave it out, or take a layout by requests: {', '.join(key for key in LAYOUTS if key[0] == 'd')}"
        raise InputError("options", [Fault("--tp", f"is {ranks}, {name} takes all {gpus} GPUs", fix)])
    if by_heads and gpus == 1:
        name, by_heads = "dep", False
    found = spreads(model, (gpus,), (name,), (ranks,))
    if found:
        return found[0]
    faults = list(head_faults(model, ranks))
    if not faults and gpus % ranks:
        faults.append(Fault("--tp", f"{ranks} does not divide {gpus} GPUs", "give a divisor"))
    if not faults and not by_heads and ranks == gpus:
        faults.append(Fault("--tp", f"one attention rank takes all {gpus} GPUs", "use --layout tep or tp"))
    if not faults:
        why = f"{model.name} cannot be spread so over {gpus} GPUs"
        faults.append(Fault("--layout", f"{name}: {why}", "its experts' width, or a dense layer's, does not divide"))
    raise InputError("options", faults)


def _ranks(text: str, cluster: Cluster) -> int:
    ranks, total = int(count(text, "--gpus")), cluster.total_gpus
    if total is not None and ranks > total:
        raise InputError("options", [Fault("--gpus", f"is {ranks}", f"the cluster has {total} GPUs")])
    return ranks


def said_to_fit(step: Prediction) -> bool:
    """Whether a predicted deployment fits in memory; what it lacks goes to standard error."""
    if bool(step.fits):
        return True
    from moeplan.explain.shortfall import shortage

    print(f"moeplan: does not fit: {shortage(step)}", file=sys.stderr)
    return False


def _predict(predictor: Predictor, deployment: Deployment, schedule: str) -> Prediction:
    """Predict with the schedule named, or with the faster one that the deployment allows."""
    if schedule != "auto":
        return predictor.predict(replace(deployment, schedule=schedule))
    return predictor.fastest(deployment)
