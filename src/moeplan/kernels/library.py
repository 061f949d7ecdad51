"""The efficiencies of one GPU's kernels: its measured tables, those of the GPU that stands in, published figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.general import GeneralFigures, StandIn
from moeplan.kernels.origin import Origin, worst
from moeplan.kernels.shape_family import MLA_SHAPE, Family, ShapeFamily, shape_family
from moeplan.kinds import Real
from moeplan.routing.padding import expected_padded_rows, padded_rows
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import EDITED, Gpu
from moeplan.specs.loading import build, read_mapping
from moeplan.specs.precision import Format

if TYPE_CHECKING:
    from moeplan.kernels.article import ArticleFigures

EfficiencySet = Literal["measured", "article"]
ARTICLE = "article"
NO_KERNEL = ("price", "tdp", "memory.capacity")  # figures of a GPU that no kernel's time depends on
NEAR = math.log(4.0)  # a shape counts as near a measured one when n and k differ by less than 4x in all


@dataclass(frozen=True, eq=False)
class KernelLibrary:
    """Answers how efficient a kernel of a given shape is on one GPU.

    A family's table is the GPU's own where it has one, else that of the GPU that stands in for it.
    """

    gpu: Gpu
    catalog: Catalog
    general: GeneralFigures
    efficiency: EfficiencySet = "measured"

    @classmethod
    def of(cls, gpu: Gpu, catalog: Catalog, efficiency: EfficiencySet = "measured") -> KernelLibrary:
        """The library of a GPU; «article» reads no table, but the published figures alone."""
        return cls(gpu, catalog, _general(catalog), efficiency)

    @property
    def article(self) -> ArticleFigures:
        """The published figures, also for a family that has no table."""
        return article_figures(self.catalog)

    def gemm(self, *, m: Real, n: int, k: int, weights: Format, copies: int = 1) -> Efficiency:
        """Efficiency of a dense or batched GEMM; m may be an array."""
        family = self._family("gemm_fp8" if copies == 1 else "gemm_batched_bf16")
        if family is None:
            return self.article.gemm(m=m, n=n, k=k)
        surface, distance, shape = family.nearest(n, k)
        found = surface.at(float(copies), m)
        measured_in = "fp8" if copies == 1 else "bf16"
        answer = self._answer(found, family, shape, distance, same_kernel=weights.computes_in == measured_in)
        return replace(answer, padding=padded_rows(m, family.tile_rows) / m) if family.tile_rows > 1 else answer

    def grouped_gemm(
        self, *, rows_per_group: Real, groups: Real, n: int, k: int, weights: Format, down: bool, exact: bool = False
    ) -> Efficiency:
        """Efficiency of a grouped GEMM over `groups` groups, the active ones of `rows_per_group` rows each.

        exact: every group has just so many rows, as in a benchmark; else they scatter around them, as routing makes it.
        """
        family = self._family("grouped_gemm_fp8")
        if family is None:
            return self.article.grouped_gemm(rows=rows_per_group, down=down)
        surface, distance, shape = family.nearest(n, k)
        found = surface.at(np.maximum(groups, 1.0), np.maximum(rows_per_group, 1.0))
        answer = self._answer(found, family, shape, distance, same_kernel=weights.computes_in == "fp8")
        if family.tile_rows == 1:
            return answer
        padded = (padded_rows if exact else expected_padded_rows)(rows_per_group, family.tile_rows)
        return replace(answer, padding=padded / rows_per_group)

    def mla(self, *, batch: Real, q_len: Real, context: Real, heads: int, core: Format, cache: Format) -> Efficiency:
        """Efficiency of absorbed MLA decode: over heads·q_len and the cached tokens of the whole batch."""
        family = self._family("mla_decode_bf16")
        if family is None:
            return self.article.mla(heads_times_q=heads * q_len, h20=self.gpu.slug in ("h20", "h20-141"))
        surface, distance, shape = family.nearest(*MLA_SHAPE)
        found = surface.along_time(heads * q_len, batch * context)
        return self._answer(found, family, shape, distance, same_kernel=core.name == cache.name == "bf16")

    def gqa(self) -> Efficiency:
        """Efficiency of grouped-query decode attention."""
        figures = self.general
        return Efficiency(
            compute=figures.gqa_compute_share,
            memory=figures.gqa_memory_share,
            floor=figures.gqa_floor,
            origin=Origin.ASSUMED,
            source=figures.gqa_source,
        )

    def elementwise(self) -> Efficiency:
        """Efficiency of small memory-bound kernels."""
        figures = self.general
        return Efficiency(
            compute=1.0,
            memory=figures.elementwise_share,
            floor=figures.elementwise_floor,
            origin=Origin.ASSUMED,
            source=figures.elementwise_source,
        )

    def _family(self, family: Family) -> ShapeFamily | None:
        if self.efficiency == ARTICLE:
            return None
        own = shape_family(self.catalog, self.gpu.slug, family) if self.gpu.slug else None
        if own is not None:
            return own
        table_of, _ = _stand_in(self.gpu, self.catalog)
        return shape_family(self.catalog, table_of, family)

    def _answer(
        self,
        found: tuple[Real, Origin],
        family: ShapeFamily,
        shape: tuple[int, int],
        distance: float,
        *,
        same_kernel: bool,
    ) -> Efficiency:
        value, origin = found
        origin = worst(origin, family.best_origin)
        answer = Efficiency(compute=value, memory=value, vector=value, origin=origin, source=family.title)
        if distance > 0:
            far = distance > NEAR
            note = f"shape of n, k = {shape[0]}, {shape[1]}" + (", far off" if far else "")
            answer = answer.at_best(Origin.ASSUMED if far else Origin.EXTRAPOLATED, note)
            answer = replace(answer, floor=self.general.gemm_floor if far else 0.0)
        if not same_kernel:
            answer = answer.at_best(Origin.ASSUMED, "another precision's kernel")
        if family.table_of != self.gpu.slug:
            answer = answer.at_best(_stand_in(self.gpu, self.catalog)[1], f"standing in for {self.gpu.name}")
        elif any(why == EDITED and path not in NO_KERNEL for path, why in self.gpu.assumed.items()):
            answer = answer.at_best(Origin.EXTRAPOLATED, "on an edited chip")
        return answer


def _stand_in(gpu: Gpu, catalog: Catalog) -> tuple[str, Origin]:
    """Whose tables serve a GPU without: its die's, or its architecture's stand-in; and how sure that is at best."""
    chosen = _stand_ins(catalog)
    if gpu.slug in chosen.die:
        return chosen.die[gpu.slug], Origin.EXTRAPOLATED
    for prefix, table in chosen.architecture.items():
        if gpu.architecture.lower().startswith(prefix.lower()):
            return table, Origin.ASSUMED
    return chosen.other, Origin.ASSUMED


@lru_cache(maxsize=8)
def _stand_ins(catalog: Catalog) -> StandIn:
    path = catalog.data_file("kernels", "stand_in.yaml")
    return build(StandIn, read_mapping(path), str(path))


@lru_cache(maxsize=8)
def _general(catalog: Catalog) -> GeneralFigures:
    path = catalog.data_file("kernels", "general.yaml")
    return build(GeneralFigures, read_mapping(path), str(path))


@lru_cache(maxsize=8)
def article_figures(catalog: Catalog) -> ArticleFigures:
    """Read the MFU figures that the throughput article publishes; few predictions need them."""
    from moeplan.kernels.article import ArticleFigures

    path = catalog.data_file("kernels", "throughput_article_mfu.yaml")
    return build(ArticleFigures, read_mapping(path), str(path))
