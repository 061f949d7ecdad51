"""Dense and batched matrix products."""

from __future__ import annotations

from moeplan.kernels.work import gemm_work
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.ops.roofline import roofline
from moeplan.specs.precision import Format


def gemm(name: str, machine: Machine, *, m: Real, n: int, k: int, weights: Format, copies: int = 1) -> Cost:
    """(m, k) activations by (k, n) weights, `copies` times: 2·copies·m·n·k FLOP.

    Raises Unsupported when the GPU has no such precision.
    """
    gpu = machine.cluster.gpu
    return roofline(
        name,
        gemm_work(m=m, n=n, k=k, weights=weights, copies=copies),
        peak=gpu.peak(weights.computes_in),
        bandwidth=gpu.memory.bandwidth,
        efficiency=machine.kernels.gemm(m=m, n=n, k=k, weights=weights, copies=copies),
        terms={"m": (m, "rows"), "n": (n, ""), "k": (k, ""), "copies": (copies, "")},
        measurable=True,
    )
