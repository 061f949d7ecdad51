"""Batched GEMM: `copies` independent products, as absorbed MLA has one per head before and after its core."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameters, Parts, Shape
from moeplan.kernels.forms.gemm import (
    ACT,
    BANDWIDTH,
    FIXED,
    FLOOR,
    LATENCY,
    LOAD,
    OUTPUT_BYTES,
    STORE,
    WARM,
    joined,
    tile_loops,
)
from moeplan.specs.gpu import Gpu


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """The time of a GEMM with as many tiles and bytes per copy; columns copies, m, n, k; k is never split."""
    weights = kernel.formats["weights"]
    copies, m, n, k = (np.asarray(shape[name], dtype=float) for name in ("copies", "m", "n", "k"))
    moved = copies * (n * k * weights.bytes_per_element + m * k * weights.activation_bytes + m * n * OUTPUT_BYTES)
    loops, _ = tile_loops(gpu, weights, m=m, n=n, k=k, copies=copies, splits=(1,), given=given)
    flops, inputs = 2.0 * copies * m * n * k, copies * m * k * (1.0 - np.asarray(shape.get("converted", 0.0)))
    return joined(gpu, weights, flops=flops, moved=moved, inputs=inputs, loops=loops, given=given)


FORM: Final = Form(
    name="batched_gemm",
    shape=("copies", "m", "n", "k"),
    whole=("copies", "m", "n", "k"),
    roles=("weights",),
    parameters=(FLOOR, BANDWIDTH, LATENCY, FIXED, LOAD, STORE, ACT, WARM),
    parts=parts,
)
