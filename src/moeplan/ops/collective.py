"""Collectives inside a scale-up domain."""

from __future__ import annotations

import numpy as np

from moeplan.errors import Fault, Unsupported
from moeplan.kernels.origin import Origin
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine


def all_reduce(name: str, machine: Machine, *, bytes_: Real, ranks: int) -> Cost:
    """Sum `bytes_` over `ranks` GPUs: one-shot α1 + (n−1)·bytes/β1 or two-shot α2 + 2·(n−1)/n·bytes/β2, the shorter.

    Raises Unsupported when the GPUs have no scale-up link that joins so many.
    """
    gpu, figures = machine.cluster.gpu, machine.kernels.general
    if gpu.scale_up is None or ranks > gpu.domain:
        fix = f"use at most {gpu.domain} ranks"
        raise Unsupported(gpu.name, [Fault("tp", f"no scale-up link joins {ranks} of {gpu.name}", fix)])
    link = gpu.scale_up.bandwidth
    wire_one = (ranks - 1) * bytes_ / (link * figures.all_reduce_one_shot_share)
    wire_two = 2 * (ranks - 1) / ranks * bytes_ / (link * figures.all_reduce_two_shot_share)
    one, two = figures.all_reduce_one_shot + wire_one, figures.all_reduce_two_shot + wire_two
    start = np.where(one <= two, figures.all_reduce_one_shot, figures.all_reduce_two_shot)
    wire = np.where(one <= two, wire_one, wire_two)
    return Cost(
        name=name,
        seconds=np.minimum(one, two),
        parts={"network": wire, "floor": start},
        efficiencies={},
        origin=Origin.FITTED,
        source=figures.all_reduce_source,
        formula="min(α1 + (n − 1)·bytes / β1, α2 + 2·(n − 1)/n·bytes / β2)",
        terms={"n": (ranks, ""), "bytes": (bytes_, "B"), "link": (link, "B/s")},
        bytes_=bytes_ * 1.0,
        lane="network",
        measurable=True,
    )
