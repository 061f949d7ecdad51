"""Collectives of a group of GPUs: sums, gathers and scatters of one tensor, inside a scale-up domain or across nodes.

`bytes_` is the whole tensor, as every GPU has it before an all-reduce or a reduce-scatter, and after an all-gather.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from moeplan.kernels.origin import Origin, worst
from moeplan.kernels.times import Timed
from moeplan.kernels.wire import all_reduce as timed_all_reduce
from moeplan.kernels.wire import collective as timed_collective
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine

Kind = Literal["all-reduce", "all-gather", "reduce-scatter"]
TWICE = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0}  # how often a tensor goes around


def all_reduce(name: str, machine: Machine, *, bytes_: Real, ranks: Real) -> Cost:
    """Sum on every GPU, by the engine's kernel."""
    return _collective(name, machine, "all-reduce", bytes_=bytes_, ranks=ranks)


def all_gather(name: str, machine: Machine, *, bytes_: Real, ranks: Real) -> Cost:
    """Every GPU gets the parts of all, by NCCL."""
    return _collective(name, machine, "all-gather", bytes_=bytes_, ranks=ranks)


def reduce_scatter(name: str, machine: Machine, *, bytes_: Real, ranks: Real) -> Cost:
    """Every GPU gets the sum of one part, by NCCL."""
    return _collective(name, machine, "reduce-scatter", bytes_=bytes_, ranks=ranks)


class _Inside(Struct, frozen=True, kw_only=True, eq=False):
    """Start and wire inside one scale-up domain, s; timed: where they come from, None for the general figures."""

    start: Real
    wire: Real
    timed: Timed | None


def _collective(name: str, machine: Machine, kind: Kind, *, bytes_: Real, ranks: Real) -> Cost:
    """A fitted form inside a scale-up domain (docs/wire.md); beyond it, nodes as a ring over their NICs at once.

    Across nodes: start + max(inside of one domain, (nodes − 1)/nodes·bytes / (GPUs of a node · NIC)), twice for a sum.
    Nothing to do for one GPU.
    """
    domain = machine.cluster.gpu.domain
    inside = _inside(machine, kind, bytes_, np.minimum(ranks, domain))
    across = np.greater(ranks, domain)
    start = inside.start + np.where(across, TWICE[kind] * _hop(machine, ranks), 0.0)
    wire = np.maximum(inside.wire, np.where(across, TWICE[kind] * _through_nics(machine, bytes_, ranks), 0.0))
    several = np.greater(ranks, 1)
    start, wire = np.where(several, start, 0.0), np.where(several, wire, 0.0)
    figures, timed = machine.kernels.general, inside.timed
    source = figures.all_reduce_source if timed is None else timed.source
    origin = Origin.ASSUMED if timed is None else timed.origin
    if np.any(across):
        origin, source = worst(origin, Origin.ASSUMED), f"{source}; across nodes a ring over the NICs, not measured"
    return Cost(
        name=name,
        seconds=start + wire,
        parts={"network": wire, "floor": start},
        efficiencies={},
        origin=origin,
        source=source,
        formula="start + max(wire of a domain, (nodes − 1)/nodes · bytes / (GPUs of a node · NIC))",
        terms={
            "n": (ranks, ""),
            "bytes": (bytes_, "B"),
            "start": (start, "s"),
            "wire": (wire, "s"),
            "link": (_link(machine), "B/s"),
        },
        bytes_=bytes_ * 1.0,
        lane="network",
        sm_share=1.0,  # SMs move the data, and the engines run nothing beside it
        measurable=True,
        error=None if timed is None or np.any(across) else timed.error,
    )


def _inside(machine: Machine, kind: Kind, bytes_: Real, ranks: Real) -> _Inside:
    """What the ranks of one domain take; several sizes, on an axis of their own, are asked one by one."""
    if machine.cluster.gpu.scale_up is None or machine.kernels.sources.article:
        return _by_rates(machine, kind, bytes_, ranks)
    sizes = np.unique(ranks)
    found = [(size, _asked(machine, kind, bytes_, float(size))) for size in sizes if size > 1]
    if not found:
        return _Inside(start=0.0 * ranks, wire=0.0 * ranks, timed=None)
    first = found[0][1]
    if first is None:
        return _by_rates(machine, kind, bytes_, ranks)
    start, wire = first.floor, first.network
    for size, timed in found[1:]:
        assert timed is not None, "the same sources answer for every size"
        here = np.equal(ranks, size)
        start, wire = np.where(here, timed.floor, start), np.where(here, timed.network, wire)
    return _Inside(start=start, wire=wire, timed=first)


def _asked(machine: Machine, kind: Kind, bytes_: Real, ranks: float) -> Timed | None:
    if kind == "all-reduce":
        return timed_all_reduce(machine.kernels, bytes_=bytes_, ranks=ranks)
    return timed_collective(machine.kernels, kind, bytes_=bytes_, ranks=ranks)


def _by_rates(machine: Machine, kind: Kind, bytes_: Real, ranks: Real) -> _Inside:
    """α + (n − 1)/n·bytes/β, twice for a sum, or the one-shot sum α1 + (n − 1)·bytes/β1 where that is shorter."""
    figures, link = machine.kernels.general, _link(machine)
    start: Real = figures.all_reduce_two_shot
    wire = TWICE[kind] * (ranks - 1) / ranks * bytes_ / (link * figures.all_reduce_two_shot_share)
    if kind == "all-reduce":
        one = (ranks - 1) * bytes_ / (link * figures.all_reduce_one_shot_share)
        shorter = figures.all_reduce_one_shot + one < start + wire
        start, wire = np.where(shorter, figures.all_reduce_one_shot, start), np.where(shorter, one, wire)
    return _Inside(start=start, wire=wire, timed=None)


def _through_nics(machine: Machine, bytes_: Real, ranks: Real) -> Real:
    cluster = machine.cluster
    group = np.minimum(cluster.gpu.domain, ranks)
    nodes = np.ceil(ranks / group)
    return (nodes - 1) / nodes * bytes_ / (group * cluster.nic.effective_rate * cluster.nics_per_gpu)


def _hop(machine: Machine, ranks: Real) -> Real:
    """What crossing nodes adds to the start: a latency per doubling of nodes."""
    nodes = np.maximum(np.ceil(ranks / machine.cluster.gpu.domain), 1.0)
    return machine.cluster.nic.latency * np.log2(nodes)


def _link(machine: Machine) -> float:
    gpu = machine.cluster.gpu
    return gpu.scale_up.bandwidth if gpu.scale_up is not None else np.inf
