"""All-to-alls asked for by name: whether a layout sends anything by one, whether a cluster can have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeplan.cli.options import names
from moeplan.errors import Fault, InputError, Unsupported
from moeplan.kernels.origin import Origin
from moeplan.ops.cost import Cost
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.predict import Predictor
from moeplan.specs.deployment import ALL_REDUCE, LOW_LATENCY
from moeplan.specs.exchange import AUTO, Direction, Exchange, exchange, named_exchanges, usual, usual_reach
from moeplan.specs.model import ModelSpec
from moeplan.specs.precision import weight_format
from moeplan.specs.spread import EVERYWHERE, Spread

Reach = dict[str, tuple[float, float]]


def read_exchanges(text: str) -> tuple[str, ...]:
    """The all-to-alls named, none for «auto»; raise InputError naming every unknown one, and auto beside others."""
    if text.strip() == AUTO:
        return ()
    asked = names(text, "--exchange")
    if AUTO in asked:
        fix = "name the usual one, too (docs/wire.md), or give auto alone"
        raise InputError("options", [Fault("--exchange", "auto takes one for each size and stands alone", fix)])
    return named_exchanges(asked)


def one_exchange(text: str, spread: Spread, predictor: Predictor, experts: str | None) -> str:
    """The all-to-all named for one spread; raise InputError where it sends nothing or the cluster cannot have it.

    experts: the format of their weights, the checkpoint's where it is None.
    """
    model, machine = predictor.model, predictor.machine
    (name, *others), ranks = read_exchanges(text), spread.counts[0]
    faults = [*_faults(name, model, article=machine.kernels.sources.article)]
    if others:
        faults.append(Fault("--exchange", "names several", "predict takes one, `moeplan plan` compares them"))
    if not faults and spread.layout != "dep":
        how = "adds up outputs" if spread.exchange == ALL_REDUCE else "gathers all tokens"
        fix = "leave --exchange out, or take --layout dep"
        faults.append(Fault("--exchange", f"is {name}, and {spread.layout} {how}: nothing is sent by one", fix))
    if not faults and ranks > 1:
        found = exchange(name)
        precision = weight_format(experts or model.formats.experts).computes_in
        unable = [*found.faults(machine.cluster, ranks)] or [*_priced(found, predictor, ranks, precision)]
        faults = [Fault(f"--exchange {fault.path}", fault.problem, fault.fix) for fault in unable]
    if faults:
        raise InputError("options", faults)
    return name


def _faults(name: str, model: ModelSpec, *, article: bool) -> Iterator[Fault]:
    if not model.is_moe:
        yield Fault("--exchange", f"{model.name} has no experts to send tokens to", "leave it out")
    if article and name != LOW_LATENCY:
        yield Fault("--exchange", f"the article's figures are of {LOW_LATENCY} alone", "leave --kernels article out")


def searched(
    text: str, predictor: Predictor, counts: Sequence[int], layouts: Sequence[str], experts: str | None
) -> tuple[Reach, tuple[str, ...]]:
    """The all-to-alls to search on a cluster, each with the sizes that it connects, and why others are left out.

    Raises InputError where nothing would be sent by one, Unsupported where the cluster can have none of those named.
    """
    model, cluster, sources = predictor.model, predictor.machine.cluster, predictor.machine.kernels.sources
    asked = read_exchanges(text)
    if not asked:
        return (dict(EVERYWHERE) if sources.article or not model.is_moe else usual_reach(cluster)), ()
    wrong = [fault for name in asked for fault in _faults(name, model, article=sources.article)][:1]
    if "dep" not in layouts:
        wrong.append(Fault("--exchange", "only the layout dep sends tokens by an all-to-all", "add dep to --layout"))
    if wrong:
        raise InputError("options", wrong)
    reach: Reach = {}
    left_out: list[Fault] = []
    precision = weight_format(experts or model.formats.experts).computes_in
    for name in asked:
        found = exchange(name)
        able = [count for count in counts if count <= found.most(cluster)]
        missing = [*_priced(found, predictor, max(able), precision)] if able else []
        left_out += missing or ([] if max(counts) in able else list(found.faults(cluster, max(counts))))
        if able and not missing:
            reach[name] = (0.0, found.most(cluster))
    if not reach:
        raise Unsupported(cluster.gpu.name, left_out)
    return reach, tuple(map(str, left_out))


def _priced(found: Exchange, predictor: Predictor, ranks: int, precision: str) -> Iterator[Fault]:
    """Why no time is known of an all-to-all on this GPU, from the sources that may answer."""
    model, kernels = predictor.model, predictor.machine.kernels

    def cost(way: Direction) -> Cost:
        assert model.experts is not None, "checked before"
        return all_to_all(
            way,
            predictor.machine,
            found,
            tokens=1.0,
            hidden=model.hidden,
            top_k=model.experts.top_k,
            experts=model.experts.count,
            ep=max(ranks, 2),
            precision=precision,
        )

    try:
        costs = [cost("dispatch"), cost("combine")]
    except InputError as error:
        fix = f"use {usual(predictor.machine.cluster, ranks)}"
        yield from (Fault(found.name, fault.problem, fix) for fault in error.faults)
        return
    assumed = [cost for cost in costs if cost.origin is Origin.ASSUMED]
    if kernels.sources.strict and assumed:
        yield Fault(found.name, f"is assumed: {assumed[0].source}", "leave --strict out")
