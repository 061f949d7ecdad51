"""What a router's group limit changes on several nodes: where a token goes, what the NIC carries, how rows scatter."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.kernels.origin import worst
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.ops.machine import Machine
from moeplan.routing.coverage import NO_LIMIT, GroupLimit
from moeplan.routing.slots import deal, expert_load
from moeplan.routing.targets import distinct_targets
from moeplan.specs.deployment import LOW_LATENCY, Precision
from moeplan.specs.exchange import Direction, exchange
from moeplan.specs.model import ModelSpec

NORMAL = "deepep-normal"
BOTH: Final[tuple[Direction, ...]] = ("dispatch", "combine")
TOKENS = (128, 4096)  # per GPU: a decode step's, and DeepEP's own benchmark of its normal kernels


class Sent(Struct, frozen=True, kw_only=True):
    """Dispatch and combine of one layer: NIC bytes that a GPU sends in both, their seconds, how sure those are."""

    tokens: int
    backend: str
    nic_bytes: float
    seconds: float
    origin: str


class Reach(Struct, frozen=True, kw_only=True):
    """With one limit: nodes and ranks that a token's experts lie on, its own counted; rows over the ranks.

    rows: tokens that go to the fullest rank over the mean, at TOKENS[0] tokens per GPU.
    """

    limit: GroupLimit
    nodes: float
    ranks: float
    fullest: float
    sent: tuple[Sent, ...]


class GroupLimitEffect(Struct, frozen=True, kw_only=True):
    """The model's limit beside none, on so many GPUs of several nodes; places: what a node is, nodes or domains."""

    gpus: int
    nodes: int
    places: str
    limited: Reach
    free: Reach


def has_limit(model: ModelSpec) -> bool:
    """Whether the router narrows a token to some groups of experts."""
    return model.experts is not None and model.experts.topk_group < model.experts.n_group


def group_limit_effect(model: ModelSpec, machine: Machine, precision: Precision, *, gpus: int) -> GroupLimitEffect:
    """Compare; experts over all GPUs, even routing.

    Raises InputError where a backend has no kernels on this chip, or a scale-up domain is filled in part.
    """
    experts = model.experts
    assert experts is not None, "a limit belongs to experts"
    domain = machine.cluster.gpu.domain
    if gpus % domain:
        fix = f"give a multiple of {domain}"
        raise InputError("layouts", [Fault("gpus", f"{gpus} fill no whole scale-up domains of {domain}", fix)])
    nodes = gpus // domain
    limit = GroupLimit(count=experts.n_group, taken=experts.topk_group)
    sides = [_reach(model, machine, precision, each, gpus=gpus, nodes=nodes) for each in (limit, NO_LIMIT)]
    places = "nodes" if domain == machine.cluster.gpus_per_node else "scale-up domains"
    return GroupLimitEffect(gpus=gpus, nodes=nodes, places=places, limited=sides[0], free=sides[1])


def _reach(
    model: ModelSpec, machine: Machine, precision: Precision, limit: GroupLimit, *, gpus: int, nodes: int
) -> Reach:
    experts = model.experts
    assert experts is not None, "a limit belongs to experts"
    law = {"experts": experts.count, "top_k": experts.top_k, "groups": limit.count, "top_groups": limit.taken}
    reached, ranks = distinct_targets(np.array([nodes, gpus]), **law).tolist()
    load = expert_load(deal(experts.count, gpus), tokens=float(TOKENS[0] * gpus), top_k=experts.top_k, limit=limit)
    sent = [
        _sent(model, machine, precision, limit, gpus=gpus, backend=backend, tokens=tokens)
        for backend, tokens in [(NORMAL, TOKENS[0]), (NORMAL, TOKENS[1]), (LOW_LATENCY, TOKENS[0])]
    ]
    return Reach(
        limit=limit,
        nodes=reached,
        ranks=ranks,
        fullest=float(load.rows / (load.mean_rows_per_slot * load.slots)),
        sent=tuple(sent),
    )


def _sent(
    model: ModelSpec,
    machine: Machine,
    precision: Precision,
    limit: GroupLimit,
    *,
    gpus: int,
    backend: str,
    tokens: int,
) -> Sent:
    experts = model.experts
    assert experts is not None, "a limit belongs to experts"
    costs = [
        all_to_all(
            direction,
            machine,
            exchange(backend),
            tokens=float(tokens),
            hidden=model.hidden,
            top_k=experts.top_k,
            experts=deal(experts.count, gpus).total,
            ep=float(gpus),
            precision=precision.experts.computes_in,
            limit=limit,
        )
        for direction in BOTH
    ]
    return Sent(
        tokens=tokens,
        backend=backend,
        nic_bytes=sum(float(cost.terms["over the NIC"][0]) for cost in costs),
        seconds=sum(float(cost.seconds) for cost in costs),
        origin=str(worst(*(cost.origin for cost in costs))),
    )
