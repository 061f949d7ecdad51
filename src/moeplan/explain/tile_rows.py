"""What tiles of a grouped GEMM waste at the rows of a step, and how the experts can be run at all."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from moeplan.routing.group_shapes import GroupShapes
from moeplan.routing.tiles import (
    critical_tile,
    expected_tile_waste,
    expected_tiles,
    grouped_tiles,
    pad_rows_cost_time,
    tile_waste,
    waves,
)
from moeplan.specs.gpu import Gpu
from moeplan.specs.model import ModelSpec
from moeplan.specs.precision import Format

TILES: Final = (8, 16, 64, 128)  # rows of a tile, BM
COLUMNS: Final = 128  # of a tile, BN


class TileRow(Struct, frozen=True, kw_only=True):
    """Tiles of one EP size and batch: FLOP done over asked, exact under the law of rows, and at the mean of rows.

    With a GPU: BM*, whether a tile's pad rows take time there, and the waves of gate_up's tiles over its SMs, the busy
    share of the last.
    """

    ep: int
    q_len: int
    batch: float
    tile: int
    waste: float
    waste_at_mean: float
    critical_tile: float | None = None
    pad_rows_cost_time: bool | None = None
    waves: float | None = None
    last_wave: float | None = None


def tile_rows(found: GroupShapes, model: ModelSpec, *, gpu: Gpu | None, weights: Format) -> list[TileRow]:
    """A row per batch and tile; a rank's tiles are its share of the group's."""
    assert model.experts is not None, "group shapes are of experts"
    chance = found.popularity.probability
    rows = []
    for batch, tokens, mean, ep in zip(
        *(np.ravel(np.broadcast_to(value, np.shape(found.tokens))).tolist() for value in (found.batch, found.tokens)),
        np.ravel(np.broadcast_to(found.rows_if_active, np.shape(found.tokens))).tolist(),
        np.ravel(np.broadcast_to(found.ep, np.shape(found.tokens))).tolist(),
        strict=True,
    ):
        for tile in TILES:
            more = {}
            if gpu is not None:
                ridge = gpu.peak(weights.computes_in) / gpu.memory.bandwidth
                bytes_ = weights.bytes_per_element
                across = grouped_tiles(
                    expected_tiles(tokens, tile, chance) / ep, columns=2 * model.experts.width, tile_columns=COLUMNS
                )
                over = waves(max(float(across), 1.0), sms=gpu.units)
                more = {
                    "critical_tile": float(critical_tile(ridge, bytes_)),
                    "pad_rows_cost_time": bool(pad_rows_cost_time(tile, ridge=ridge, bytes_per_parameter=bytes_)),
                    "waves": float(over.waves),
                    "last_wave": float(over.last),
                }
            rows.append(
                TileRow(
                    ep=int(ep),
                    q_len=round(tokens / (batch * ep)) or 1,
                    batch=batch,
                    tile=tile,
                    waste=float(expected_tile_waste(tokens, tile, chance)),
                    waste_at_mean=float(tile_waste(max(mean, 1.0), tile)),
                    **more,  # type: ignore[arg-type]  # each of its field's type
                )
            )
    return rows
