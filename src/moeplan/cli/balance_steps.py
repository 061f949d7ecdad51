"""What balancing gives to steps of a model on a GPU: gains by batch, and what redundant slots leave to serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moeplan.cli.balance_question import Subject
from moeplan.cli.options import count, positive
from moeplan.errors import Fault, InputError
from moeplan.specs.catalog import Catalog

if TYPE_CHECKING:
    from moeplan.explain.placement_gain import BalancedSteps
    from moeplan.explain.replica_curve import ReplicaPoint
    from moeplan.routing.expert_map import ExpertMap

BATCHES = (8, 32, 128, 256, 512)


def check_steps(options: Mapping[str, Any]) -> None:
    """Raise InputError for a context or a promise that is no number or has no model and GPU to be of."""
    faults = []
    for name in ("context", "min_tps"):
        if options[name] is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        faults += [
            Fault(flag, f"says nothing without {needed}", f"give {needed}, or drop it")
            for key, needed in (("gpu", "--model and --gpu"), ("worth", "--worth"))
            if not options[key]
        ]
        try:
            count(options[name], flag) if name == "context" else positive(options[name], flag)
        except InputError as error:
            faults += error.faults
    if options["min_tps"] is not None and options["context"] is None:
        faults.append(Fault("--context", "is missing", "give the cached tokens per request, such as 4k"))
    if faults:
        raise InputError("options", faults)


def balanced_steps(
    asked: Subject,
    options: Mapping[str, Any],
    catalog: Catalog,
    *,
    before: ExpertMap,
    after: ExpertMap,
    points: list[ReplicaPoint],
) -> BalancedSteps | None:
    """Put both placements, and every number of redundant slots, through the step model; None without a context."""
    if options["context"] is None or asked.cluster is None or asked.spec is None or asked.spec.experts is None:
        return None
    from moeplan.explain.placement_gain import BalancedSteps, gains_by_batch, most_served, served
    from moeplan.predict import Predictor
    from moeplan.routing.loaded_ranks import LoadedRanks
    from moeplan.specs.deployment import NO_DRAFTS, Deployment, Precision
    from moeplan.specs.exchange import usual

    spec, context = asked.spec, int(count(options["context"], "--context"))
    balanced = LoadedRanks.of(
        asked.loads, top_k=asked.spec.experts.top_k, balanced=True, nodes=asked.nodes, groups=asked.groups
    )
    deployment = Deployment(
        batch=1,
        ep=asked.ranks,
        exchange=usual(asked.cluster, asked.ranks),
        context=context,
        precision=Precision.of(spec),
        acceptance=NO_DRAFTS,
        redundant=asked.slots - asked.loads.experts,
        routed=balanced,
    )
    predictor = Predictor.of(spec, asked.cluster, catalog)
    first, last = (LoadedRanks.of(asked.loads, top_k=balanced.top_k, given=one) for one in (before, after))
    lines = served(
        predictor,
        deployment,
        redundant=[point.redundant for point in points if point.possible],
        min_tps=None if options["min_tps"] is None else positive(options["min_tps"], "--min-tps"),
    )
    return BalancedSteps(
        context=context,
        gains=gains_by_batch(predictor, deployment, before=first, after=last, batches=BATCHES),
        served=lines,
        best=most_served(lines),
    )
