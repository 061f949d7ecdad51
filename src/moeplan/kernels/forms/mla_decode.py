"""Absorbed MLA decode: all query heads of a request over one latent cache.

A CTA (thread block) holds a tile of query rows, heads x new tokens, of one request and walks over the keys in steps;
while SMs are idle the keys are split between several CTAs and their partial sums joined afterwards. Compute is two
terms, FLOP at the tensor peak and vector operations (softmax) that no tensor core shortens: only so it carries over
between chips whose tensor peaks differ sevenfold, FlashMLA takes 5.0 such operations per score on H800 and on H20.

The benchmarks repeat one call, so that a small cache is still in the GPU's second-level cache (L2) from the run
before; a GPU whose `l2` is None reads all of it from memory, as a model of many layers does.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu

KEY, VALUE = 576, 512  # width of a cached latent with its RoPE part, and without
TILE: Final = 64  # keys that `fetch` is stated for, rows of an ordinary tile
TILES: Final = (64, 64)  # of a kernel that names none: keys of a step, query rows of a CTA
PEAK_SHARE: Final = 0.95
ROW_BYTES: Final = 2.0 * (KEY + VALUE)  # a query read and an output written, bf16
PARTIAL_BYTES: Final = 8.0 * VALUE  # a partial sum written and read again, fp32
L2_SHARE, L2_TIME = 0.8, 0.5  # of L2 that keeps the cache until the next run; time of such a byte to one of memory
REREAD: Final = 0.5  # of the cache that a small tile beside the first finds no longer in L2
SHORT: Final = 1024  # keys of a CTA up to which a kernel with two tiles takes the smaller one
EDGE: Final = 1e-9  # rounding of a division that comes out whole


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """Sum floor + split·min(1, s-1) + join·(s-1) + block·waves + rows' traffic + (memory⁴ + compute⁴ + fetch⁴)^¼.

    s CTAs share the keys of one tile. batch, heads, q_len (new tokens), context (tokens that a query sees); PARAMETERS.
    kernel.tiles: the keys of a step, then the query rows of a CTA; of two sizes the kernel takes the first as TRT-LLM
    does, see _rows_of_tile.
    """
    batch, context = np.asarray(shape["batch"], dtype=float), np.asarray(shape["context"], dtype=float)
    queries = np.asarray(shape["heads"], dtype=float) * np.asarray(shape["q_len"])
    step, *sizes = kernel.tiles or TILES
    rows = _rows_of_tile(sizes, batch, queries, context, gpu.units)
    tiles = np.ceil(queries / rows)
    splits = np.clip(gpu.units / (batch * tiles), 1.0, np.maximum(1.0, context / given["least"]))
    filled = batch * tiles * splits / gpu.units
    waves = filled + given["tail"] * (np.ceil(filled - EDGE) - filled)

    bandwidth = given["bandwidth"] * gpu.memory.bandwidth
    cached = batch * context * KEY * kernel.formats["cache"].bytes_per_element
    read = cached * np.where(rows < TILE, 1.0 + REREAD * (tiles - 1.0), 1.0)
    memory = read * (L2_TIME + (1.0 - L2_TIME) * _share_of_memory(cached, gpu)) / bandwidth
    partial = PARTIAL_BYTES * splits * np.minimum(1.0, splits - 1.0)
    touched = given["passes"] * batch * queries * (ROW_BYTES + partial) / bandwidth
    fetch = batch * context / TILE * given["fetch"] / gpu.units

    peak = PEAK_SHARE * gpu.peak(kernel.formats["core"].computes_in)
    of_score = (2.0 * (KEY + VALUE) / peak + given["softmax"] / gpu.vector_rate) * gpu.units
    compute = of_score * rows * step * np.ceil(context / step) / splits * np.maximum(1.0, waves)

    start = given["floor"] + given["block"] * waves
    join = given["split"] * np.minimum(1.0, splits - 1.0) + given["join"] * (splits - 1.0)
    seconds = start + join + touched + blend(4.0, memory, compute, fetch)
    return Parts(seconds=seconds, compute=compute, memory=memory + touched)


def _rows_of_tile(sizes: list[int], batch: Real, queries: Real, context: Real, units: int) -> Real:
    """Query rows of a CTA: of two sizes the smaller for up to two tiles, or where all CTAs run at once on few keys."""
    small, large = float(sizes[0]), float(sizes[-1])
    blocks = batch * np.ceil(queries / small)
    keys = context / np.maximum(1.0, np.floor(units / blocks))
    chosen: Real = np.where((queries <= 2 * small) | ((blocks <= units) & (keys <= SHORT)), small, large)
    return chosen


def _share_of_memory(cached: Real, gpu: Gpu) -> Real:
    """Share of the cache that the run before left no more in L2: none of a small one, all of one larger than L2."""
    kept = (L2_SHARE * (gpu.l2 or 0.0)) ** 8
    share: Real = cached**8 / (cached**8 + kept)
    return share


PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=5e-6, low=1e-6, high=4e-5, meaning="start and end of the kernel"),
    Parameter(name="bandwidth", unit="", start=0.85, low=0.3, high=0.92, meaning="share of memory bandwidth reached"),
    Parameter(name="softmax", unit="", start=4.0, low=0.05, high=400.0, meaning="vector operations per score"),
    Parameter(name="fetch", unit="s", start=1e-6, low=1e-8, high=4e-5, meaning="64 keys through L2 to one of all SMs"),
    Parameter(name="least", unit="", start=256, low=64, high=1e6, meaning="fewest keys that a split leaves a CTA"),
    Parameter(name="split", unit="s", start=3e-6, low=1e-8, high=5e-5, meaning="joining split keys at all"),
    Parameter(name="join", unit="s", start=5e-8, low=1e-10, high=1e-6, meaning="joining, per CTA of one tile"),
    Parameter(name="block", unit="s", start=1e-6, low=1e-9, high=1e-4, meaning="start and end of a wave of CTAs"),
    Parameter(name="tail", unit="", start=0.1, low=0, high=1, meaning="of a wave's idle SMs that count as busy"),
    Parameter(name="passes", unit="", start=1.5, low=0.1, high=30, meaning="over queries, outputs and partial sums"),
)
FORM: Final = Form(
    name="mla_decode",
    shape=("batch", "heads", "q_len", "context"),
    whole=("batch", "heads", "q_len", "context"),
    roles=("core", "cache"),
    parameters=PARAMETERS,
    parts=parts,
)
