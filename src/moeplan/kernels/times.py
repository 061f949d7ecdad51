"""How long the kernels of one GPU take: a fit's answer, corrected by measured tables; each with its origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import Fault, InputError
from moeplan.kernels.choice import Chosen, chosen_fit
from moeplan.kernels.correction import AXES, Corrected, Correction
from moeplan.kernels.fit import Fit, FitError
from moeplan.kernels.forms.form import Parts, Shape
from moeplan.kernels.general import GeneralFigures
from moeplan.kernels.measured import MeasuredTable, kinds_of, measured_cold, measured_table
from moeplan.kernels.origin import Origin, worst
from moeplan.kernels.own_files import check_chip
from moeplan.kernels.recipe import RowSource
from moeplan.kernels.rows import rows_of
from moeplan.kernels.silicon_place import INSTALL, silicon_named
from moeplan.kernels.sources import ALL, KernelSources
from moeplan.kinds import Array, Real
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import EDITED, Gpu

BEYOND = "outside its rows"
NO_KERNEL = ("price", "tdp", "memory.capacity")  # figures of a GPU that no kernel's time depends on


class Timed(Struct, frozen=True, kw_only=True, eq=False):
    """A kernel's time: parts as the fit has them, all divided by `speed`, which measured rows say; and how sure it is.

    tile: rows of the smallest tile. kernel: the fit's, as choices.yaml calls it. beyond: doublings (of ranks, of an
    all-to-all) that the shape lies beyond the rows behind the fit; `error` has grown with them.
    """

    parts: Parts
    speed: Real
    origin: Origin
    source: str
    error: FitError | None
    tile: int
    kernel: str = ""
    beyond: float = 0.0

    @property
    def seconds(self) -> Real:
        """The time."""
        return self.parts.seconds / self.speed

    @property
    def network(self) -> Real:
        """What links and NICs take of it."""
        return self.parts.network / self.speed

    @property
    def floor(self) -> Real:
        """What neither arithmetic nor traffic takes of it."""
        return self.parts.floor / self.speed


class KernelTimes(Struct, frozen=True, eq=False, dict=True):
    """Answers how long a kernel of a given shape takes on one GPU.

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

    def timed(
        self,
        form: str,
        formats: Mapping[str, str],
        shape: Shape,
        *,
        facts: Mapping[str, float] | None = None,
        engine: str = "",
        exact: bool = False,
        other_product: bool = False,
    ) -> Timed | None:
        """Seconds of a kernel, as the best of the allowed sources says; None where the published figures are asked.

        facts: see chosen_fit; engine: whose kernel, in place of the sources'; exact: that one or none. other_product:
        the second GEMM of an expert, for tables that time both together. Raises InputError where no allowed source
        answers.
        """
        if self.sources.article:
            return None
        asked = engine or self.sources.engine
        chosen = chosen_fit(self.catalog, self.gpu, form, formats, engine=asked, facts=facts, exact=exact)
        if chosen is None:
            self._nothing(form, formats)
            return None
        answer = self._fitted(chosen, shape)
        measured = self._nearest_measured(chosen, form, formats, shape, other_product=other_product)
        if measured is not None:
            answer = self._corrected(answer, chosen, *measured)
        elif not self.sources.may("fitted" if chosen.origin is Origin.FITTED else "assumed"):
            self._nothing(form, formats)
            return None
        return self._as_edited(answer, on_wire=bool(chosen.fit.form.along))

    def timed_along(
        self,
        form: str,
        formats: Mapping[str, str],
        shape: Shape,
        *,
        facts: Mapping[str, float],
        engine: str,
        exact: bool,
    ) -> Timed | None:
        """The same where the column that the form's tables go by, the ranks, is an array on an axis of its own.

        The fit answers for all at once; what tables add is asked size by size. One origin, the worst, stands for all.
        """
        if self.sources.article:
            return None
        chosen = chosen_fit(self.catalog, self.gpu, form, formats, engine=engine, facts=facts, exact=exact)
        if chosen is None:
            self._nothing(form, formats)
            return None
        whole = self._fitted(chosen, shape)
        full = np.broadcast_shapes(*(np.shape(value) for value in shape.values()))
        speed: Array | None = None
        columns = {name: _with_axes(value, len(full)) for name, value in shape.items()}
        along = chosen.fit.form.along
        axis = int(np.argmax(np.shape(columns[along])))
        # Ranks are a column that a table must hold as it is: other sizes are the fit's alone.
        tables = self._corrections(chosen, form, formats)
        known = frozenset().union(*(table.values(along) for table in tables))
        answers = [whole]
        sizes = np.ravel(columns[along]).tolist()
        for index, size in enumerate(sizes):
            if size not in known:
                continue
            own = {name: _taken(value, index, axis) for name, value in columns.items()}
            measured = self._nearest_measured(chosen, form, formats, own, other_product=False)
            if measured is not None:
                answers.append(self._corrected(whole, chosen, *measured))
                place = (slice(None),) * axis + (slice(index, index + 1),)
                speed = np.ones(full) if speed is None else speed
                speed[place] = measured[1].speed
        fitted = len(answers) <= len(sizes)
        answers = answers if fitted else answers[1:]
        if fitted and not self.sources.may("fitted" if chosen.origin is Origin.FITTED else "assumed"):
            self._nothing(form, formats)
            return None
        found = replace(
            whole,
            speed=1.0 if speed is None else speed,
            origin=worst(*(answer.origin for answer in answers)),
            source=" | ".join(dict.fromkeys(answer.source for answer in answers)),
            error=whole.error if fitted else None,
            beyond=max(answer.beyond for answer in answers),
        )
        return self._as_edited(found, on_wire=True)

    def _as_edited(self, answer: Timed, *, on_wire: bool) -> Timed:
        """On a chip edited by hand, nothing is sure that its figures reach; a collective's time only by its link."""
        paths = [path for path, why in self.gpu.assumed.items() if why == EDITED and path not in NO_KERNEL]
        if not any(path.startswith("scale_up") or not on_wire for path in paths):
            return answer
        source = f"{answer.source} (on an edited chip)"
        return replace(answer, origin=worst(answer.origin, Origin.EXTRAPOLATED), source=source)

    def _fitted(self, chosen: Chosen, shape: Shape) -> Timed:
        """What the fit says; its error grows with the doublings that a question lies beyond the rows behind it."""
        fit = chosen.fit
        gpu = replace(self.gpu, l2=None) if self.cold else self.gpu
        beyond = fit.doublings_beyond(shape)
        error, notes = chosen.error, list(chosen.notes)
        if error is not None and not fit.holds(shape):
            error = None
            notes.append(BEYOND)
        elif beyond > 0:
            error = None if error is None else error.widened(beyond)
            notes.append(f"extrapolated by {beyond:.2g} doublings of {fit.form.along}")
        return Timed(
            parts=(fit if self.hasten == 1.0 else fit.hastened(self.hasten)).parts(gpu, shape),
            speed=1.0,
            origin=chosen.origin,
            source="; ".join((fit.title, *notes)),
            error=error,
            tile=min(fit.kernel.tiles, default=1),
            kernel=chosen.kernel,
            beyond=beyond,
        )

    def _corrected(self, answer: Timed, chosen: Chosen, correction: Correction, found: Corrected) -> Timed:
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
        return replace(answer, speed=found.speed, origin=origin, source=source, error=None, beyond=0.0)

    @cached_property
    def _overridden(self) -> bool:
        return len(self.catalog.roots) > 1 and self.catalog.overrides_gpu(self.gpu.slug)

    def _nearest_measured(
        self, chosen: Chosen, form: str, formats: Mapping[str, str], shape: Shape, *, other_product: bool
    ) -> tuple[Correction, Corrected] | None:
        """The first table that has the very weight shape, else the first that has a near one."""
        near = None
        for correction in self._corrections(chosen, form, formats):
            asked = _swapped(shape) if other_product and correction.of_both else shape
            _, distance = correction.nearest(asked)
            if distance == 0:
                return correction, correction.at(asked)
            if near is None and distance <= correction.axes.near:
                near = correction, correction.at(asked)
        return near

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
            if not source.family and self.sources.may("table"):
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


def _with_axes(value: Real, axes: int) -> Real:
    """A column with as many axes as all of them together; a number stays one."""
    if np.ndim(value) == 0:
        return value
    found: Real = np.reshape(value, (1,) * (axes - np.ndim(value)) + np.shape(value))
    return found


def _taken(value: Real, index: int, axis: int) -> Real:
    """One size's part of a column; columns that do not go along the sizes are whole."""
    if np.ndim(value) == 0 or np.shape(value)[axis] == 1:
        return value
    part: Real = np.take(value, [index], axis=axis)
    return part


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
