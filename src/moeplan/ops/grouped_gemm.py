"""The grouped product of the routed experts: one weight matrix per active group."""

from __future__ import annotations

from moeplan.kernels.work import grouped_gemm_work
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.ops.roofline import roofline
from moeplan.routing.slots import ExpertLoad
from moeplan.specs.precision import Format


def grouped_gemm(
    name: str, machine: Machine, *, load: ExpertLoad, n: int, k: int, weights: Format, down: bool, exact: bool = False
) -> Cost:
    """Rows of the fullest rank over its active experts: 2·rows·n·k FLOP, active·n·k weights read.

    down: the second product, whose published factors differ. exact: every group has just the mean of rows.

    Raises Unsupported when the GPU has no such precision.
    """
    gpu, kernels = machine.cluster.gpu, machine.kernels
    m = load.rows_per_active
    return roofline(
        name,
        grouped_gemm_work(rows=load.rows, groups=load.active, n=n, k=k, weights=weights),
        peak=gpu.peak(weights.computes_in),
        bandwidth=gpu.memory.bandwidth,
        efficiency=kernels.grouped_gemm(
            rows_per_group=m,
            groups=load.active,
            slots=load.slots,
            n=n,
            k=k,
            weights=weights,
            down=down,
            exact=exact,
        ),
        terms={"m": (m, "rows per group"), "groups": (load.active, ""), "n": (n, ""), "k": (k, "")},
        measurable=True,
    )
