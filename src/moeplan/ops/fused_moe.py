"""The routed experts as one fused kernel over all tokens that entered the group: sort, two products, sum."""

from __future__ import annotations

from moeplan.kernels.work import Work, grouped_gemm_work
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.ops.roofline import roofline
from moeplan.routing.slots import ExpertLoad
from moeplan.specs.precision import Format


def fused_moe(
    name: str,
    machine: Machine,
    *,
    load: ExpertLoad,
    tokens: Real,
    hidden: int,
    width: int,
    top_k: int,
    ep: Real,
    tp: int,
    weights: Format,
) -> Cost:
    """2·rows·3·hidden·width/tp FLOP over the active experts of the fullest rank, each of width/tp columns.

    tokens: of the whole group, for the kernel sorts them all. Routing, quantisation, activation and the sum over a
    token's experts are in it.

    Raises Unsupported when the GPU has no such precision.
    """
    gpu, part = machine.cluster.gpu, width // tp
    up = grouped_gemm_work(rows=load.rows, groups=load.active, n=2 * part, k=hidden, weights=weights)
    down = grouped_gemm_work(rows=load.rows, groups=load.active, n=hidden, k=part, weights=weights)
    work = Work(flops=up.flops + down.flops, bytes_=up.bytes_ + down.bytes_)
    return roofline(
        name,
        work,
        peak=gpu.peak(weights.computes_in),
        bandwidth=gpu.memory.bandwidth,
        efficiency=machine.kernels.fused_moe(
            work,
            tokens=tokens,
            rows=load.rows,
            active=load.active,
            experts=load.slots * ep,
            hidden=hidden,
            width=width,
            top_k=top_k,
            ep=ep,
            tp=tp,
            weights=weights,
        ),
        terms={
            "tokens": (tokens, "of the group"),
            "m": (load.rows_per_active, "rows per group"),
            "groups": (load.active, ""),
            "width": (part, ""),
            "hidden": (hidden, ""),
        },
        measurable=True,
    )
