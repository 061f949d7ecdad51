"""DeepGEMM's grouped GEMM of a rank's experts, one GEMM or a whole expert layer of two with the activation between.

Each SM multiplies tiles one after the other; a step of 128 along k takes the longer of the tensor cores' time and that
in which the SM takes both tiles from L2. Only so the same microseconds hold for H20 and H800, whose tensor peaks differ
7 times and whose L2 feeds an SM alike. Tiles are made narrower where that fills the last wave, for the rows expected.

shape: groups with rows, m mean rows of each, n, k of the first weight. Optional columns, each nothing by default:
blocks, the rows of whole tiles in all groups over the rows of the smallest tile (else what m rows in every group need;
in the contiguous layout, which has one tile size, m counts the rows of whole tiles); scattered, 1 where rows scatter
around m as routing makes it; idle, groups without rows; both, 1 for gate_up + activation + quantisation + down, with
n = 2 inter; tokens, out of which rows are first gathered and to which they are added up in the end.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kernels.work import OUTPUT_BYTES
from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu

PEAK_SHARE: Final = 0.95
WIDEST, NARROWEST, WIDTH_STEP = 128, 16, 8  # columns of a tile
DEPTH: Final = 128  # of a step along k
POWER: Final = 5.0  # of the overlap between memory and compute
PAIRED: Final = "Blackwell"  # two SMs multiply together, each loads half of the weights' tile


class Load(Struct, frozen=True, kw_only=True, eq=False):
    """What a rank's groups hold: blocks row tiles of `tile` rows, of which `planned` were expected; their spread."""

    groups: Real
    idle: Real
    rows: Real
    tile: Real
    blocks: Real
    planned: Real
    spread: Real


def tile_rows(tiles: tuple[int, ...], rows: Real) -> Real:
    """Rows of a tile: the smallest that takes a group's expected rows, else the largest."""
    found: Real = np.full(np.shape(rows), float(tiles[-1]))
    for tile in reversed(tiles[:-1]):
        found = np.where(np.asarray(rows) <= tile, float(tile), found)
    return found


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """One GEMM; with `both` = 1 that of gate and up, the activation and that of down."""
    load = _load(kernel, shape)
    n, k = np.asarray(shape["n"], dtype=float), np.asarray(shape["k"], dtype=float)
    up = _gemm(gpu, kernel, load, n, k, given)
    both = np.asarray(shape.get("both", 0.0))
    if not np.any(both):
        return up
    down = _gemm(gpu, kernel, load, k, n / 2, given)
    tokens = np.asarray(shape.get("tokens", 0.0))
    traffic = load.rows * (OUTPUT_BYTES * n + n / 2 * kernel.formats["weights"].activation_bytes)
    # Gathered rows are copied in and out, quantised by a kernel of its own; every token is written, if only as zero.
    copied = np.where(tokens > 0, load.rows * (4.0 * k + OUTPUT_BYTES * n), 0.0)
    traffic = traffic + given["copies"] * copied + given["sums"] * tokens * OUTPUT_BYTES * k
    memory = traffic / (given["bandwidth"] * gpu.memory.bandwidth)
    between = given["between"] + given["expert"] * (load.groups + load.idle) + memory
    return Parts(
        seconds=up.seconds + both * (between + down.seconds),
        compute=up.compute + both * down.compute,
        memory=up.memory + both * (memory + down.memory),
    )


LARGE: Final = 4096  # elements, from which a load is worth keeping
_LAST: list[tuple[Kernel, tuple[Real, ...], Load]] = []  # the last large load: both products of an expert have one


def _load(kernel: Kernel, shape: Shape) -> Load:
    """The tiles of a step; asked again for the same rows, as for an expert's second product, the same answer."""
    columns = tuple(shape.get(name, 0.0) for name in ("m", "groups", "idle", "scattered"))
    if np.size(columns[0]) < LARGE or "blocks" in shape:
        return _tiled(kernel, shape)
    for known, given, found in _LAST:
        if known is kernel and all(np.array_equal(a, b) for a, b in zip(given, columns, strict=True)):
            return found
    _LAST[:] = [(kernel, columns, _tiled(kernel, shape))]
    return _LAST[0][2]


def _tiled(kernel: Kernel, shape: Shape) -> Load:
    groups, m = np.asarray(shape["groups"], dtype=float), np.asarray(shape["m"], dtype=float)
    idle, rows = np.asarray(shape.get("idle", 0.0)), groups * m
    expected = rows / (groups + idle)
    tile = tile_rows(kernel.tiles, expected)
    contiguous = len(kernel.tiles) == 1
    if "blocks" in shape:
        blocks = np.asarray(shape["blocks"], dtype=float) * min(kernel.tiles) / tile
    elif contiguous:
        blocks = np.maximum(groups, rows / tile)
    else:
        blocks = groups * _tiles(m, tile, shape)
    planned = blocks if contiguous else (groups + idle) * np.ceil(expected / tile)
    # Tiles of a group scatter as its rows do, √m of them, and by where the last tile ends, 1/√12 of one.
    scattered = np.asarray(shape.get("scattered", 0.0))
    spread = scattered * np.sqrt(groups * (m / tile**2 + 1.0 / 12.0))
    return Load(groups=groups, idle=idle, rows=rows, tile=tile, blocks=blocks, planned=planned, spread=spread)


