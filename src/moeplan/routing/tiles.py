"""Tiles of a grouped GEMM: what a part of one wastes, when the waste costs time, and what a CUDA graph allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array, Real
from moeplan.routing.padding import padded_rows
from moeplan.routing.row_law import row_laws


def tile_waste(rows: Real, tile: int) -> Real:
    """⌈M_e/BM⌉·BM / M_e: FLOP done over FLOP wanted (batch article, tile waste); 1 is none.

    Raises InputError for rows or a tile below 1: an expert without rows has no tile, and no waste.
    """
    _check(rows=rows, tile=tile)
    return padded_rows(rows, tile) / rows


def expected_tiles(tokens: Real, tile: int, probability: Array) -> Real:
    """E[Σ_e ⌈m_e/BM⌉] over experts, or slots, that a token goes to with these probabilities: m_e ~ Binomial(T, p_e).

    Exact. tokens: any shape; probability: (experts,).
    """
    _check(tokens=tokens, tile=tile)
    chance, times = np.unique(np.round(probability, 12), return_counts=True)
    per_token = np.stack([1.0 - chance, chance], axis=1)
    found = []
    for one in np.ravel(tokens):
        laws = row_laws(per_token, float(one))
        found.append(float(times @ laws.expected(np.ceil(laws.values / tile))))
    return np.array(found).reshape(np.shape(tokens)) if np.ndim(tokens) else found[0]


def expected_tile_waste(tokens: Real, tile: int, probability: Array) -> Real:
    """FLOP done over FLOP wanted under the law of rows: E[Σ ⌈m_e/BM⌉]·BM / (T·Σ p_e)."""
    return expected_tiles(tokens, tile, probability) * tile / (np.asarray(tokens) * float(np.sum(probability)))


def tile_intensity(tile: Real, bytes_per_parameter: float) -> Real:
    """2·BM/bpp FLOP per byte of weights, whatever the rows in the tile (batch article, DeepGEMM)."""
    return 2 * tile / bytes_per_parameter


def critical_tile(ridge: Real, bytes_per_parameter: float) -> Real:
    """BM* = ridge·bpp/2, the rows of a tile at which its arithmetic takes as long as its weights (batch article).

    ridge: FLOP/s over memory B/s, of the peaks or of the rates measured.
    """
    return ridge * bytes_per_parameter / 2


def pad_rows_cost_time(tile: Real, *, ridge: Real, bytes_per_parameter: float) -> Real:
    """Whether BM > BM*: pad rows then take time; below it they hide behind the weights and only FLOP is wasted."""
    result: Real = np.greater(tile, critical_tile(ridge, bytes_per_parameter))
    return result if np.ndim(result) else bool(result)


def pad_time(rows: Real, tile: int, *, ridge: Real, bytes_per_parameter: float) -> Real:
    """Time of an expert over that without pad rows, at the roofline: 1 while its tiles wait for memory.

    Each tile of a column of experts reads the weights once: max(tiles, FLOP/ridge) over max(tiles, true FLOP/ridge), in
    readings of the weights. Left out: tails of waves, caches that keep weights between tiles.

    Raises InputError for rows or a tile below 1.
    """
    _check(rows=rows, tile=tile)
    critical = critical_tile(ridge, bytes_per_parameter)
    done = padded_rows(rows, tile)
    readings = done / tile
    result: Real = np.maximum(readings, done / critical) / np.maximum(readings, rows / critical)
    return result if np.ndim(result) else float(result)


class Waves(Struct, frozen=True, kw_only=True, eq=False):
    """Tiles in waves of one per SM: how many waves, the share of the SMs busy in the last, and in all of them."""

    tiles: Real
    waves: Real
    last: Real
    efficiency: Real


def waves(tiles: Real, *, sms: int) -> Waves:
    """⌈tiles / SMs⌉ waves; efficiency = tiles / (waves · SMs). For equal tiles, one at a time on an SM.

    Raises InputError for tiles or SMs below 1.
    """
    _check(tiles=tiles, sms=sms)
    number = np.ceil(np.asarray(tiles) / sms)
    last = (np.asarray(tiles) - (number - 1) * sms) / sms
    parts = {"tiles": tiles, "waves": number, "last": last, "efficiency": np.asarray(tiles) / (number * sms)}
    return Waves(**{name: value if np.ndim(tiles) else float(value) for name, value in parts.items()})


def grouped_tiles(row_tiles: Real, *, columns: int, tile_columns: int) -> Real:
    """Tiles of a grouped GEMM: tiles of rows over all groups × ⌈N / BN⌉."""
    return row_tiles * -(-columns // tile_columns)


class Strategy(Struct, frozen=True, kw_only=True, eq=False):
    """A way to run experts of unequal rows.

    capturable: whether a CUDA graph can hold it, which needs static shapes. memory_rows: rows of memory per expert.
    work_rows: rows computed per expert; flop_waste: work_rows over true ones.
    """

    name: str
    tile: int
    capturable: bool
    memory_rows: Real
    work_rows: Real
    flop_waste: Real
    why: str


def strategies(
    rows: Real, *, most_rows: int = 64, grouped_tile: int = 64, masked_tiles: Sequence[int] = (16, 8)
) -> tuple[Strategy, ...]:
    """Pad, grouped and masked, at M_e rows per expert (batch article, DeepGEMM): 12.8×, 12.8×, 3.2×, 1.6× at 5.

    most_rows: M_max, what a static buffer holds for each expert.

    Raises InputError for rows below 1 or above most_rows, which a static buffer would lose.
    """
    _check(rows=rows, most_rows=most_rows, grouped_tile=grouped_tile, **{f"masked_tiles[{t}]": t for t in masked_tiles})
    if np.any(np.greater(rows, most_rows)):
        problem = f"{float(np.max(rows)):g} rows do not fit a buffer of {most_rows}"
        raise InputError("tiles", [Fault("most_rows", problem, "give the most rows that an expert may get")])
    buffer = most_rows + 0 * rows
    plan = [
        ("pad", most_rows, True, buffer, "static shapes: every expert computes M_max rows"),
        ("grouped", grouped_tile, False, rows, "shapes are the true rows, other ones each step: not capturable"),
        *(
            ("masked", t, True, buffer, "static memory, dynamic work: a tile without a row does nothing")
            for t in masked_tiles
        ),
    ]
    return tuple(
        Strategy(
            name=name,
            tile=tile,
            capturable=capturable,
            memory_rows=memory,
            work_rows=padded_rows(rows, tile),
            flop_waste=tile_waste(rows, tile),
            why=why,
        )
        for name, tile, capturable, memory, why in plan
    )


def _check(**sizes: Real) -> None:
    faults = [
        Fault(name, f"is {value}", "give at least 1")
        for name, value in sizes.items()
        if not np.all(np.isfinite(value)) or np.any(np.less(value, 1))
    ]
    if faults:
        raise InputError("tiles", faults)
