"""How efficient the kernels of one GPU are: measured tables, fits, published figures; each with its origin."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.forms.form import Shape
from moeplan.kernels.general import general_figures
from moeplan.kernels.origin import Origin
from moeplan.kernels.own_files import check_own_files
from moeplan.kernels.sources import ALL, KernelSources
from moeplan.kernels.times import KernelTimes, Timed
from moeplan.kernels.work import AttentionWork, Work, attention_work, gemm_work, grouped_gemm_work, overlapped
from moeplan.kinds import Real
from moeplan.routing.padding import padded_rows
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu
from moeplan.specs.loading import build, read_mapping
from moeplan.specs.precision import Format

if TYPE_CHECKING:
    from moeplan.kernels.article import ArticleFigures

KEPT, LARGE = 512, 4096  # answers that a library remembers, and elements of the largest array in them


class KernelLibrary(KernelTimes, frozen=True, eq=False):
    """Answers how efficient a kernel of a given shape is on one GPU: its time as fractions of the chip's peaks."""

    @classmethod
    def of(cls, gpu: Gpu, catalog: Catalog, sources: KernelSources = ALL) -> KernelLibrary:
        """The library of a GPU; raise InputError for files of the user's that no prediction would find."""
        if len(catalog.roots) > 1:
            check_own_files(catalog)
        return cls(gpu, catalog, general_figures(catalog), sources)

    @cached_property
    def _answered(self) -> dict[Hashable, Efficiency | None]:
        """A search walks over GPUs in pieces, and layers repeat: the same products are asked for again and again."""
        return {}

    @property
    def article(self) -> ArticleFigures:
        """The published figures."""
        return article_figures(self.catalog)

    def gemm(self, *, m: Real, n: int, k: int, weights: Format, copies: int = 1) -> Efficiency:
        """Efficiency of a dense or batched GEMM; m may be an array."""
        work = gemm_work(m=m, n=n, k=k, weights=weights, copies=copies)
        shape: dict[str, Real] = {"m": m, "n": float(n), "k": float(k)}
        if self.cold:
            shape["converted"] = 1.0  # in a step, quantising is an operator of its own
        form = "gemm"
        if copies > 1:
            form, shape = "batched_gemm", {**shape, "copies": float(copies)}
        found = self._found(form, {"weights": weights.name}, shape, work, weights.computes_in)
        if found is None:
            return self.article.gemm(m=m, n=n, k=k)
        return found

    def grouped_gemm(
        self,
        *,
        rows_per_group: Real,
        groups: Real,
        n: int,
        k: int,
        weights: Format,
        down: bool,
        slots: Real | None = None,
        exact: bool = False,
    ) -> Efficiency:
        """Efficiency of a grouped GEMM over `groups` groups of `rows_per_group` rows each, out of `slots` on the rank.

        exact: every group has just so many rows, as in a benchmark; else they scatter around them, as routing makes it.
        """
        m, active = np.maximum(rows_per_group, 1.0), np.maximum(groups, 1.0)
        work = grouped_gemm_work(rows=rows_per_group * groups, groups=groups, n=n, k=k, weights=weights)
        shape: dict[str, Real] = {"groups": active, "m": m, "n": float(n), "k": float(k)}
        if slots is not None:
            shape |= {"slots": slots, "idle": np.maximum(slots - active, 0.0)}
        if not exact:
            shape["scattered"] = 1.0
        found = self._found(
            "grouped_gemm", {"weights": weights.name}, shape, work, weights.computes_in, other_product=down
        )
        if found is None:
            return self.article.grouped_gemm(rows=rows_per_group, down=down)
        return found

    def fused_moe(
        self,
        work: Work,
        *,
        tokens: Real,
        rows: Real,
        active: Real,
        experts: Real,
        hidden: int,
        width: int,
        top_k: int,
        ep: Real,
        tp: int,
        weights: Format,
    ) -> Efficiency:
        """Efficiency of a fused mixture of experts: `rows` over `active` experts of `tokens` that entered the group."""
        shape: dict[str, Real] = {"tokens": tokens, "hidden": float(hidden), "inter": float(width), "gated": 2.0}
        shape |= {"top_k": float(top_k), "experts": experts, "tp": float(tp), "ep": ep}
        shape |= {"active": np.maximum(active, 1.0), "rows": np.maximum(rows, 1.0)}
        found = self._found("moe", {"weights": weights.name}, shape, work, weights.computes_in)
        if found is None:
            return self.article.grouped_gemm(rows=rows / np.maximum(active, 1.0), down=False)
        return found

    def mla(self, *, batch: Real, q_len: Real, context: Real, heads: int, core: Format, cache: Format) -> Efficiency:
        """Efficiency of absorbed MLA decode."""
        from moeplan.kernels.ideal import MLA_KEY, MLA_VALUE

        work = attention_work(
            batch=batch,
            q_len=q_len,
            context=context,
            heads=heads,
            qk_dim=MLA_KEY,
            v_dim=MLA_VALUE,
            cache_elements=MLA_KEY,
            cache=cache,
        )
        shape = {"batch": batch, "heads": float(heads), "q_len": q_len, "context": context}
        formats = {"core": core.name, "cache": cache.name}
        found = self._found("mla_decode", formats, shape, work, core.computes_in)
        if found is None:
            return self.article.mla(heads_times_q=heads * q_len, h20=self.gpu.slug in ("h20", "h20-141"))
        return found

    def gqa(
        self,
        *,
        batch: Real,
        q_len: Real,
        context: Real,
        heads: int,
        kv_heads: int,
        head_dim: int,
        core: Format,
        cache: Format,
    ) -> Efficiency:
        """Efficiency of grouped-query decode attention."""
        work = attention_work(
            batch=batch,
            q_len=q_len,
            context=context,
            heads=heads,
            qk_dim=head_dim,
            v_dim=head_dim,
            cache_elements=2 * kv_heads * head_dim,
            cache=cache,
        )
        shape = {"batch": batch, "q_len": q_len, "context": context}
        shape |= {"heads": float(heads), "kv_heads": float(kv_heads), "head_dim": float(head_dim)}
        formats = {"core": core.name, "cache": cache.name}
        facts = {"head_dim": float(head_dim), "group": heads / kv_heads}
        found = self._found("gqa_decode", formats, shape, work, core.computes_in, facts=facts)
        return self._assumed_gqa() if found is None else found

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

    def _assumed_gqa(self) -> Efficiency:
        figures = self.general
        return Efficiency(
            compute=figures.gqa_compute_share,
            memory=figures.gqa_memory_share,
            floor=figures.gqa_floor,
            origin=Origin.ASSUMED,
            source=figures.gqa_source,
        )

    def _found(
        self,
        form: str,
        formats: Mapping[str, str],
        shape: Shape,
        work: Work | AttentionWork,
        precision: str,
        *,
        facts: Mapping[str, float] | None = None,
        other_product: bool = False,
    ) -> Efficiency | None:
        """The same as fractions of the peaks."""
        if form == "grouped_gemm":  # on as many axes as the search has
            return self._share(form, formats, shape, work, precision, facts, other_product=other_product)
        key = _key(form, formats, shape)
        if key is None:
            return self._share(form, formats, shape, work, precision, facts, other_product=other_product)
        if key not in self._answered:
            if len(self._answered) >= KEPT:
                self._answered.clear()
            self._answered[key] = self._share(form, formats, shape, work, precision, facts, other_product=False)
        return self._answered[key]

    def _share(
        self,
        form: str,
        formats: Mapping[str, str],
        shape: Shape,
        work: Work | AttentionWork,
        precision: str,
        facts: Mapping[str, float] | None,
        *,
        other_product: bool,
    ) -> Efficiency | None:
        timed = self.timed(form, formats, shape, facts=facts, other_product=other_product)
        if timed is None:
            return None
        padding = padded_rows(shape["m"], timed.tile) / shape["m"] if form == "gemm" else timed.parts.padding
        return _efficiency(timed, work, padding, self.gpu, precision)


