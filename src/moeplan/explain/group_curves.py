"""Time and MFU of the experts' two products over the batch, and the EP size at which products and all-to-all turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import Fault, InputError
from moeplan.kernels.origin import Origin, worst
from moeplan.kinds import Array, Real
from moeplan.ops.cost import Cost
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.ops.grouped_gemm import grouped_gemm
from moeplan.ops.machine import Machine
from moeplan.routing.slots import deal, expert_load
from moeplan.specs.exchange import Direction, exchange, usual
from moeplan.specs.model import Experts, ModelSpec
from moeplan.specs.precision import Format, weight_format

Product = Literal["gate_up", "down", "both"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("dispatch", "combine")
PRODUCTS: Final[tuple[Product, ...]] = ("gate_up", "down")


class GroupCurve(Struct, frozen=True, kw_only=True, eq=False):
    """One product on one GPU, at q_len new tokens per request and an EP group of ep ranks, over batch per rank.

    m: mean rows of an active expert; groups: active experts of a rank, expected; mfu: of the dense peak, from the FLOP
    that were asked for.
    """

    gpu: str
    product: Product
    q_len: int
    ep: int
    batch: Array
    groups: Array
    m: Array
    seconds: Array
    mfu: Array
    origin: Origin
    source: str


class Turn(Struct, frozen=True, kw_only=True):
    """An expert layer at one EP size: the products of the mean rank, and both all-to-alls, in seconds.

    exchange: the all-to-all, the usual one of the cluster at that size; empty where nothing is sent.
    """

    ep: int
    batch: float
    products: float
    all_to_all: float
    exchange: str
    origin: Origin

    @property
    def seconds(self) -> float:
        """One after the other, nothing hidden."""
        return self.products + self.all_to_all


def group_curves(
    machine: Machine,
    model: ModelSpec,
    *,
    batches: Sequence[int],
    q_lens: Sequence[int],
    eps: Sequence[int],
    weights: Format | None = None,
) -> list[GroupCurve]:
    """The curves of the grouped-GEMM article, under uniform routing, of a rank with the mean of rows.

    Raises InputError for a dense model, Unsupported for a precision the GPU lacks.
    """
    experts = _experts(model)
    batch = np.array(batches, dtype=float)
    found = []
    for product in PRODUCTS:
        for q_len in q_lens:
            for ep in eps:
                found.append(_curve(machine, model, experts, product, batch, q_len, ep, weights))
    return found


def both_products(curves: Sequence[GroupCurve]) -> list[GroupCurve]:
    """gate_up and down one after the other, for every GPU, q_len and EP size; the rest between them left out."""
    ups = [curve for curve in curves if curve.product == "gate_up"]
    downs = {(curve.gpu, curve.q_len, curve.ep): curve for curve in curves if curve.product == "down"}
    found = []
    for up in ups:
        down = downs[up.gpu, up.q_len, up.ep]
        seconds = up.seconds + down.seconds
        found.append(
            replace(
                up,
                product="both",
                seconds=seconds,
                mfu=(up.mfu * up.seconds + down.mfu * down.seconds) / seconds,
                origin=worst(up.origin, down.origin),
            )
        )
    return found


def turns(
    machine: Machine,
    model: ModelSpec,
    *,
    batch: float,
    q_len: int,
    eps: Sequence[int],
    global_batch: bool = False,
    weights: Format | None = None,
) -> list[Turn]:
    """Products and all-to-alls over the EP size; batch per rank, or of the whole group where global_batch says so.

    With the batch per rank held, m grows with the ranks; with the global batch held it does not, and the groups of a
    rank fall: the article's sections 1.4 and 1.5 speak of one each.
    """
    experts = _experts(model)
    fmt = weights or weight_format(model.formats.experts)
    found = []
    for ep in eps:
        own = batch / ep if global_batch else batch
        sent_by = usual(machine.cluster, ep)
        both = [_cost(machine, model, experts, product, own, q_len, ep, fmt) for product in PRODUCTS]
        wires = [
            all_to_all(
                name,
                machine,
                exchange(sent_by),
                tokens=own * q_len,
                hidden=model.hidden,
                top_k=experts.top_k,
                experts=deal(experts.count, ep).total,
                ep=ep,
                precision=fmt.computes_in,
            )
            for name in DIRECTIONS
            if ep > 1
        ]
        found.append(
            Turn(
                ep=ep,
                batch=own,
                products=sum(float(cost.seconds) for cost in both),
                all_to_all=sum(float(cost.seconds) for cost in wires),
                exchange=sent_by if wires else "",
                origin=worst(*(cost.origin for cost in (*both, *wires))),
            )
        )
    return found


def _curve(
    machine: Machine,
    model: ModelSpec,
    experts: Experts,
    product: Product,
    batch: Array,
    q_len: int,
    ep: int,
    weights: Format | None,
) -> GroupCurve:
    fmt = weights or weight_format(model.formats.experts)
    load = expert_load(deal(experts.count, ep), tokens=ep * batch * q_len, top_k=experts.top_k, even=True)
    cost = _cost(machine, model, experts, product, batch, q_len, ep, fmt)
    seconds = np.broadcast_to(cost.seconds, batch.shape)
    peak = machine.cluster.gpu.peak(fmt.computes_in)
    return GroupCurve(
        gpu=machine.cluster.gpu.name,
        product=product,
        q_len=q_len,
        ep=ep,
        batch=batch,
        groups=np.broadcast_to(load.active, batch.shape),
        m=np.broadcast_to(load.rows_per_active, batch.shape),
        seconds=seconds,
        mfu=np.broadcast_to(cost.flops, batch.shape) / seconds / peak,
        origin=cost.origin,
        source=cost.source,
    )


def _cost(
    machine: Machine,
    model: ModelSpec,
    experts: Experts,
    product: Product,
    batch: Real,
    q_len: int,
    ep: int,
    fmt: Format,
) -> Cost:
    load = expert_load(deal(experts.count, ep), tokens=ep * batch * q_len, top_k=experts.top_k, even=True)
    up = product == "gate_up"
    n, k = (2 * experts.width, model.hidden) if up else (model.hidden, experts.width)
    return grouped_gemm(product, machine, load=load, n=n, k=k, weights=fmt, down=not up)


def _experts(model: ModelSpec) -> Experts:
    if model.experts is None:
        raise InputError(model.name, [Fault("model", "has no experts", "name a Mixture-of-Experts model")])
    return model.experts
