"""Absorbed MLA decode: all query heads of a request over one latent cache.

Compute is two terms, FLOP at the tensor peak and a fixed time per tile of 64 x 64 scores that no tensor core shortens
(softmax, barriers): only so it carries over between chips whose tensor peaks differ sevenfold.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.specs.gpu import Gpu

KEY, VALUE = 576, 512  # width of a cached latent with its RoPE part, and without
TILE: Final = 64
PEAK_SHARE: Final = 0.95


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """floor + split + rows·blocks + (memory⁴ + compute⁴)^¼; batch, heads, q_len, context; see PARAMETERS."""
    batch, context = np.asarray(shape["batch"], dtype=float), np.asarray(shape["context"], dtype=float)
    tiles = np.ceil(np.asarray(shape["heads"]) * np.asarray(shape["q_len"]) / TILE)
    cached = batch * context
    blocks = batch * tiles
    memory = cached * KEY * kernel.formats["cache"].bytes_per_element / (given["bandwidth"] * gpu.memory.bandwidth)
    flops = 2.0 * cached * tiles * TILE * (KEY + VALUE)
    peak = PEAK_SHARE * gpu.peak(kernel.formats["core"].computes_in)
    compute = flops / peak + cached * tiles / TILE * given["tile_time"] / gpu.units
    split = np.where(blocks < gpu.units, given["split"], 0.0)
    seconds = given["floor"] + split + given["block"] * blocks / gpu.units + blend(4.0, memory, compute)
    return Parts(seconds=seconds, compute=compute, memory=memory)


PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=5e-6, low=1e-6, high=4e-5, meaning="start and end of the kernel"),
    Parameter(name="bandwidth", unit="", start=0.9, low=0.3, high=1.0, meaning="share of memory bandwidth reached"),
    Parameter(name="tile_time", unit="s", start=6e-7, low=1e-8, high=5e-6, meaning="per 64 x 64 scores on one SM"),
    Parameter(name="split", unit="s", start=5e-6, low=1e-8, high=5e-5, meaning="joining keys split over idle SMs"),
    Parameter(name="block", unit="s", start=1e-6, low=1e-9, high=2e-5, meaning="per request and 64 query rows"),
)
FORM: Final = Form(
    name="mla_decode",
    shape=("batch", "heads", "q_len", "context"),
    whole=("batch", "heads", "q_len", "context"),
    roles=("core", "cache"),
    parameters=PARAMETERS,
    parts=parts,
)