def _efficiency(timed: Timed, work: Work | AttentionWork, padding: Real, gpu: Gpu, precision: str) -> Efficiency:
    """The fractions of the peaks that give back the parts of a time: at the peak over as predicted.

    A step's kernel reads cold memory: it is no faster than the roofline, whatever a warm table or a fit says.
    """
    if isinstance(work, AttentionWork):
        peak = gpu.peak(precision)
        perfect = overlapped(work.score_flops / peak, work.value_flops / peak, work.vector_ops / gpu.vector_rate, gpu)
    else:
        perfect = work.flops / gpu.peak(precision)
    traffic = work.bytes_ / gpu.memory.bandwidth
    seconds = np.maximum(timed.seconds, np.maximum(perfect, traffic))
    padding = np.clip(padding, 1.0, seconds / perfect)
    compute = np.clip(timed.parts.compute / timed.speed, perfect * padding, seconds)
    memory = np.clip(timed.parts.memory / timed.speed, traffic, seconds)
    share = perfect * padding / compute
    return Efficiency(
        compute=share,
        vector=share if isinstance(work, AttentionWork) else 1.0,
        memory=traffic / memory,
        floor=(seconds - np.maximum(compute, memory)),
        padding=padding,
        origin=timed.origin,
        source=timed.source,
        error=timed.error,
    )


def _key(form: str, formats: Mapping[str, str], shape: Shape) -> Hashable | None:
    """What an answer depends on; None where an array is too large to keep."""
    parts: list[Hashable] = [form, *formats.values()]
    for name, value in shape.items():
        if isinstance(value, np.ndarray):
            if value.size > LARGE:
                return None
            parts.append((name, value.shape, value.tobytes()))
        else:
            parts.append((name, float(value)))
    return tuple(parts)


@lru_cache(maxsize=8)
def article_figures(catalog: Catalog) -> ArticleFigures:
    """Read the MFU figures that the throughput article publishes; few predictions need them."""
    from moeplan.kernels.article import ArticleFigures

    path = catalog.data_file("kernels", "throughput_article_mfu.yaml")
    return build(ArticleFigures, read_mapping(path), str(path))
