"""Measured tables as efficiency surfaces, one per weight shape (n, k)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from moeplan.errors import UnknownName
from moeplan.kernels.origin import Origin
from moeplan.kernels.surface import Surface
from moeplan.kernels.table import Table, read_table
from moeplan.kernels.work import (
    Work,
    attention_work,
    gemm_work,
    grouped_gemm_work,
    ideal_attention_time,
    ideal_gemm_time,
)
from moeplan.routing.padding import padded_rows
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import weight_format

Family = Literal["gemm_fp8", "gemm_batched_bf16", "grouped_gemm_fp8", "mla_decode_bf16"]
Row = Mapping[str, float]
Point = tuple[tuple[int, int], float, float, float]  # (n, k), series, line, ideal seconds

SurfacePoint = tuple[float, float, float, float]  # series, line, fraction of the roofline, ideal seconds

MLA_SHAPE: Final = (576, 512)  # key and value width of FlashMLA's tables


@dataclass(frozen=True, slots=True, eq=False)
class ShapeFamily:
    """Surfaces of one kernel by weight shape (n, k), and whose table it is."""

    title: str
    table_of: str  # slug of the GPU that was measured
    surfaces: dict[tuple[int, int], Surface]
    tile_rows: int = 1
    best_origin: Origin = Origin.MEASURED  # a capped table is an assumption

    def nearest(self, n: int, k: int) -> tuple[Surface, float, tuple[int, int]]:
        """Return the surface of the nearest weight shape, its distance |ln n/n'| + |ln k/k'| and the shape."""
        distance = {shape: abs(math.log(n / shape[0])) + abs(math.log(k / shape[1])) for shape in self.surfaces}
        shape = min(distance, key=lambda key: (distance[key], key))
        return self.surfaces[shape], distance[shape], shape


@lru_cache(maxsize=64)
def shape_family(catalog: Catalog, gpu: str, family: Family) -> ShapeFamily | None:
    """Read a GPU's table of a family as surfaces of ideal time over measured time; None where there is no table."""
    table = _table(catalog, gpu, family)
    if table is None:
        return None
    sidecar = table.sidecar
    surfaces = {
        shape: Surface.of([(series, line, share) for series, line, share, _ in points])
        for shape, points in points_of(catalog, gpu, family).items()
    }
    if sidecar.cold_share is None:
        return ShapeFamily(sidecar.title, gpu, surfaces, sidecar.tile_rows)
    title = f"{sidecar.title}, at most {sidecar.cold_share:g} of the roofline"
    return ShapeFamily(title, gpu, surfaces, sidecar.tile_rows, Origin.ASSUMED)


def points_of(catalog: Catalog, gpu: str, family: Family) -> dict[tuple[int, int], list[SurfacePoint]]:
    """The points of a GPU's table by weight shape: series, line, fraction of the roofline reached, ideal seconds."""
    table = _table(catalog, gpu, family)
    points: dict[tuple[int, int], list[SurfacePoint]] = {}
    if table is None:
        return points
    device = catalog.gpu(gpu)
    for row in table.rows:
        shape, series, line, ideal = _FAMILIES[family][1](row, device, table.sidecar.tile_rows)
        share = min(ideal / row["seconds"], table.sidecar.cold_share or math.inf)
        points.setdefault(shape, []).append((series, line, share, ideal))
    return points


def _table(catalog: Catalog, gpu: str, family: Family) -> Table | None:
    path = catalog.kernel_table(gpu, family)
    return read_table(path, (*_FAMILIES[family][0], "seconds")) if path is not None else None


def _ideal(work: Work, gpu: Gpu, precision: str, rows: float, tile: int) -> float:
    return float(ideal_gemm_time(work, gpu, precision, padding=padded_rows(rows, tile) / rows))


def _dense(row: Row, gpu: Gpu, tile: int) -> Point:
    n, k, weights = int(row["n"]), int(row["k"]), weight_format("fp8_block")
    work = gemm_work(m=row["m"], n=n, k=k, weights=weights)
    return (n, k), 1.0, row["m"], _ideal(work, gpu, weights.computes_in, row["m"], tile)


def _batched(row: Row, gpu: Gpu, tile: int) -> Point:
    n, k, copies, weights = int(row["n"]), int(row["k"]), int(row["copies"]), weight_format("bf16")
    work = gemm_work(m=row["m"], n=n, k=k, weights=weights, copies=copies)
    return (n, k), copies, row["m"], _ideal(work, gpu, weights.computes_in, row["m"], tile)


def _grouped(row: Row, gpu: Gpu, tile: int) -> Point:
    n, k, groups, weights = int(row["n"]), int(row["k"]), row["groups"], weight_format("fp8_block")
    work = grouped_gemm_work(rows=groups * row["m"], groups=groups, n=n, k=k, weights=weights)
    return (n, k), groups, row["m"], _ideal(work, gpu, weights.computes_in, row["m"], tile)


def _mla(row: Row, gpu: Gpu, _tile: int) -> Point:
    core = weight_format("bf16")
    work = attention_work(
        batch=row["batch"],
        q_len=row["q_len"],
        context=row["context"],
        heads=int(row["heads"]),
        qk_dim=MLA_SHAPE[0],
        v_dim=MLA_SHAPE[1],
        cache_elements=MLA_SHAPE[0],
        cache=core,
    )
    cached = row["batch"] * row["context"]
    return MLA_SHAPE, row["heads"] * row["q_len"], cached, float(ideal_attention_time(work, gpu, core.computes_in))


_FAMILIES: Final[dict[Family, tuple[tuple[str, ...], Callable[[Row, Gpu, int], Point]]]] = {
    "gemm_fp8": (("m", "n", "k"), _dense),
    "gemm_batched_bf16": (("copies", "m", "n", "k"), _batched),
    "grouped_gemm_fp8": (("groups", "m", "n", "k"), _grouped),
    "mla_decode_bf16": (("batch", "heads", "q_len", "context"), _mla),
}
FAMILIES: Final = tuple(_FAMILIES)


def columns_of(family: str) -> tuple[str, ...]:
    """The columns of a family's tables, seconds left out; raise UnknownName."""
    if family not in FAMILIES:
        raise UnknownName("kernel table", family, FAMILIES)
    return _FAMILIES[family][0]
