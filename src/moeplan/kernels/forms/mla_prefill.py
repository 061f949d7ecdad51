"""MLA prefill: causal attention of new tokens over themselves and their prefix.

A CTA (thread block) holds a tile of query rows and walks over the keys before its last row. Most kernels expand the
latents to heads with their own keys and values (192 and 128 wide); SGLang's on Hopper stays absorbed, as decode does:
all heads of a token are rows over one latent cache (576 and 512 wide), which takes 3.4 times the FLOP.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu

TILES: Final = (128, 128, 192, 128)  # of a kernel that names less: query rows, keys, width of keys and of values
ABSORBED: Final = 576  # width of a cached latent with its RoPE part
PEAK_SHARE: Final = 0.95
BANDWIDTH_SHARE: Final = 0.85
ELEMENT: Final = 2.0  # bytes of queries, outputs and expanded keys and values
EDGE: Final = 1e-9  # rounding of a division that comes out whole


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """Sum floor + block·waves + (memoryᵖ + computeᵖ)^(1/p), p = power; compute of all steps or of the longest tile.

    batch, heads, q_len (new tokens of a request), context (tokens at the end, a prefix included); PARAMETERS.
    kernel.tiles: query rows, keys of a step, width of a key, width of a value.
    """
    batch, heads, new, context = (
        np.asarray(shape[name], dtype=float) for name in ("batch", "heads", "q_len", "context")
    )
    rows, step, key, value = kernel.tiles + TILES[len(kernel.tiles) :]
    shared = key == ABSORBED  # one latent for all heads of a token
    groups, of_token = (batch, heads) if shared else (batch * heads, np.ones_like(heads))

    tiles = np.ceil(new * of_token / rows)
    filled = groups * tiles / gpu.units
    waves = filled + given["tail"] * (np.ceil(filled - EDGE) - filled)
    steps = _steps_of_a_tile(tiles, rows / of_token / step, (context - new) / step) * np.maximum(1.0, waves)
    longest = given["chain"] * np.ceil(context / step)
    peak = PEAK_SHARE * gpu.peak(kernel.formats["core"].computes_in)
    of_score = (2.0 * (key + value) / peak + given["softmax"] / gpu.vector_rate) * gpu.units
    compute = of_score * rows * step * np.maximum(steps, longest)

    queries = batch * new * heads * (key + value) * ELEMENT
    cached = key * kernel.formats["cache"].bytes_per_element if shared else heads * (key + value) * ELEMENT
    memory = given["passes"] * (queries + batch * context * cached) / (BANDWIDTH_SHARE * gpu.memory.bandwidth)
    seconds = given["floor"] + given["block"] * waves + blend(given["power"], memory, compute)
    return Parts(seconds=seconds, compute=compute, memory=memory)


def _steps_of_a_tile(tiles: Real, growth: Real, prefix: Real) -> Real:
    """Steps over the keys that a tile takes on average: the prefix, and `growth` more for every tile before it."""
    steps: Real = np.ceil(prefix) + np.maximum(1.0, growth * (tiles + 1.0) / 2.0)
    return steps


PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=1e-5, low=1e-6, high=6e-5, meaning="start and end of the kernel"),
    Parameter(name="softmax", unit="", start=2.0, low=0.05, high=400.0, meaning="vector operations per score"),
    Parameter(name="chain", unit="", start=1.3, low=0.3, high=6.0, meaning="time of a lone tile's step to one of many"),
    Parameter(name="block", unit="s", start=2e-6, low=1e-9, high=4e-5, meaning="start and end of a wave of CTAs"),
    Parameter(name="tail", unit="", start=0.3, low=0.0, high=1.0, meaning="of a wave's idle SMs that count as busy"),
    Parameter(name="passes", unit="", start=1.5, low=0.1, high=30.0, meaning="over queries, outputs, keys and values"),
    Parameter(name="power", unit="", start=1.2, low=1.0, high=6.0, meaning="overlap of memory and compute, 1 is none"),
)
FORM: Final = Form(
    name="mla_prefill",
    shape=("batch", "heads", "q_len", "context"),
    whole=("batch", "heads", "q_len", "context"),
    roles=("core", "cache"),
    parameters=PARAMETERS,
    parts=parts,
)
