"""Prefill of multi-head and grouped-query attention: many new tokens per request, each sees those before it.

A block of threads takes a tile of query rows along the keys it sees. A step of 128 x 128 scores is the root of two
squares, FLOP at the tensor peak and softmax, half hidden behind them, whose exponentials run at the chip's rate: only
so it carries over between chips whose tensor peaks or exponentials differ. Moving queries, keys, values and outputs
adds to it, by what an SM can move rather than memory: kernels beside the attention (cache writes, quantisation) do it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kernels.forms.gqa_decode import COLUMNS, IO_BYTES, cold_share
from moeplan.specs.gpu import Gpu

TILES: Final = (128, 128)  # rows of a block's tile, and query heads of a KV head that share it at most
KEYS: Final = 128
GRAIN: Final = 64  # rows that a half-filled tile is worked on in
PEAK_SHARE: Final = 0.95
BANDWIDTH_SHARE: Final = 0.95
OVERLAP: Final = 2.0
LONGEST: Final = 8.0  # all blocks over all SMs against the longest block


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """Time = floor + request·batch + memory + max(blocks over SMs, longest); a block is start + steps·√(FLOP² + exp²).

    batch, heads, kv_heads, head_dim, q_len (new tokens of a request), context (those and its prefix); see PARAMETERS.
    """
    batch, heads, kv_heads, dim, q_len, context = (np.asarray(shape[name], dtype=float) for name in COLUMNS)
    tile, most_shared = kernel.tiles or TILES
    shared = np.minimum(heads / kv_heads, most_shared)
    rows = q_len * shared
    blocks = batch * heads / shared * np.ceil(rows / tile)
    filled = np.minimum(np.ceil(rows / GRAIN) * GRAIN / tile, 1.0)
    longest = np.ceil(context / KEYS)
    steps = np.clip((context - q_len + (q_len + np.maximum(tile / shared, KEYS)) / 2.0) / KEYS, 1.0, longest)

    scores = tile * KEYS
    tensor = 4.0 * scores * dim / (PEAK_SHARE * gpu.peak(kernel.formats["core"].computes_in) / gpu.units)
    softmax = scores / (gpu.vector_rate / gpu.units) + given["step"] * tile / 128 * (0.5 + dim / 256)
    step = filled * blend(OVERLAP, tensor, softmax)
    spread = blocks / gpu.units * (steps * step + given["block"])
    compute = blend(LONGEST, spread, given["lone"] * (longest * step + given["block"]))

    cached = 2.0 * batch * context * kv_heads * dim * kernel.formats["cache"].bytes_per_element
    ends = IO_BYTES * batch * heads * q_len * dim
    moved = ends + given["passes"] * cached
    cold = cold_share(cached + ends, given["hot"] * (gpu.l2 or 0.0))
    memory = np.maximum(
        moved * cold / (BANDWIDTH_SHARE * gpu.memory.bandwidth), moved / 1024.0 * given["move"] / gpu.units
    )
    seconds = given["floor"] + given["request"] * batch + memory + compute
    return Parts(seconds=seconds, compute=compute, memory=memory)


PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=6e-6, low=1e-6, high=4e-5, meaning="start and end of the kernel"),
    Parameter(name="move", unit="s", start=5e-8, low=1e-9, high=1e-6, meaning="of 1 KiB through one SM"),
    Parameter(
        name="step", unit="s", start=1e-6, low=1e-8, high=1e-5, meaning="of 128 x 128 scores, beside exponentials"
    ),
    Parameter(name="block", unit="s", start=2e-6, low=1e-8, high=2e-5, meaning="start and end of a block of threads"),
    Parameter(name="request", unit="s", start=5e-9, low=1e-11, high=1e-6, meaning="per request: lengths, page table"),
    Parameter(name="passes", unit="", start=1.0, low=0.5, high=40.0, meaning="times that keys and values are moved"),
    Parameter(name="hot", unit="", start=0.3, low=0.01, high=2.0, meaning="share of L2 in which tensors stay"),
    Parameter(name="lone", unit="", start=1.0, low=0.5, high=2.0, meaning="time of a block that runs alone"),
)
FORM: Final = Form(
    name="gqa_prefill", shape=COLUMNS, whole=COLUMNS, roles=("core", "cache"), parameters=PARAMETERS, parts=parts
)
