"""Collectives of a group of GPUs: sums, gathers and scatters of one tensor, inside a scale-up domain or across nodes.

`bytes_` is the whole tensor, as every GPU has it before an all-reduce or a reduce-scatter, and after an all-gather.
"""

from __future__ import annotations

import numpy as np

from moeplan.kernels.origin import Origin
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine

MOVED = "max((n − 1)/n · bytes / link, (nodes − 1)/nodes · bytes / (GPUs of a node · NIC))"


def all_reduce(name: str, machine: Machine, *, bytes_: Real, ranks: Real) -> Cost:
    """Sum on every GPU: one-shot α1 + (n−1)·bytes/β1 or two-shot α2 + 2·(n−1)/n·bytes/β2, the shorter.

    Beyond a scale-up domain the two-shot one with its traffic through the NICs.
    """
    figures = machine.kernels.general
    link = _link(machine)
    inside = np.less_equal(ranks, machine.cluster.gpu.domain)
    wire_one = (ranks - 1) * bytes_ / (link * figures.all_reduce_one_shot_share)
    wire_two = 2.0 * _moved(machine, bytes_, ranks, figures.all_reduce_two_shot_share)
    one = np.where(inside, figures.all_reduce_one_shot + wire_one, np.inf)
    start_two = figures.all_reduce_two_shot + 2.0 * _hops(machine, ranks)
    two = start_two + wire_two
    return _collective(
        name,
        machine,
        bytes_=bytes_,
        ranks=ranks,
        start=np.where(one <= two, figures.all_reduce_one_shot, start_two),
        wire=np.where(one <= two, wire_one, wire_two),
        formula=f"min(α1 + (n − 1)·bytes / β1, α2 + 2·{MOVED})",
        source=figures.all_reduce_source,
    )


def all_gather(name: str, machine: Machine, *, bytes_: Real, ranks: Real) -> Cost:
    """Every GPU gets the parts of all: α + (n−1)/n·bytes/β."""
    return _ring(name, machine, bytes_=bytes_, ranks=ranks)


def reduce_scatter(name: str, machine: Machine, *, bytes_: Real, ranks: Real) -> Cost:
    """Every GPU gets the sum of one part: α + (n−1)/n·bytes/β."""
    return _ring(name, machine, bytes_=bytes_, ranks=ranks)


def _ring(name: str, machine: Machine, *, bytes_: Real, ranks: Real) -> Cost:
    figures = machine.kernels.general
    return _collective(
        name,
        machine,
        bytes_=bytes_,
        ranks=ranks,
        start=figures.all_reduce_two_shot + _hops(machine, ranks),
        wire=_moved(machine, bytes_, ranks, figures.all_reduce_two_shot_share),
        formula=f"α + {MOVED}",
        source=figures.all_reduce_source,
    )


def _moved(machine: Machine, bytes_: Real, ranks: Real, share: float) -> Real:
    """Seconds of a ring that passes every part on once, over the links of a node and the NICs between nodes at once."""
    cluster = machine.cluster
    group = np.minimum(cluster.gpu.domain, ranks)
    nodes = np.ceil(ranks / group)
    inside = (ranks - 1) / ranks * bytes_ / (_link(machine) * share)
    across = (nodes - 1) / nodes * bytes_ / (group * cluster.nic.effective_rate * cluster.nics_per_gpu)
    return np.maximum(np.where(np.greater(group, 1), inside, 0.0), across)


def _hops(machine: Machine, ranks: Real) -> Real:
    """What crossing nodes adds to the start."""
    return np.where(np.greater(ranks, machine.cluster.gpu.domain), machine.cluster.nic.latency, 0.0)


def _link(machine: Machine) -> float:
    gpu = machine.cluster.gpu
    return gpu.scale_up.bandwidth if gpu.scale_up is not None else np.inf


def _collective(
    name: str,
    machine: Machine,
    *,
    bytes_: Real,
    ranks: Real,
    start: Real,
    wire: Real,
    formula: str,
    source: str,
) -> Cost:
    """Nothing to do for one GPU."""
    several = np.greater(ranks, 1)
    start, wire = np.where(several, start, 0.0), np.where(several, wire, 0.0)
    return Cost(
        name=name,
        seconds=start + wire,
        parts={"network": wire, "floor": start},
        efficiencies={},
        origin=Origin.FITTED,
        source=source,
        formula=formula,
        terms={"n": (ranks, ""), "bytes": (bytes_, "B"), "link": (_link(machine), "B/s")},
        bytes_=bytes_ * 1.0,
        lane="network",
        sm_share=1.0,  # SMs move the data, and the engines run nothing beside it
        measurable=True,
    )
