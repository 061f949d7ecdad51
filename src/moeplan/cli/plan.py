"""moeplan plan: search all deployments of a model."""

from __future__ import annotations

import click

from moeplan.cli.options import (
    MOST_DRAFTS,
    acceptance,
    cluster_of,
    count,
    data_option,
    formats,
    instance_sizes,
    json_option,
    names,
    positive,
    print_json,
    step_options,
    whole_range,
)
from moeplan.errors import Fault, InputError, Unsupported, suggestion
from moeplan.explain.shortfall import Shortfall, shortfall
from moeplan.memory import LARGEST_BATCH
from moeplan.predict import Predictor
from moeplan.search.best import Found, best
from moeplan.search.space import Space
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import SCHEDULES, Precision, ScheduleName
from moeplan.specs.model import ModelSpec


@click.command("plan")
@click.argument("model")
@click.option("--gpu", required=True, metavar="NAME[,NAME…]", help="GPUs to compare; see `moeplan gpus`.")
@click.option(
    "--nic", default="cx7", show_default=True, metavar="NAME[,NAME…]", help="Network cards; see `moeplan nics`."
)
@click.option(
    "--gpus", required=True, metavar="N|A..B|A,B", help="GPUs of one instance (EP = DP); whole nodes are tried."
)
@click.option("--context", metavar="TOKENS", help="Cached tokens per request in a step; 5k is 5,000, 5Ki is 5,120.")
@click.option("--min-tps", metavar="TPS", help="Promised speed: accepted tokens per second per user.")
@click.option("--mtp", default="0..1", show_default=True, metavar="N|A..B", help="Drafts per step to try.")
@click.option("--kv", default="bf16,fp8", show_default=True, metavar="FORMAT[,…]", help="KV cache formats to try.")
@click.option(
    "--attention", default="bf16", show_default=True, metavar="FORMAT[,…]", help="Attention core formats to try."
)
@click.option(
    "--schedule", default="naive,two-batch", show_default=True, metavar="NAME[,NAME…]", help="Schedules to try."
)
@click.option("--max-batch", default="512", show_default=True, metavar="N", help="Largest batch per GPU to try.")
@click.option("--isl", hidden=True)
@click.option("--osl", hidden=True)
@click.option("--ttft", hidden=True)
@click.option("--tpot", hidden=True)
@step_options
@data_option
@json_option
def command(**options: object) -> int:
    """Search all deployments of MODEL: EP/DP size, batch, MTP, precision, schedule; print the best and how to start it.

    Example: moeplan plan deepseek-v3 --gpu h800,h20 --nic cx7 --gpus 16..320 --context 5k --min-tps 20
    """
    return run(**options)  # type: ignore[arg-type]  # click passes exactly these options


def run(
    *,
    model: str,
    gpu: str,
    nic: str,
    gpus: str,
    context: str | None,
    min_tps: str | None,
    mtp: str,
    kv: str,
    attention: str,
    schedule: str,
    max_batch: str,
    isl: str | None,
    osl: str | None,
    ttft: str | None,
    tpot: str | None,
    experts: str | None,
    linear: str | None,
    acceptance: str,
    nics_per_node: int | None,
    efficiency: str,
    data: str | None,
    as_json: bool,
) -> int:
    """Read the options, search every GPU and NIC, print; return the exit code."""
    _check_question(context, min_tps, {"--isl": isl, "--osl": osl, "--ttft": ttft, "--tpot": tpot})
    assert context is not None
    assert min_tps is not None
    catalog = Catalog.standard(data)
    spec = catalog.model(model)
    tokens, target = count(context, "--context"), positive(min_tps, "--min-tps")
    drafts = _drafts(spec, mtp)
    formats(spec, {"--experts": experts, "--linear": linear, "--attention": attention, "--kv": kv})
    precisions = tuple(
        Precision.of(spec, experts=experts, linear=linear, core=core, kv=cache)
        for core in names(attention, "--attention")
        for cache in names(kv, "--kv")
    )
    largest = int(count(max_batch, "--max-batch", most=LARGEST_BATCH))
    results: list[tuple[str, str, Found | Shortfall]] = []
    for gpu_name in names(gpu, "--gpu"):
        for nic_name in names(nic, "--nic"):
            cluster = cluster_of(catalog, gpu_name, nic_name, nics_per_node)
            counts = instance_sizes(gpus, cluster)
            space = Space(
                counts=counts if spec.is_moe else counts[:1],
                batches=tuple(range(1, largest + 1)),
                drafts=drafts,
                precisions=_supported(precisions, cluster.gpu.supports, cluster.gpu.name),
                schedules=_schedules(schedule, spec, max(counts)),
                context=tokens,
                acceptance=_acceptance(acceptance, max(drafts)),
            )
            _check_size(space)
            predictor = Predictor.of(spec, cluster, catalog, "article" if efficiency == "article" else "measured")
            found = best(predictor, space, min_tps=target)
            answer = found if isinstance(found, Found) else shortfall(predictor, space, found, min_tps=target)
            results.append((cluster.gpu.name, cluster.nic.name, answer))
    _print(results, spec, tokens, target, as_json=as_json)
    return 0 if any(isinstance(item, Found) for _, _, item in results) else 1


