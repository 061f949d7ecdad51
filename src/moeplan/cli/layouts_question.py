"""The options of `moeplan layouts` read: sizes, contexts, layouts, and what refuses which of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct

from moeplan.cli.options import (
    MOST_DRAFTS,
    MOST_GPUS,
    acceptance,
    attention_ranks,
    count,
    edited_model,
    edits_of,
    formats,
    names,
    whole_range,
)
from moeplan.cli.question import Question
from moeplan.cli.step_question import asked_spread, usual_spread
from moeplan.errors import Fault, InputError, together
from moeplan.memory import LARGEST_BATCH
from moeplan.predict import Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Deployment, Precision, check_precision
from moeplan.specs.model import ModelSpec
from moeplan.specs.spread import Spread, named_layouts

MOST_PANELS = 24  # sizes times contexts: more nobody reads in one picture
MOST_REQUESTS = 1 << 20


class LayoutsQuestion(Question, frozen=True, kw_only=True):
    """The options as typed; context: several, with commas."""

    gpus: str
    layout: str
    tp: str
    requests: str | None
    max_batch: str


class SizeAsked(Struct, frozen=True, kw_only=True):
    """Layouts that one instance size allows, by name, and those it does not, with the reason."""

    gpus: int
    spreads: tuple[tuple[str, Spread], ...]
    refused: tuple[tuple[str, str], ...]


class ReadLayouts(Struct, frozen=True, kw_only=True):
    """The question read. sizes: those that can be; refused: those that cannot, with the reason."""

    model: ModelSpec
    predictor: Predictor
    base: Deployment
    contexts: tuple[int, ...]
    sizes: tuple[SizeAsked, ...]
    refused: tuple[tuple[int, str], ...]
    requests: tuple[int, ...]  # asked for; none: powers of two
    largest: int  # requests per GPU


def read_layouts(question: LayoutsQuestion) -> ReadLayouts:
    """Read every option before anything is computed; raise InputError naming what is wrong."""
    catalog = Catalog.standard(question.data)
    machines = question.machines
    together(
        "options",
        lambda: edited_model(catalog, question.model, question.edits),
        lambda: machines.one(catalog, edits_of(question.edits)),
        lambda: formats(catalog.model(question.model), question.formats),
        lambda: _contexts(question.context),
        lambda: whole_range(question.gpus, "--gpus", least=1, most=MOST_GPUS),
        lambda: whole_range(question.tp, "--tp", least=1, most=MOST_GPUS),
        lambda: _requests(question.requests),
        lambda: count(question.max_batch, "--max-batch", most=LARGEST_BATCH),
        lambda: count(question.mtp, "--mtp", least=0, most=MOST_DRAFTS),
        lambda: acceptance(question.acceptance, 1),
        lambda: question.sources,
        lambda: named_layouts(names(question.layout, "--layout")),
    )
    model, edits = edited_model(catalog, question.model, question.edits)
    cluster = machines.one(catalog, edits)
    attention_ranks(question.tp, named_layouts(names(question.layout, "--layout")))
    contexts, drafts = _contexts(question.context), int(count(question.mtp, "--mtp", least=0, most=MOST_DRAFTS))
    _check_model(model, contexts, drafts)
    precision = Precision.of(
        model, experts=question.experts, linear=question.linear, core=question.attention, kv=question.kv
    )
    check_precision(precision, cluster.gpu.supports, cluster.gpu.name)
    sizes, refused = _sizes(question, model, cluster)
    if len(sizes) * len(contexts) > MOST_PANELS:
        fix = f"narrow --gpus or --context: at most {MOST_PANELS} of both together"
        raise InputError("options", [Fault("--gpus", f"and --context span {len(sizes) * len(contexts)} curves", fix)])
    return ReadLayouts(
        model=model,
        predictor=Predictor.of(model, cluster, catalog, question.sources),
        base=Deployment(
            batch=1,
            ep=1,
            context=contexts[0],
            precision=precision,
            acceptance=acceptance(question.acceptance, drafts),
            drafts=drafts,
        ),
        contexts=contexts,
        sizes=sizes,
        refused=refused,
        requests=_requests(question.requests),
        largest=int(count(question.max_batch, "--max-batch", most=LARGEST_BATCH)),
    )


def _check_model(model: ModelSpec, contexts: tuple[int, ...], drafts: int) -> None:
    faults = [
        Fault("--context", f"is {context:,}", f"{model.name} reads at most {model.max_position:,} tokens as shipped")
        for context in contexts
        if model.max_position is not None and context > model.max_position
    ]
    if drafts and not model.mtp_layers:
        faults.append(Fault("--mtp", f"{model.name} ships no multi-token-prediction module", "use --mtp 0"))
    if faults:
        raise InputError("options", faults)


def _sizes(
    question: LayoutsQuestion, model: ModelSpec, cluster: Cluster
) -> tuple[tuple[SizeAsked, ...], tuple[tuple[int, str], ...]]:
    """Every size asked for: what it allows, or why it cannot be; raise InputError where none can."""
    sizes, refused = [], []
    node, total = cluster.gpus_per_node, cluster.total_gpus
    layouts = named_layouts(names(question.layout, "--layout"))
    for gpus in whole_range(question.gpus, "--gpus", least=1, most=MOST_GPUS):
        if total is not None and gpus > total:
            refused.append((gpus, f"the cluster has {total} GPUs"))
        elif gpus % node and (gpus > node or node % gpus):
            refused.append((gpus, f"fills no whole nodes of {node} GPUs, nor an even part of one"))
        else:
            found = _of_size(question, model, cluster, layouts, gpus)
            if found.spreads:
                sizes.append(found)
            else:
                refused.append((gpus, "; ".join(f"{name}: {why}" for name, why in found.refused)))
    if not sizes:
        raise InputError("options", [Fault("--gpus", f"{gpus}: {why}") for gpus, why in refused])
    return tuple(sizes), tuple(refused)


def _of_size(
    question: LayoutsQuestion, model: ModelSpec, cluster: Cluster, layouts: tuple[str, ...], gpus: int
) -> SizeAsked:
    article = question.sources.article
    spreads: dict[str, Spread] = {}
    refused = []
    for layout in layouts:
        if layout != "dep" and gpus == 1:
            refused.append((layout, "one GPU: the same as dep"))
            continue
        if layout not in ("dep", "tp") and not model.is_moe:
            refused.append((layout, f"{model.name} has no experts to place"))
            continue
        for tp in _ranks(layout, question.tp):
            name = layout if tp in (None, "1") else f"{layout} tp{tp}"
            try:
                found = asked_spread(model, layout, tp, gpus)
            except InputError as error:
                whys = [f"{fault.problem.removeprefix(f'{layout}: ')} ({fault.fix})" for fault in error.faults]
                refused.append((name, "; ".join(whys)))
            else:
                spreads[name] = usual_spread(found, model, cluster, article=article)
    return SizeAsked(gpus=gpus, spreads=tuple(spreads.items()), refused=tuple(refused))


def _ranks(layout: str, tps: str) -> Iterator[str | None]:
    """The attention ranks to try: layouts by heads take all GPUs."""
    if not layout.startswith("d"):
        yield None
        return
    for tp in whole_range(tps, "--tp", least=1, most=MOST_GPUS):
        yield str(tp)


def _contexts(text: str) -> tuple[int, ...]:
    return _counts(text, "--context", most=1e9)


def _requests(text: str | None) -> tuple[int, ...]:
    return () if text is None else _counts(text, "--requests", most=MOST_REQUESTS)


def _counts(text: str, name: str, *, most: float) -> tuple[int, ...]:
    """Read whole numbers such as 2k,16k; raise InputError naming every bad one."""
    found: set[int] = set()
    faults: list[Fault] = []
    for part in names(text, name):
        try:
            found.add(int(count(part, name, most=most)))
        except InputError as error:
            faults.extend(error.faults)
    if faults:
        raise InputError("options", faults)
    return tuple(sorted(found))


def largest_of(read: ReadLayouts, gpus: int) -> int:
    """Requests per GPU to go up to, at least those asked for."""
    return max([read.largest, *(math.ceil(asked / gpus) for asked in read.requests)])
