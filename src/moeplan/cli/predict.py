"""moeplan predict: one decode step, operator by operator."""

from __future__ import annotations

import sys

import click

from moeplan.cli.options import (
    MOST_DRAFTS,
    acceptance,
    cluster_of,
    corrections,
    count,
    data_option,
    formats,
    json_option,
    print_json,
    step_options,
)
from moeplan.errors import Fault, InputError, suggestion
from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Deployment, Precision, ScheduleName


@click.command("predict")
@click.argument("model")
@click.option("--gpu", required=True, help="GPU by name; see `moeplan gpus`.")
@click.option("--nic", default="cx7", show_default=True, help="Network card by name; see `moeplan nics`.")
@click.option("--ep", required=True, metavar="N", help="GPUs of the instance: EP size, and DP size of attention.")
@click.option("--batch", required=True, metavar="N", help="Requests per GPU (per DP rank) in a step.")
@click.option(
    "--context", required=True, metavar="TOKENS", help="Cached tokens per request; 5k is 5,000, 5Ki is 5,120."
)
@click.option("--mtp", default="0", show_default=True, metavar="N", help="Drafts per step; q_len = 1 + drafts.")
@click.option(
    "--schedule",
    type=click.Choice(["auto", "naive", "two-batch"]),
    default="auto",
    show_default=True,
    help="Overlap; auto takes the faster one.",
)
@click.option("--kv", default="bf16", show_default=True, metavar="FORMAT", help="Format of the KV cache.")
@click.option("--attention", default="bf16", show_default=True, metavar="FORMAT", help="Format of the attention core.")
@click.option("--redundant", metavar="N", help="Redundant expert slots; default: what fills every rank.")
@click.option("--correct", multiple=True, metavar="OPERATOR=FACTOR", help="Multiply an operator's time by hand.")
@click.option("--explain", is_flag=True, help="Print each formula with its numbers.")
@step_options
@data_option
@json_option
def command(**options: object) -> int:
    """Predict one decode step of MODEL (a built-in name or a config.json) under attention-DP × EP."""
    return run(**options)  # type: ignore[arg-type]  # click passes exactly these options


def run(
    *,
    model: str,
    gpu: str,
    nic: str,
    ep: str,
    batch: str,
    context: str,
    mtp: str,
    schedule: str,
    kv: str,
    attention: str,
    redundant: str | None,
    correct: tuple[str, ...],
    explain: bool,
    experts: str | None,
    linear: str | None,
    acceptance: str,
    nics_per_node: int | None,
    efficiency: str,
    data: str | None,
    as_json: bool,
) -> int:
    """Read the options, predict, print; return the exit code."""
    catalog = Catalog.standard(data)
    spec = catalog.model(model)
    cluster = cluster_of(catalog, gpu, nic, nics_per_node)
    drafts = int(count(mtp, "--mtp", least=0, most=MOST_DRAFTS))
    formats(spec, {"--experts": experts, "--linear": linear, "--attention": attention, "--kv": kv})
    deployment = Deployment(
        batch=int(count(batch, "--batch")),
        ep=int(count(ep, "--ep")),
        context=int(count(context, "--context")),
        drafts=drafts,
        precision=Precision.of(spec, experts=experts, linear=linear, core=attention, kv=kv),
        acceptance=_acceptance(acceptance, drafts),
        redundant=int(count(redundant, "--redundant", least=0)) if redundant is not None else None,
        corrections=corrections(correct),
    )
    predictor = Predictor.of(spec, cluster, catalog, "article" if efficiency == "article" else "measured")
    step = _predict(predictor, deployment, schedule)
    _check_corrections(step)
    if as_json:
        from moeplan.report.document import document, prediction_content

        print_json(document("predict", prediction_content(step, explain=explain)))
    else:
        from moeplan.report.step_report import print_prediction
        from moeplan.report.tables import console

        print_prediction(console(), step, explain=explain)
    if bool(step.fits):
        return 0
    from moeplan.explain.shortfall import shortage

    print(f"moeplan: does not fit: {shortage(step)}", file=sys.stderr)
    return 1


_acceptance = acceptance


def _predict(predictor: Predictor, deployment: Deployment, schedule: str) -> Prediction:
    """Predict with the schedule named, or with the faster one that the deployment allows."""
    from dataclasses import replace

    if schedule != "auto":
        name: ScheduleName = "two-batch" if schedule == "two-batch" else "naive"
        return predictor.predict(replace(deployment, schedule=name))
    plain = predictor.predict(deployment)
    if not predictor.model.is_moe or int(deployment.batch) % 2 or int(deployment.ep) == 1:
        return plain
    overlapped = predictor.predict(replace(deployment, schedule="two-batch"))
    return overlapped if float(overlapped.seconds) < float(plain.seconds) else plain


def _check_corrections(step: Prediction) -> None:
    """Refuse a correction of an operator that the step does not have."""
    known = {cost.name for group in step.groups for stage in group.layer.stages.values() for cost in stage.costs}
    faults = [
        Fault(
            f"--correct {name}",
            "no such operator here",
            suggestion(name, known) or f"known: {', '.join(sorted(known))}",
        )
        for name in step.deployment.corrections
        if name not in known
    ]
    if faults:
        raise InputError("options", faults)
