"""NCCL's all-gather, reduce-scatter, all-reduce and all-to-all inside a scale-up domain.

Small messages go by a protocol that flags every word (LL), which starts soon and is slow; large ones by one that fills
buffers first (Simple), which costs a start per step. NCCL changes over at a size
per rank that it has been tuned to, not at the fastest. The wire's rate is the link's, or that of the SMs which copy the
whole message, also the part that stays.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kernels.forms.network import columns, link_of
from moeplan.specs.gpu import Gpu

SHARP: Final = 4.0  # how abruptly the protocol changes over: a factor e of size changes its odds by that power of e
LONGEST: Final = 4.0


def parts(gpu: Gpu, _kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """The time of the protocol that NCCL takes; the columns are in SHAPE, the parameters in PARAMETERS."""
    column = columns(shape, SHAPE)
    ranks, size, times = column["ranks"], column["bytes"] * column["skew"], column["times"]
    link, steps = link_of(gpu), times * (ranks - 1.0)
    crossing = times * size * (ranks - 1.0) / ranks
    peers = np.where(
        column["direct"] > 0.0, 0.0, 1.0
    )  # a ring takes a step per rank, an all-to-all goes to all at once
    start = given["floor"] + given["step"] * steps * peers
    lone = np.where(column["direct"] > 0.0, size / ranks, crossing)
    flagged = start + lone / (given["flagged"] * link)
    wire = blend(LONGEST, crossing / (given["link"] * link), times * size / (given["through"] * link))
    filled = start + given["filling"] * (steps * peers + (1.0 - peers)) + wire
    odds = 1.0 / (1.0 + (size / ranks / given["change"]) ** SHARP)
    seconds = flagged**odds * filled ** (1.0 - odds)
    zero = np.zeros_like(seconds)
    return Parts(seconds=seconds, compute=zero, memory=zero, network=np.minimum(wire, seconds))


# times: passes of the message, 2 for an all-reduce. direct: every rank sends to every other at once (all-to-all).
SHAPE: Final = ("bytes", "ranks", "times", "direct")
PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=5e-6, low=1e-6, high=5e-5, meaning="start and end"),
    Parameter(name="step", unit="s", start=1e-6, low=1e-8, high=1e-5, meaning="latency of a step"),
    Parameter(name="flagged", unit="", start=0.2, low=0.003, high=2.0, meaning="share of the link, LL"),
    Parameter(name="change", unit="B", start=5e5, low=2e3, high=2e7, meaning="bytes per rank where Simple takes over"),
    Parameter(name="filling", unit="s", start=1e-5, low=1e-7, high=1e-4, meaning="start of Simple, per step"),
    Parameter(name="link", unit="", start=0.75, low=0.1, high=1.3, meaning="share of the link, Simple"),
    Parameter(name="through", unit="", start=1.0, low=0.1, high=3.0, meaning="of the link's rate, what SMs copy"),
)
FORM: Final = Form(
    name="nccl",
    shape=SHAPE,
    whole=("bytes",),
    roles=("wire",),
    parameters=PARAMETERS,
    parts=parts,
    along="ranks",
)
