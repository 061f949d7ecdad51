"""Small memory-bound kernels: norms, rotary embedding, quantisation, activation, top-k, gather."""

from __future__ import annotations

from moeplan.kernels.origin import Origin
from moeplan.kernels.work import Work
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.ops.roofline import roofline


def elementwise(name: str, machine: Machine, *, rows: Real, bytes_per_row: float) -> Cost:
    """A kernel that only moves memory: floor + rows·bytes_per_row / (bandwidth·e_m)."""
    gpu = machine.cluster.gpu
    return roofline(
        name,
        Work(flops=0.0 * rows, bytes_=rows * bytes_per_row),
        peak=gpu.peak("bf16"),
        bandwidth=gpu.memory.bandwidth,
        efficiency=machine.kernels.elementwise(),
        terms={"rows": (rows, "rows")},
    )


def launch_gaps(machine: Machine, kernels: int, *, rows: Real) -> Cost:
    """The gaps between `kernels` kernels of a replayed CUDA graph; shaped like `rows`."""
    figures = machine.kernels.general
    seconds = kernels * figures.launch_gap + 0.0 * rows
    return Cost(
        name="launch gaps",
        seconds=seconds,
        parts={"floor": seconds},
        efficiencies={},
        origin=Origin.FITTED,
        source=figures.launch_gap_source,
        formula="kernels · gap",
        terms={"kernels": (kernels, ""), "gap": (figures.launch_gap, "s")},
    )
