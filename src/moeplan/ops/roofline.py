"""The roofline: arithmetic or memory traffic, whichever takes longer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.work import Work
from moeplan.kinds import Real
from moeplan.ops.cost import Cost

ROOFLINE = "floor + max(FLOP · padding / (peak · e_c), bytes / (bandwidth · e_m))"


def roofline(
    name: str,
    work: Work,
    *,
    peak: float,
    bandwidth: float,
    efficiency: Efficiency,
    terms: Mapping[str, tuple[Real, str]] | None = None,
    measurable: bool = False,
) -> Cost:
    """Time of a kernel limited by arithmetic or by memory, whichever is longer (throughput article, «algorithm model»).

    seconds = floor + max(flops·padding / (peak·e_c), bytes / (bandwidth·e_m)); peak in FLOP/s, bandwidth in bytes/s.
    """
    compute = work.flops * (efficiency.padding / (peak * efficiency.compute))
    memory = work.bytes_ / (bandwidth * efficiency.memory)
    bound = np.maximum(compute, memory)
    shown = dict(terms or {}) | {
        "FLOP": (work.flops, "FLOP"),
        "padding": (efficiency.padding, "x"),
        "bytes": (work.bytes_, "B"),
        "peak": (peak, "FLOP/s"),
        "bandwidth": (bandwidth, "B/s"),
        "e_c": (efficiency.compute, ""),
        "e_m": (efficiency.memory, ""),
        "floor": (efficiency.floor, "s"),
    }
    return Cost(
        name=name,
        seconds=efficiency.floor + bound,
        parts={"compute": compute, "memory": memory, "floor": efficiency.floor},
        efficiencies={"compute": efficiency.compute, "memory": efficiency.memory},
        origin=efficiency.origin,
        source=efficiency.source,
        formula=ROOFLINE,
        terms=shown,
        flops=work.flops,
        bytes_=work.bytes_,
        padding=efficiency.padding,
        error=efficiency.error,
        measurable=measurable,
    )
