"""Measured rows of one kernel on one GPU, as the columns that a form reads: from a table or from a silicon one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kernels.forms.form import Form, Kernel, Parameters
from moeplan.kernels.measured import measured_table
from moeplan.kernels.origin import Origin
from moeplan.kernels.recipe import RowSource
from moeplan.kinds import Array
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu


class Rows(Struct, frozen=True, kw_only=True, eq=False):
    """Columns of a shape, each as long as `seconds`; source: what to print beside them; best: how sure a row is."""

    gpu: Gpu
    shape: dict[str, Array]
    seconds: Array
    source: str
    best: Origin = Origin.MEASURED

    def __len__(self) -> int:
        return self.seconds.size

    def where(self, mask: NDArray[np.bool_] | NDArray[np.intp]) -> Rows:
        """Some of the rows."""
        shape = {name: values[mask] for name, values in self.shape.items()}
        return replace(self, shape=shape, seconds=self.seconds[mask])

    def within(self, limits: dict[str, tuple[float, ...]]) -> Rows:
        """The rows whose columns lie between two values, both taken in."""
        mask = np.ones(len(self), dtype=np.bool_)
        for name, (low, high) in limits.items():
            mask &= (self.shape[name] >= low) & (self.shape[name] <= high)
        return self.where(mask)

    def thinned(self, count: int, seed: int) -> Rows:
        """At most `count` rows, drawn without order but the same ones each time."""
        if len(self) <= count:
            return self
        return self.where(np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False)))


def rows_of(source: RowSource, catalog: Catalog, *, root: Path | None = None) -> Rows:
    """Read the rows that a source names; raise InputError where they are not there."""
    if source.observations:
        found = _of_observations(source, catalog)
    else:
        found = _of_table(source, catalog) if source.table else _of_silicon(source, catalog, root)
    kept = found.within(source.limits)
    if not len(kept):
        raise InputError("calibrate", [Fault(source.gpu, f"no row of {found.source} is left", "widen the limits")])
    return kept


def group_numbers(rows: Rows, whole: Sequence[str]) -> NDArray[np.intp]:
    """A number per row, the same for rows of one whole shape."""
    table = np.stack([rows.shape[name] for name in whole], axis=-1)
    _, numbers = np.unique(table, axis=0, return_inverse=True)
    return np.asarray(numbers).ravel().astype(np.intp)


def errors(form: Form, kernel: Kernel, rows: Rows, parameters: Parameters) -> Array:
    """Predicted over measured, less 1, of every row."""
    found: Array = form.parts(rows.gpu, kernel, rows.shape, parameters).seconds / rows.seconds - 1.0
    return found


def _of_silicon(source: RowSource, catalog: Catalog, root: Path | None) -> Rows:
    from moeplan.kernels.silicon import silicon_table
    from moeplan.kernels.silicon_columns import columns_of
    from moeplan.kernels.silicon_place import silicon_root

    table = silicon_table(
        silicon_root(root),
        system=source.system,
        family=source.family,
        engine=source.engine,
        version=source.version,
        kernel_source=source.kernels or None,
        where={name: int(value) if value.isdigit() else value for name, value in source.where.items()},
    )
    table = table.rows(table.fit)
    shape = columns_of(table)
    seconds = shape.pop("seconds") if "seconds" in shape else table["seconds"]
    return Rows(gpu=catalog.packaged.gpu(source.gpu), shape=shape, seconds=seconds, source=table.source)


def _of_table(source: RowSource, catalog: Catalog) -> Rows:
    catalog = catalog.packaged  # a recipe names packaged tables
    table = measured_table(catalog, source.gpu, source.table)
    if table is None:
        raise InputError("calibrate", [Fault(source.table, f"{source.gpu} has no such table", "see data/kernels")])
    shape = {name: np.asarray(values) for name, values in table.shape.items()}
    return Rows(gpu=catalog.gpu(source.gpu), shape=shape, seconds=table.seconds, source=table.title, best=table.best)


def _of_observations(source: RowSource, catalog: Catalog) -> Rows:
    from moeplan.kernels.observed import observed

    catalog = catalog.packaged
    shape, seconds, title = observed(catalog, source.observations, {"gpu": source.gpu, **source.where})
    return Rows(gpu=catalog.gpu(source.gpu), shape=shape, seconds=seconds, source=title)
