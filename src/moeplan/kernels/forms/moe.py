"""Fused mixture of experts on one rank: routing, two grouped GEMMs with the activation between them, and the sum.

A GEMM reads the weights of every active expert once and works on whole tiles of rows; its compute is two terms, FLOP at
the tensor peak and a time per tile that no tensor core shortens. What lies around the two GEMMs grows with the rows of
this rank (activation, quantisation), with the rows and tokens that entered (permutation, sum over experts), and with
the experts, of which this rank prepares its own even where no row comes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape
from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu

WIDTH: Final = 128  # columns of a tile, and depth of one step of its loop
NARROW: Final = 32  # the same of Triton's default configuration
PEAK_SHARE: Final = 0.95
SWAPPED: Final = 16  # rows: below it, weights are on that side of the tensor cores which takes 128 (TRTLLM-Gen)
WRITTEN: Final = 2.0  # bytes of an element that a kernel writes
SCANNED: Final = 96.0  # experts that take routing as long as a doubling of tokens; between 64 (Triton) and 128 (TRTLLM)
# Bytes/s of one SM in the passes over rows: H100's memory over its SMs. From H100 to H200 to B200 the passes' time
# changes by half, in logarithms, of what the memory's bandwidth does, hence the geometric mean of both in `around`.
SM_RATE: Final = 3.35e12 / 132


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """The sum of around, gate_up and down; the columns are in SHAPE, the parameters in PARAMETERS."""
    column = {name: np.asarray(shape[name], dtype=float) for name in SHAPE}
    rows, active, hidden = column["rows"], column["active"], column["hidden"]
    inter = column["inter"] / column["tp"]
    large = takes_large(column["tokens"], column["experts"], column["ep"])
    up = one_gemm(gpu, kernel, rows, active, column["gated"] * inter, hidden, given, large=large)
    down = one_gemm(gpu, kernel, rows, active, hidden, inter, given, large=large)
    rest = around(gpu, kernel, column, given)
    return Parts(
        seconds=rest.seconds + up.seconds + down.seconds,
        compute=rest.compute + up.compute + down.compute,
        memory=rest.memory + up.memory + down.memory,
    )


def one_gemm(
    gpu: Gpu, kernel: Kernel, rows: Real, active: Real, n: Real, k: Real, given: Parameters, *, large: Real = True
) -> Parts:
    """(memory² + compute²)^½ + step·k/128: `rows` in all over `active` experts, each with its own (k, n) weights.

    A kernel of two tiles, Triton's without a tuned configuration, takes the first until it is `large`, see takes_large,
    then the second, with steps half as deep. One with tiles of fewer than 16 rows holds its weights in whole blocks.
    """
    weights = kernel.formats["weights"]
    width = WIDTH if len(kernel.tiles) == 1 else NARROW
    wide, deep = np.ceil(n / width) * width, np.ceil(k / width) * width
    held = wide * deep if kernel.tiles[0] < SWAPPED else n * k
    traffic = active * held * weights.bytes_per_element + rows * (k * weights.activation_bytes + n * WRITTEN)
    memory = traffic / (given["bandwidth"] * gpu.memory.bandwidth)
    tile = np.where(large, kernel.tiles[-1], kernel.tiles[0])
    steps = deep / WIDTH * (np.where(large, 2.0, 1.0) if len(kernel.tiles) > 1 else 1.0)
    block = 2.0 * WIDTH**3 * gpu.units / (PEAK_SHARE * gpu.peak(weights.computes_in)) + given["tile_time"]
    blocks = active * np.ceil(rows / active / tile) * tile * wide * deep / WIDTH**3
    compute = blocks / gpu.units * block
    return Parts(seconds=np.hypot(memory, compute) + steps * given["step"], compute=compute, memory=memory)


def around(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """Start, routing, permutation, activation, quantisation, sum over experts."""
    tokens, experts = shape["tokens"], shape["experts"]
    wide = shape["hidden"] * (WRITTEN + kernel.formats["weights"].activation_bytes)
    row = wide + 2.0 * WRITTEN * shape["inter"] / shape["tp"]
    passes = (given["own_rows"] * shape["rows"] + given["all_rows"] * tokens * shape["top_k"]) * row
    memory = (passes + given["all_tokens"] * tokens * wide) / (gpu.memory.bandwidth * gpu.units * SM_RATE) ** 0.5
    routing = given["routing"] * (np.log2(tokens + 1.0) + experts / SCANNED)
    prepared = given["active_expert"] * shape["active"] + given["local_expert"] * experts / shape["ep"]
    seconds = given["floor"] + routing + prepared + memory
    return Parts(seconds=seconds, compute=np.zeros_like(seconds), memory=memory)


def takes_large(tokens: Real, experts: Real, ep: Real) -> Real:
    """Whether Triton's default configuration leaves the small tile: more tokens than experts of this rank."""
    return np.greater(tokens, experts / ep)


SHAPE: Final = ("tokens", "hidden", "inter", "top_k", "experts", "tp", "ep", "gated", "active", "rows")
PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=1e-5, low=1e-6, high=1e-4, meaning="start and end of its kernels"),
    Parameter(name="routing", unit="s", start=5e-7, low=1e-9, high=8e-6, meaning="per doubling of tokens, 96 experts"),
    Parameter(name="bandwidth", unit="", start=0.9, low=0.3, high=1.0, meaning="share of memory bandwidth reached"),
    Parameter(name="tile_time", unit="s", start=1e-7, low=1e-9, high=5e-6, meaning="per 128³ block on one SM"),
    Parameter(name="step", unit="s", start=2e-7, low=1e-9, high=2e-6, meaning="latency per 128 of a GEMM's depth"),
    Parameter(name="own_rows", unit="", start=2.0, low=0.01, high=30.0, meaning="passes over this rank's rows"),
    Parameter(name="all_rows", unit="", start=0.3, low=0.001, high=10.0, meaning="passes over all rows that entered"),
    Parameter(name="all_tokens", unit="", start=0.3, low=0.001, high=30.0, meaning="passes over tokens that entered"),
    Parameter(name="active_expert", unit="s", start=2e-7, low=1e-9, high=2e-6, meaning="per active expert"),
    Parameter(name="local_expert", unit="s", start=1e-7, low=1e-10, high=2e-6, meaning="per expert of this rank"),
)
FORM: Final = Form(
    name="moe",
    shape=SHAPE,
    whole=("hidden", "inter", "top_k", "experts"),
    roles=("weights",),
    parameters=PARAMETERS,
    parts=parts,
)
