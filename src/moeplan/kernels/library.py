"""How efficient the kernels of one GPU are: measured tables, fits, published figures; each with its origin."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moeplan.errors import Fault, InputError
from moeplan.kernels.choice import Chosen, chosen_fit
from moeplan.kernels.correction import AXES, NEAR, Corrected, Correction
from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.fit import Fit, FitError
from moeplan.kernels.forms.form import Parts, Shape
from moeplan.kernels.general import GeneralFigures
from moeplan.kernels.measured import MeasuredTable, kinds_of, measured_cold, measured_table
from moeplan.kernels.origin import Origin, worst
from moeplan.kernels.own_files import check_chip, check_own_files
from moeplan.kernels.recipe import RowSource
from moeplan.kernels.rows import rows_of
from moeplan.kernels.silicon_place import INSTALL, silicon_named
from moeplan.kernels.sources import ALL, KernelSources
from moeplan.kernels.work import AttentionWork, Work, attention_work, gemm_work, grouped_gemm_work, overlapped
from moeplan.kinds import Real
from moeplan.routing.padding import padded_rows
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import EDITED, Gpu
from moeplan.specs.loading import build, read_mapping
from moeplan.specs.precision import Format

if TYPE_CHECKING:
    from moeplan.kernels.article import ArticleFigures

BEYOND = "outside its rows"
KEPT, LARGE = 512, 4096  # answers that a library remembers, and elements of the largest array in them
NO_KERNEL = ("price", "tdp", "memory.capacity")  # figures of a GPU that no kernel's time depends on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timed:
    """A kernel's time: parts as the fit has them, all divided by `speed`, which measured rows say; and how sure it is.

    tile: rows of the smallest tile.
    """

    parts: Parts
    speed: Real
    origin: Origin
    source: str
    error: FitError | None
    tile: int

    @property
    def seconds(self) -> Real:
        """The time."""
        return self.parts.seconds / self.speed


@dataclass(frozen=True, eq=False)
class KernelLibrary:
    """Answers how efficient a kernel of a given shape is on one GPU.

    A fit says how long the kernel takes; a table of the same GPU, where there is one, corrects it to what was measured.
    hasten: every time among a fit's parameters is multiplied by it, for asking what less of them would be worth.
    cold: every layer reads its own weights and cache from memory, as in a model; else they may stay in the last cache,
    as where one kernel is measured over and over.
    """

    gpu: Gpu
    catalog: Catalog
    general: GeneralFigures
    sources: KernelSources = ALL
    hasten: float = 1.0
    cold: bool = True
    # A search walks over GPUs in pieces, and layers repeat: the same products are asked for again and again.
    _answered: dict[Hashable, Efficiency | None] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, gpu: Gpu, catalog: Catalog, sources: KernelSources = ALL) -> KernelLibrary:
        """The library of a GPU; raise InputError for files of the user's that no prediction would find."""
        if len(catalog.roots) > 1:
            check_own_files(catalog)
        return cls(gpu, catalog, _general(catalog), sources)

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

    def timed(
        self,
        form: str,
        formats: Mapping[str, str],
        shape: Shape,
        *,
        facts: Mapping[str, float] | None = None,
        engine: str = "",
        other_product: bool = False,
    ) -> Timed | None:
        """Seconds of a kernel, as the best of the allowed sources says; None where the published figures are asked.

        facts: see chosen_fit; engine: whose kernel, in place of the sources'. other_product: the second GEMM of an
        expert, for tables that time both together. Raises InputError where no allowed source answers.
        """
        if self.sources.article:
            return None
        asked = engine or self.sources.engine
        chosen = chosen_fit(self.catalog, self.gpu, form, formats, engine=asked, facts=facts)
        if chosen is None:
            self._nothing(form, formats)
            return None
        gpu = replace(self.gpu, l2=None) if self.cold else self.gpu
        answer = Timed(
            parts=(chosen.fit if self.hasten == 1.0 else chosen.fit.hastened(self.hasten)).parts(gpu, shape),
            speed=1.0,
            origin=chosen.origin,
            source="; ".join((chosen.fit.title, *chosen.notes)),
            error=chosen.error,
            tile=min(chosen.fit.kernel.tiles, default=1),
        )
        if answer.error is not None and not chosen.fit.holds(shape):
            answer = replace(answer, error=None, source=f"{answer.source}; {BEYOND}")
        measured = self._nearest_measured(chosen, form, formats, shape, other_product=other_product)
        if measured is not None:
            correction, found = measured
            elsewhere = correction.packaged and self._overridden
            own = correction.gpu == self.gpu.slug and not elsewhere
            origin = found.origin if own and found.distance == 0 else worst(found.origin, Origin.EXTRAPOLATED)
            notes = [] if own else list(chosen.notes)  # what was carried over for the fit was measured for the table
            if elsewhere:
                notes.append("measured on the packaged chip of that name")
            if found.distance > 0:
                named = ", ".join(f"{value:g}" for value in found.nearest)
                notes.append(f"shape of {', '.join(correction.axes.names)} = {named}")
            source = "; ".join((correction.title, *notes))
            answer = replace(answer, speed=found.speed, origin=origin, source=source, error=None)
        elif not self.sources.may("fitted" if chosen.origin is Origin.FITTED else "assumed"):
            self._nothing(form, formats)
            return None
        if any(why == EDITED and path not in NO_KERNEL for path, why in self.gpu.assumed.items()):
            source = f"{answer.source} (on an edited chip)"
            answer = replace(answer, origin=worst(answer.origin, Origin.EXTRAPOLATED), source=source)
        return answer

    @cached_property
    def _overridden(self) -> bool:
        return len(self.catalog.roots) > 1 and self.catalog.overrides_gpu(self.gpu.slug)

    def _nearest_measured(
        self, chosen: Chosen, form: str, formats: Mapping[str, str], shape: Shape, *, other_product: bool
    ) -> tuple[Correction, Corrected] | None:
        """The first table that has the very weight shape, else the first that has a near one."""
        near = None
        for correction in self._corrections(chosen, form, formats):
            found = correction.at(_swapped(shape) if other_product and correction.of_both else shape)
            if found.distance == 0:
                return correction, found
            if near is None and found.distance <= NEAR:
                near = correction, found
        return near

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

    def _corrections(self, chosen: Chosen, form: str, formats: Mapping[str, str]) -> Iterator[Correction]:
        """Measured rows of the GPU: the user's table, the silicon one, the packaged one that the fit comes from."""
        if form not in AXES:
            return
        fit = chosen.fit
        if self.sources.may("table") and len(self.catalog.roots) > 1:
            for gpu in chosen.measured_on:
                for kind in kinds_of(form, formats):
                    table = measured_table(self.catalog, gpu, kind)
                    if table is not None and table.own:
                        path = self.catalog.kernel_table(gpu, kind)
                        assert path is not None, "the table was read from it"
                        check_chip(self.catalog, path, gpu, table.sidecar.gpu)
                        yield _of_own_table(self.catalog, gpu, table, fit)
        own = [source for source in fit.samples if source.gpu in chosen.measured_on]
        folder = silicon_named() if self.sources.may("silicon") else None
        for source in own:
            if source.family and folder is not None:
                yield _of_rows(self.catalog, source, fit, folder)
        for source in own:
            if source.table and self.sources.may("table"):
                yield _of_rows(self.catalog, source, fit, "")

    def _nothing(self, form: str, formats: Mapping[str, str]) -> None:
        """Leave it to the published figures where assumptions are allowed, else raise InputError."""
        if self.sources.may("assumed"):
            return
        named = " ".join(formats.values())
        fix = f"allow more than --kernels {','.join(self.sources.allowed)}"
        if self.sources.may("silicon") and silicon_named() is None:
            fix += f"; silicon has no tables here: {INSTALL}"
        raise InputError("kernels", [Fault(f"{form} {named}", f"no source answers for {self.gpu.name}", fix)])


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


def _swapped(shape: Shape) -> dict[str, Real]:
    """The second product of an expert by the shape of its first, by which tables of both go."""
    return {**shape, "n": 2.0 * np.asarray(shape["k"]), "k": shape["n"]}


@lru_cache(maxsize=64)
def _of_own_table(catalog: Catalog, gpu: str, table: MeasuredTable, fit: Fit) -> Correction:
    device, shape = measured_cold(catalog.gpu(gpu), table.shape, table.seconds.size)
    return replace(Correction.of(table.title, device, shape, table.seconds, fit, table.best), packaged=False)


@lru_cache(maxsize=64)
def _of_rows(catalog: Catalog, source: RowSource, fit: Fit, folder: str) -> Correction:
    try:
        rows = rows_of(source, catalog, root=Path(folder) if folder else None)
    except InputError as error:
        if not source.family:
            raise
        fault = Fault("--kernels", "asks silicon, which cannot answer", "leave it out: --kernels table,fitted,assumed")
        raise InputError(str(error.where), [*error.faults, fault]) from error
    return Correction.of(rows.source, rows.gpu, rows.shape, rows.seconds, fit, rows.best)


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
