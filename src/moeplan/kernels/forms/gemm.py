"""Dense GEMM: (m, k) activations by (k, n) weights, in tiles that go over the SMs in waves.

A kernel's own choice of tile and of parts of k is stood for by the fastest of TILES and SPLITS: following DeepGEMM's
rule instead (fewest bytes through L2 and shared memory per wave) moves the median error by 0.2 points at most.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kinds import Array, Real
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import Format

DEPTH: Final = 128  # elements of k in one step of a tile's loop
BLOCK: Final = 128  # the side of the square of results in which the parameters count
TILES: Final = (
    (16, 64),
    (16, 128),
    *((rows, columns) for rows in (64, 128) for columns in (16, 32, 64, 128, 192, 256)),
)
COLUMNS: Final = tuple(range(16, 129, 16))  # of a named tile: DeepGEMM fits them to n and the SMs in steps of 16
SPLITS: Final = (1, 4, 16)  # parts of k that different SMs work on
FEWEST: Final = 64  # rows that DeepGEMM multiplies at a time
PEAK_SHARE: Final = 0.95
OUTPUT_BYTES: Final = 2.0  # kernels write bf16
OVERLAP: Final = 2.0  # of memory traffic, the tiles' loops and wasted loads; see blend
STEP_OVERLAP: Final = 4.0  # of arithmetic, loads and latency inside a step
EDGE: Final = 4.0  # how suddenly operands that outgrow L2 come from memory


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """Add floor + act·m·k/bandwidth + (memory² + loops² + wasted²)^½; columns m, n, k, parameters as in FORM.

    kernel.tiles: of a kernel like DeepGEMM, which loads whole tiles even where m ends before and takes k in one piece:
    the rows of its tiles, before them the fewest it loads. Where none are named, tiles of 16 rows stand for the swapped
    product, and k may be split. Optional column converted: 1 where the activations come in the weights' format.
    """
    weights = kernel.formats["weights"]
    m, n, k = (np.asarray(shape[name], dtype=float) for name in ("m", "n", "k"))
    moved = n * k * weights.bytes_per_element + m * k * weights.activation_bytes + m * n * OUTPUT_BYTES
    named = tuple((rows, columns) for rows in kernel.tiles if rows >= FEWEST for columns in COLUMNS)
    fastest, beyond = tile_loops(
        gpu,
        weights,
        m=m,
        n=n,
        k=k,
        tiles=named or TILES,
        fewest=FEWEST if named else 1,
        least=min(kernel.tiles, default=1),
        splits=(1,) if named else SPLITS,
        given=given,
    )
    loops = blend(OVERLAP, fastest, given["waste"] * beyond * k / BLOCK**2)
    inputs = m * k * (1.0 - np.asarray(shape.get("converted", 0.0)))
    return joined(gpu, weights, flops=2.0 * m * n * k, moved=moved, inputs=inputs, loops=loops, given=given)


def joined(
    gpu: Gpu, weights: Format, *, flops: Real, moved: Real, inputs: Real, loops: Real, given: Parameters
) -> Parts:
    """Start, conversion of `inputs` activations, and traffic of `moved` bytes overlapped with the tiles' loops.

    Of operands that a benchmark leaves in L2, memory moves moved / (1 + (warm·L2/moved)⁴).
    """
    bandwidth = given["bandwidth"] * gpu.memory.bandwidth
    kept = (given["warm"] * (gpu.l2 or 0.0) / moved) ** EDGE
    memory = moved / (1.0 + kept) / bandwidth
    seconds = given["floor"] + given["act"] * inputs / bandwidth + blend(OVERLAP, memory, loops)
    compute = np.maximum(loops, flops / (PEAK_SHARE * gpu.peak(weights.computes_in)))
    return Parts(seconds=seconds, compute=compute, memory=memory)


def tile_loops(
    gpu: Gpu,
    weights: Format,
    *,
    m: Array,
    n: Array,
    k: Array,
    copies: Real = 1.0,
    tiles: tuple[tuple[int, int], ...] = TILES,
    fewest: int = 1,
    least: int = 1,
    splits: tuple[int, ...],
    given: Parameters,
) -> tuple[Array, Array]:
    """Seconds of the fastest tile's loops, and rows beyond the last of m that its tiles load, summed over columns.

    fewest: rows that are multiplied at a time; least: that a lone tile down m loads multiples of.
    waves·(steps·step + store): waves = ⌈tiles·parts/SMs⌉, steps = ⌈k/(128·parts)⌉; parts above 1 cost `split` to join.
    """
    down = {rows: np.ceil(m / rows) for rows, _ in tiles}
    lone = np.ceil(m / least) * least
    empty = {rows: np.where(count > 1, count * rows, np.minimum(lone, rows)) - m for rows, count in down.items()}
    across = {columns: np.ceil(n / columns) for _, columns in tiles}
    steps = {split: np.ceil(k / (DEPTH * split)) for split in splits}
    best: Array = np.asarray(np.inf)
    beyond: Array = np.asarray(0.0)
    for rows, columns in tiles:
        results = max(rows, fewest) * columns
        step, store = step_time(gpu, weights, rows + columns, results, given), given["store"] * results / BLOCK**2
        count = copies * down[rows] * across[columns]
        time: Array = np.asarray(np.inf)
        for split in splits:
            loops = np.ceil(count * split / gpu.units) * (steps[split] * step + store)
            time = np.minimum(time, loops + given["split"] if split > 1 else loops)
        beyond = np.where(time < best, empty[rows] * across[columns], beyond)
        best = np.minimum(best, time)
    return best, beyond


def step_time(gpu: Gpu, weights: Format, lines: int, results: int, given: Parameters) -> float:
    """One step of a tile on one SM, 128 elements of k: FLOP and fixed time of its results, loads of lines, latency."""
    peak = PEAK_SHARE * gpu.peak(weights.computes_in) / gpu.units
    arithmetic = 2.0 * results * DEPTH / peak + given["block"] * results / BLOCK**2
    loads = given["load"] * lines * weights.activation_bytes / (2 * BLOCK)
    return float(
        (arithmetic**STEP_OVERLAP + loads**STEP_OVERLAP + given["latency"] ** STEP_OVERLAP) ** (1 / STEP_OVERLAP)
    )


def _time(name: str, start: float, low: float, high: float, meaning: str) -> Parameter:
    return Parameter(name=name, unit="s", start=start, low=low, high=high, meaning=meaning)


def _share(name: str, start: float, low: float, high: float, meaning: str) -> Parameter:
    return Parameter(name=name, unit="", start=start, low=low, high=high, meaning=meaning)


FLOOR: Final = _time("floor", 3e-6, 5e-7, 3e-5, "start and end of the kernel")
BANDWIDTH: Final = _share("bandwidth", 0.85, 0.3, 1.0, "share of memory bandwidth reached")
LATENCY: Final = _time("latency", 1.4e-7, 1e-9, 2e-6, "of a step of 128 elements of k, however small the tile")
FIXED: Final = _time("block", 8e-8, 1e-9, 3e-6, "per 128 x 128 results and step, beside their FLOP")
LOAD: Final = _time("load", 2e-7, 1e-9, 5e-6, "to bring 256 rows of 128 elements of one byte from L2 into an SM")
STORE: Final = _time("store", 5e-7, 1e-9, 1e-5, "start and end of a tile, per 128 x 128 results")
ACT: Final = _share("act", 1.0, 0.0, 30.0, "bytes moved beforehand per activation, where its format is changed")
WARM: Final = _share("warm", 0.1, 0.001, 1.0, "share of L2 in which a benchmark's operands stay; 0 in an engine")
SPLIT: Final = _time("split", 3e-6, 1e-6, 1e-4, "to join parts of k; unused where tiles are named")
# Hopper's bulk loads are slow where they reach over the end of m: up to twice the time at m = 65, 129, 257.
WASTE: Final = _time("waste", 2e-9, 1e-13, 1e-7, "per 128 x 128 activations that tiles load beyond row m")

FORM: Final = Form(
    name="gemm",
    shape=("m", "n", "k"),
    whole=("m", "n", "k"),
    roles=("weights",),
    parameters=(FLOOR, BANDWIDTH, LATENCY, FIXED, LOAD, STORE, ACT, WARM, SPLIT, WASTE),
    parts=parts,
)