def _tiles(m: Real, tile: Real, shape: Shape) -> Real:
    """Row tiles of one group of m rows, expected ones where rows scatter."""
    found: Real = np.ceil(m / tile)
    scattered = np.asarray(shape.get("scattered", 0.0))
    if np.any(scattered):
        half_row = 0.5  # rows are whole numbers
        found = np.where(scattered > 0, _rounded_up((m - half_row) / tile, np.sqrt(m) / tile), found)
    return found


def _gemm(gpu: Gpu, kernel: Kernel, load: Load, n: Real, k: Real, given: Parameters) -> Parts:
    """(memory⁵ + (waves·(tile + k/128·max(multiply, feed)))⁵)^⅕ + floor + latency·k/128; see PARAMETERS."""
    weights = kernel.formats["weights"]
    steps = k / DEPTH
    width = _width(load.planned, n, gpu.units)
    across = np.ceil(n / width) / gpu.units
    filled = load.blocks * across
    waves = _rounded_up(filled, load.spread * across) if np.any(load.spread) else _ceil(filled)
    pair = 2.0 if gpu.architecture.startswith(PAIRED) else 1.0
    multiply = 2.0 * load.tile * width * DEPTH / (PEAK_SHARE * gpu.peak(weights.computes_in) / gpu.units)
    feed = given["feed"] * (load.tile + width / pair) / (2 * WIDEST)
    compute = waves * steps * np.maximum(multiply, feed)
    traffic = load.groups * n * k * weights.bytes_per_element
    traffic = traffic + load.rows * (k * weights.activation_bytes + n * OUTPUT_BYTES)
    memory = traffic / (given["bandwidth"] * gpu.memory.bandwidth)
    busy = blend(POWER, memory, compute + waves * given["tile"])
    seconds = given["floor"] + given["latency"] * steps + busy
    return Parts(seconds=seconds, compute=compute, memory=memory, padding=load.blocks * load.tile / load.rows)


def _width(blocks: Real, n: Real, units: int) -> Real:
    """Columns of a tile: the fewest with which `blocks` row tiles take no more waves than with the widest."""
    waves = _ceil(blocks * np.ceil(n / WIDEST) / units)
    columns = np.maximum(np.floor(waves * units / blocks), 1.0)
    width: Real = np.clip(WIDTH_STEP * np.ceil(n / columns / WIDTH_STEP), NARROWEST, WIDEST)
    return width


def _ceil(waves: Real) -> Real:
    return np.ceil(waves - 1e-9)


def _rounded_up(mean: Real, spread: Real) -> Real:
    """E⌈X⌉ of X even on mean ± √3·spread, and at least one.

    E⌈X⌉ = (F(high) - F(low)) / (high - low), F(x) = ∫₀ˣ⌈t⌉dt = (⌊x⌋ + 1)·(x - ⌊x⌋/2).
    """
    half = np.maximum(3.0**0.5 * spread, 1e-6)
    low, high = np.maximum(mean - half, 0.0), mean + half
    area = _area(high)
    area -= _area(low)
    high -= low  # in place: this is the hottest line of a search
    area /= high
    expected: Real = np.maximum(area, 1.0)
    return expected


def _area(end: Real) -> Real:
    """F(x) = ∫₀ˣ⌈t⌉dt."""
    floor: Real = np.floor(end)
    area: Real = end - 0.5 * floor
    floor += 1.0
    area *= floor
    return area


PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=2e-6, low=1e-6, high=2e-5, meaning="start and end of a GEMM"),
    Parameter(name="bandwidth", unit="", start=0.83, low=0.65, high=0.88, meaning="share of memory bandwidth reached"),
    # 64 B per SM and clock are 290 ns at 1.75 GHz; 340 to 420 are 86 to 70 % of that.
    Parameter(name="feed", unit="s", start=3.9e-7, low=3.4e-7, high=4.2e-7, meaning="two 128 x 128 tiles, L2 to SM"),
    Parameter(name="tile", unit="s", start=1.7e-6, low=1e-7, high=1e-5, meaning="writing a tile, not overlapped"),
    Parameter(name="latency", unit="s", start=4e-8, low=5e-9, high=2e-7, meaning="per 128 along k, once"),
    Parameter(name="between", unit="s", start=6e-6, low=1e-6, high=5e-4, meaning="starts of what is between the GEMMs"),
    Parameter(
        name="expert", unit="s", start=5e-7, low=1e-8, high=3e-6, meaning="activation, per group with rows or not"
    ),
    Parameter(name="copies", unit="", start=1.5, low=0.5, high=5.0, meaning="gathered rows, over their least traffic"),
    Parameter(name="sums", unit="", start=2.0, low=0.5, high=10.0, meaning="tokens' sums, over their least traffic"),
)
FORM: Final = Form(
    name="grouped_gemm",
    shape=("groups", "m", "n", "k"),
    whole=("groups", "m", "n", "k"),
    roles=("weights",),
    parameters=PARAMETERS,
    parts=parts,
)