_acceptance = acceptance
MOST_CONFIGURATIONS = 5_000_000  # seconds, and about a gigabyte of arrays


def _print(
    results: list[tuple[str, str, Found | Shortfall]], model: ModelSpec, context: float, target: float, *, as_json: bool
) -> None:
    if not as_json:
        from moeplan.report.plan_report import print_plan
        from moeplan.report.tables import console

        question = f"{model.name}, decode at a context of {context:,.0f} tokens, at least {target:g} tok/s per user"
        print_plan(console(), results, question=question)
        return
    from moeplan.report.document import document, plan_row, shortfall_content

    found = [plan_row(item) for _, _, item in results if isinstance(item, Found)]
    winner = max(range(len(found)), key=lambda i: float(found[i]["metrics"]["tok_s_per_gpu"])) if found else None
    missed = [
        {"gpu": gpu, "nic": nic, **shortfall_content(item)} for gpu, nic, item in results if isinstance(item, Shortfall)
    ]
    content = {
        "question": {"model": model.name, "context": context, "min_tok_s_per_user": target},
        "feasible": bool(found),
        "best": found,
        "winner": winner,
        "infeasible": missed,
    }
    print_json(document("plan", content))


def _check_question(context: str | None, min_tps: str | None, workload: dict[str, str | None]) -> None:
    """One decode step is described by --context and --min-tps; a workload cannot be described beside it."""
    given = [name for name, value in workload.items() if value is not None]
    faults = []
    if given:
        contradiction = " and contradicts --context, which describes one decode step" if context is not None else ""
        fix = "describe a decode step with --context and --min-tps; workloads are not answered by this version"
        faults += [Fault(name, f"describes a workload{contradiction}", fix) for name in given]
    if context is None:
        faults.append(Fault("--context", "is missing", "give the cached tokens per request, such as 5k"))
    if min_tps is None:
        faults.append(Fault("--min-tps", "is missing", "give the promised tokens per second per user, such as 20"))
    if faults:
        raise InputError("options", faults)


def _check_size(space: Space) -> None:
    if space.size > MOST_CONFIGURATIONS:
        fix = f"narrow --gpus, --max-batch or --mtp; at most {MOST_CONFIGURATIONS:,} are searched per GPU and NIC"
        raise InputError("options", [Fault("--gpus", f"spans {space.size:,} configurations", fix)])


def _drafts(model: ModelSpec, text: str) -> tuple[int, ...]:
    """The drafts to try; a model without MTP module can only have none."""
    drafts = whole_range(text, "--mtp", least=0, most=MOST_DRAFTS)
    if model.mtp_layers:
        return drafts
    if 0 not in drafts:
        raise InputError(
            "options", [Fault("--mtp", f"{model.name} ships no multi-token-prediction module", "use --mtp 0")]
        )
    return (0,)


def _supported(precisions: tuple[Precision, ...], supports: object, gpu: str) -> tuple[Precision, ...]:
    """The precisions that this GPU can multiply in; raise Unsupported, naming every reason, when there is none."""
    from moeplan.specs.deployment import check_precision

    result: list[Precision] = []
    faults: list[Fault] = []
    for precision in precisions:
        try:
            check_precision(precision, supports, gpu)
        except Unsupported as error:
            faults.extend(fault for fault in error.faults if fault not in faults)
        else:
            result.append(precision)
    if not result:
        raise Unsupported(gpu, faults)
    return tuple(result)


def _schedules(text: str, model: ModelSpec, most_gpus: int) -> tuple[ScheduleName, ...]:
    """The schedules named; overlap needs an all-to-all to hide, so a dense model or one GPU has only the naive one."""
    wanted = names(text, "--schedule")
    faults = [
        Fault("--schedule", f"unknown {name!r}", suggestion(name, SCHEDULES) or f"one of {', '.join(SCHEDULES)}")
        for name in wanted
        if name not in SCHEDULES
    ]
    if faults:
        raise InputError("options", faults)
    chosen = tuple(name for name in SCHEDULES if name in wanted)
    return chosen if model.is_moe and most_gpus > 1 else ("naive",)
