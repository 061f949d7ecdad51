"""A fit to one's own tables, with its error on rows left out before and after."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.calibrate.fitting import TRUST, error_of, fit_parameters
from moeplan.calibrate.refit import fit_file
from moeplan.errors import Fault, InputError, UnknownName, together
from moeplan.kernels.choice import Chosen, chosen_fit
from moeplan.kernels.fit import FitError, FitFile
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.measured import TableKind, kind_named, measured_cold, table_at
from moeplan.kernels.recipe import Recipe
from moeplan.kernels.rows import Rows, errors, group_numbers
from moeplan.specs.catalog import Catalog

HELD_OUT: Final = 0.25
SEED: Final = 1
SUSPECT: Final = 0.5


class Calibration(Struct, frozen=True, kw_only=True):
    """One GPU's tables of one kernel: errors on the rows left out, of what answered before and of the new fit.

    before is None where no fit answered. file: the fit to all rows, ready to be written. ratio: of the speed that was
    measured to the one expected before, the median of all rows.
    """

    gpu: str
    kind: str
    rows: int
    held_out: int
    before_title: str
    before: FitError | None
    after: FitError
    file: FitFile
    ratio: float | None = None

    @property
    def suspect(self) -> bool:
        """Whether it ran at less than half the expected speed: a fault of the machine sooner than a new efficiency."""
        return self.ratio is not None and self.ratio < SUSPECT

    @property
    def worse(self) -> bool:
        """Whether the rows left out say that the new fit is further off than what answered before."""
        return self.before is not None and self.after.median > self.before.median


def calibrate_tables(catalog: Catalog, paths: Sequence[Path]) -> list[Calibration]:
    """Fit every kind of table on every GPU; raise InputError naming every file that is no table.

    A table's name says its kind (gemm_fp8.csv), its folder or its sidecar the GPU. A quarter of the whole shapes is
    left out; new parameters start from those that answered before and stay there where rows do not say otherwise.
    """
    samples: dict[tuple[str, str], list[Rows]] = {}
    paths = list({path.resolve(): path for path in paths}.values())
    together("calibrate", *(partial(_sample, catalog, path) for path in paths))
    for kind, sample in (_sample(catalog, path) for path in paths):
        samples.setdefault((sample.gpu.slug, kind), []).append(sample)
    return [_calibrated(catalog, gpu, kind, found) for (gpu, kind), found in samples.items()]


def _sample(catalog: Catalog, path: Path) -> tuple[str, Rows]:
    """The kind and the rows of a file, which every fault names."""
    try:
        return _read(catalog, path)
    except InputError as error:
        named = [
            fault if str(path) in fault.path else replace(fault, path=f"{path}, {fault.path}") for fault in error.faults
        ]
        raise InputError(str(path), named) from error


def _read(catalog: Catalog, path: Path) -> tuple[str, Rows]:
    kind = kind_named(path.stem)
    if not kind.usual:
        fix = "no prediction runs this kernel yet"
        raise InputError(str(path), [Fault("kind", f"{path.stem} is not fitted to", fix)])
    table = table_at(path, path.stem)
    gpu = _gpu(catalog, path, table.sidecar.gpu)
    assert set(table.shape) == set(kind.columns), "a table is read with its columns"
    device, shape = measured_cold(catalog.gpu(gpu), table.shape, table.seconds.size)
    return path.stem, Rows(gpu=device, shape=shape, seconds=table.seconds, source=table.sidecar.title)


def _gpu(catalog: Catalog, path: Path, named: str) -> str:
    """The GPU that a table is of: its folder's name, else the sidecar's word for it."""
    for name in (path.resolve().parent.name, named):
        try:
            return catalog.path("gpus", name).stem
        except UnknownName:
            continue
    fix = "put the table into a folder kernels/<gpu>/, or name a known GPU as `gpu` in its sidecar"
    raise InputError(str(path), [Fault("gpu", f"{named!r} is no GPU of the catalog", fix)])


def _calibrated(catalog: Catalog, gpu: str, name: str, samples: Sequence[Rows]) -> Calibration:
    kind = kind_named(name)
    form = form_named(kind.form)
    before = chosen_fit(catalog, catalog.gpu(gpu), kind.form, kind.formats)
    kernel = kind.kernel if before is None else before.fit.kernel
    start = None if before is None else before.fit.parameters
    seen, unseen = _halves(samples, form.whole)
    found = fit_parameters(form, kernel, seen, start=start, trust=TRUST)
    after = error_of([errors(form, kernel, sample, found) for sample in unseen])
    whole = fit_parameters(form, kernel, samples, start=start, trust=TRUST)
    titles = " and ".join(dict.fromkeys(sample.source for sample in samples))
    rows = sum(map(len, samples))
    # Where this chip's own rows were known before, they go on to correct: a fit does not make a measurement worse.
    known = () if before is None else tuple(source for source in before.fit.samples if source.gpu == gpu)
    recipe = Recipe(
        title=f"a fit to {rows} rows of {titles}",
        form=kind.form,
        formats=dict(kind.formats),
        source=titles,
        samples=known,
        tiles=kernel.tiles,
    )
    return Calibration(
        gpu=gpu,
        kind=name,
        rows=rows,
        held_out=sum(map(len, unseen)),
        before_title="" if before is None else "; ".join((before.fit.title, *before.notes)),
        before=None if before is None else _error_before(before, unseen),
        after=after,
        file=fit_file(recipe, form, (gpu,), samples, whole, after, ()),
        ratio=None if before is None else _ratio(before, samples),
    )


def _ratio(before: Chosen, samples: Sequence[Rows]) -> float:
    fit = before.fit
    return float(
        np.median(np.concatenate([errors(fit.form, fit.kernel, each, fit.parameters) + 1.0 for each in samples]))
    )


def _error_before(before: Chosen, unseen: Sequence[Rows]) -> FitError:
    fit = before.fit
    return error_of([errors(fit.form, fit.kernel, sample, fit.parameters) for sample in unseen])


def _halves(samples: Sequence[Rows], whole: Sequence[str]) -> tuple[list[Rows], list[Rows]]:
    """Rows to fit to and rows left out, whole shapes on one side."""
    seen, unseen = [], []
    for sample in samples:
        numbers = group_numbers(sample, whole)
        count = int(numbers.max()) + 1
        if count < 4:
            fix = "measure at least four shapes, so that one can be left out"
            raise InputError("calibrate", [Fault(sample.source, f"holds {count} shape{'s' * (count != 1)}", fix)])
        out = np.random.default_rng(SEED).permutation(count)[: max(1, round(HELD_OUT * count))]
        left = np.isin(numbers, out)
        seen.append(sample.where(~left))
        unseen.append(sample.where(left))
    return seen, unseen


def file_name(kind: TableKind, gpu: str, name: str) -> str:
    """Where a fit is looked for under a data folder."""
    return f"kernels/fits/{gpu}/{kind.form}.{'-'.join(kind.formats.values())}.{name}.yaml"
