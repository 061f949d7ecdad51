"""Decode of multi-head and grouped-query attention: a few new tokens per request over a cache of keys and values.

A block of threads takes the query heads that share a KV head, or as many rows of them as its tile holds, and walks
along the keys; where blocks are few, the keys are split into pieces that a second kernel joins. Compute is two terms,
FLOP at the tensor peak and a fixed time per step along the keys, so that it carries over between chips.

A cache that stays in the last-level cache between two calls of a benchmark is not read from memory: `hot`. No engine
decodes so, every layer has its own cache: a Gpu with `l2=None` gives the time of a cold one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu

COLUMNS: Final = ("batch", "heads", "kv_heads", "head_dim", "q_len", "context")
TILES: Final = (64, 128, 640)  # rows of a block's tile, ascending, and the fewest keys that are split
STEP: Final = 128  # keys per step at head_dim <= 128; half of them beyond, so that a tile fits into shared memory
SHARP: Final = 6.0  # how suddenly a cache that outgrows the last-level cache turns cold
OVERLAP: Final = 4.0
IO_BYTES: Final = 4.0  # of a query's element and its output's


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """Time = floor + request·batch + split + block + (memory⁴ + compute⁴)^¼, compute = FLOP/peak + steps and blocks.

    batch, heads, kv_heads, head_dim, q_len, context (cached tokens that a query sees); see PARAMETERS.
    """
    batch, heads, kv_heads, dim, q_len, context = (np.asarray(shape[name], dtype=float) for name in COLUMNS)
    *tiles, split_from = kernel.tiles or TILES
    rows = heads / kv_heads * q_len
    tile = _smallest(tiles, rows)
    stacks = np.ceil(rows / tile)  # tiles that read the same keys
    blocks = batch * kv_heads * stacks
    narrow = np.where(dim > STEP, 0.5, 1.0)
    steps = np.maximum(context / (STEP * narrow), 1.0)
    pieces = np.clip(given["waves"] * gpu.units / blocks, 1.0, steps)
    pieces = np.where(context >= split_from * narrow, pieces, 1.0)
    waves = np.where(pieces > 1.0, np.maximum(blocks * pieces / gpu.units, 1.0), _waves(blocks / gpu.units))

    cached = 2.0 * batch * context * kv_heads * dim
    read = cached * kernel.formats["cache"].bytes_per_element
    bandwidth = given["bandwidth"] * gpu.memory.bandwidth
    ends = IO_BYTES * batch * heads * q_len * dim
    memory = (read * cold_share(read, given["hot"] * (gpu.l2 or 0.0)) + ends) / bandwidth

    block = given["block"] * (0.5 + dim / 256) * (0.25 + 0.75 * tile / 64)  # start and end
    peak = given["tensor"] * gpu.peak(kernel.formats["core"].computes_in)
    tensor = 2.0 * cached * stacks * tile / peak
    compute = tensor + waves * (steps / pieces - 1.0) * given["step"] + (waves - 1.0) * block
    joined = np.where(pieces > 1.0, given["split"] + given["join"] * pieces, 0.0)
    seconds = given["floor"] + given["request"] * batch + joined + block + blend(OVERLAP, memory, compute)
    return Parts(seconds=seconds, compute=compute, memory=memory)


def _smallest(tiles: list[int], rows: Real) -> Real:
    """The smallest tile that holds all rows, or the largest there is."""
    found: Real = np.full_like(rows, float(tiles[-1]))
    for tile in reversed(tiles):
        found = np.where(rows <= tile, float(tile), found)
    return found


def _waves(per_unit: Real) -> Real:
    """Rounds of blocks: whole ones while few, then the last is half full on average."""
    return np.maximum(np.where(per_unit <= 8.0, np.ceil(per_unit - 1e-9), per_unit + 0.5), 1.0)


def cold_share(read: Real, hot: float) -> Real:
    """Share of the bytes that come from memory: half of them where they are as many as stay in the last-level cache."""
    return 1.0 / (1.0 + (hot / read) ** SHARP)


PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=6e-6, low=1e-6, high=4e-5, meaning="start and end of the kernel"),
    Parameter(name="bandwidth", unit="", start=0.9, low=0.3, high=1.0, meaning="share of memory bandwidth reached"),
    Parameter(name="tensor", unit="", start=0.8, low=0.3, high=0.95, meaning="share of the tensor peak reached"),
    Parameter(name="step", unit="s", start=1e-6, low=1e-8, high=1e-5, meaning="of one block along 128 keys, 64 wide"),
    Parameter(name="split", unit="s", start=2e-6, low=1e-8, high=5e-5, meaning="the kernel that joins pieces"),
    Parameter(name="join", unit="s", start=5e-8, low=1e-9, high=1e-6, meaning="there, per piece of a request"),
    Parameter(name="block", unit="s", start=3e-6, low=1e-8, high=2e-5, meaning="a block of 64 rows, head_dim 128"),
    Parameter(name="request", unit="s", start=5e-9, low=1e-11, high=1e-7, meaning="per request: lengths, page table"),
    Parameter(name="waves", unit="", start=2.0, low=0.5, high=12.0, meaning="blocks per SM that keys are split into"),
    Parameter(name="hot", unit="", start=0.7, low=0.2, high=2.0, meaning="share of L2 in which a cache stays"),
)
FORM: Final = Form(
    name="gqa_decode", shape=COLUMNS, whole=COLUMNS, roles=("core", "cache"), parameters=PARAMETERS, parts=parts
)
