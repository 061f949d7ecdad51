"""An all-reduce of one message inside a scale-up domain: an engine's own kernel, beyond some size NCCL's.

One-shot: every rank reads all others' buffers. Two-shot: a reduce-scatter and an all-gather through the link; the
faster of the two runs. Engines hand messages that their buffers do not hold to NCCL, whose ring, or reduction in the
switch, starts later.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kernels.forms.network import columns, link_of
from moeplan.specs.gpu import Gpu

FASTEST: Final = -8.0  # the power that joins the two ways, nearly the faster of them
SHARP: Final = 4.0  # how abruptly NCCL takes over: a factor e of size changes its odds by that power of e


def parts(gpu: Gpu, _kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """Own kernel or NCCL; the columns are in SHAPE, the parameters in PARAMETERS."""
    column = columns(shape, SHAPE)
    ranks, size = column["ranks"], column["bytes"] * column["skew"]
    link = link_of(gpu)
    start = given["floor"] + given["rank"] * ranks
    shared = 2.0 * size * (ranks - 1.0) / ranks / link
    once = size * (ranks - 1.0) / (given["one_shot"] * link)
    twice = shared / given["two_shot"]
    switch = np.where(ranks >= IN_SWITCH, given["in_switch"], 1.0)
    ring = shared / (given["ring"] * switch)
    first = start + once
    second = start + given["second"] + twice
    own = blend(FASTEST, first, second)
    nccl = given["ring_floor"] + given["ring_rank"] * ranks + ring
    odds = 1.0 / (1.0 + (size / given["change"]) ** SHARP)
    seconds = own**odds * nccl ** (1.0 - odds)
    wire = np.where(odds < HALF, ring, np.where(first < second, once, twice))
    zero = np.zeros_like(seconds)
    return Parts(seconds=seconds, compute=zero, memory=zero, network=np.minimum(wire, seconds))


HALF: Final = 0.5
IN_SWITCH: Final = 8.0  # ranks from which NCCL reduces in the switch
SHAPE: Final = ("bytes", "ranks")
PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=3e-6, low=1e-6, high=5e-5, meaning="start and end"),
    Parameter(name="rank", unit="s", start=1e-7, low=1e-9, high=2e-6, meaning="start, per rank"),
    Parameter(name="one_shot", unit="", start=0.6, low=0.05, high=1.5, meaning="share of the link, one-shot"),
    Parameter(name="second", unit="s", start=3e-6, low=1e-8, high=5e-5, meaning="the second step of two-shot"),
    Parameter(name="two_shot", unit="", start=0.7, low=0.05, high=1.5, meaning="share of the link, two-shot"),
    Parameter(name="ring_floor", unit="s", start=2e-5, low=1e-6, high=3e-4, meaning="start of NCCL's"),
    Parameter(name="ring_rank", unit="s", start=2e-6, low=1e-8, high=1e-4, meaning="start of NCCL's, per rank"),
    Parameter(name="ring", unit="", start=0.75, low=0.05, high=1.2, meaning="share of the link, NCCL's"),
    Parameter(name="in_switch", unit="", start=1.2, low=0.8, high=2.0, meaning="gain by reducing in the switch"),
    Parameter(name="change", unit="B", start=2e7, low=1e5, high=1e9, meaning="message that NCCL takes over"),
)
FORM: Final = Form(
    name="all_reduce",
    shape=SHAPE,
    whole=("bytes",),
    roles=("wire",),
    parameters=PARAMETERS,
    parts=parts,
    along="ranks",
)
