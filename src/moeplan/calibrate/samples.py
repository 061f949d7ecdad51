"""Find the rows that a file of fits names."""

from __future__ import annotations

from pathlib import Path

from moeplan.calibrate.sample import Sample
from moeplan.calibrate.readers import columns_of
from moeplan.errors import Fault, InputError
from moeplan.kernels.fit import SampleSource
from moeplan.kernels.silicon import silicon_root, silicon_table
from moeplan.kernels.table import read_table
from moeplan.specs.catalog import Catalog


def sample_of(source: SampleSource, catalog: Catalog, *, root: Path | None = None) -> Sample:
    """Read the rows that a source names; raise InputError where they are not there."""
    gpu = catalog.gpu(source.gpu)
    if source.family:
        table = silicon_table(
            root or silicon_root(),
            system=source.system,
            family=source.family,
            engine=source.engine,
            version=source.version,
            kernel_source=source.kernels or None,
            where={name: int(value) if value.isdigit() else value for name, value in source.where.items()},
        )
        table = table.rows(table.fit)
        found = Sample(gpu=gpu, shape=columns_of(table), seconds=table["seconds"], source=table.source)
    else:
        found = _of_table(source, catalog)
    kept = found.within(source.limits)
    if not len(kept):
        raise InputError("calibrate", [Fault(source.gpu, f"no row of {found.source} is left", "widen the limits")])
    return kept


def _of_table(source: SampleSource, catalog: Catalog) -> Sample:
    from moeplan.kernels.shape_family import columns_of as table_columns

    path = catalog.kernel_table(source.gpu, source.table)
    if path is None:
        raise InputError("calibrate", [Fault(source.table, f"{source.gpu} has no such table", "see data/kernels")])
    import numpy as np

    table = read_table(path, (*table_columns(source.table), "seconds"))
    shape = {name: np.array([row[name] for row in table.rows]) for name in table_columns(source.table)}
    seconds = np.array([row["seconds"] for row in table.rows])
    return Sample(gpu=catalog.gpu(source.gpu), shape=shape, seconds=seconds, source=table.sidecar.title)
