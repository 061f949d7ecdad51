"""Measured tables of the data folders: which forms they belong to, and their rows as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import UnknownName
from moeplan.kernels.forms.form import Kernel, Shape
from moeplan.kernels.ideal import ideal_seconds
from moeplan.kernels.origin import Origin
from moeplan.kernels.table import Sidecar, read_table
from moeplan.kinds import Array
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import weight_format


class TableKind(Struct, frozen=True, kw_only=True, eq=False):
    """A kind of table: the form that stands for its kernel, formats by role, and the columns beside `seconds`."""

    form: str
    formats: Mapping[str, str]
    columns: tuple[str, ...]
    usual: bool = True  # of several of one form, the one that a decode step runs

    @property
    def kernel(self) -> Kernel:
        """The formats as a form takes them."""
        return Kernel(formats={role: weight_format(name) for role, name in self.formats.items()})


_GEMM = ("m", "n", "k")
_BATCHED = ("copies", "m", "n", "k")
_GROUPED = ("groups", "m", "n", "k")
_MLA = ("batch", "heads", "q_len", "context")
_GQA = ("batch", "heads", "kv_heads", "head_dim", "q_len", "context")
KINDS: Final[dict[str, TableKind]] = {
    "gemm_fp8": TableKind(form="gemm", formats={"weights": "fp8_block"}, columns=_GEMM),
    "gemm_bf16": TableKind(form="gemm", formats={"weights": "bf16"}, columns=_GEMM),
    "gemm_nvfp4": TableKind(form="gemm", formats={"weights": "nvfp4"}, columns=_GEMM),
    "gemm_batched_bf16": TableKind(form="batched_gemm", formats={"weights": "bf16"}, columns=_BATCHED),
    "grouped_gemm_fp8": TableKind(form="grouped_gemm", formats={"weights": "fp8_block"}, columns=_GROUPED),
    "grouped_gemm_bf16": TableKind(form="grouped_gemm", formats={"weights": "bf16"}, columns=_GROUPED),
    "grouped_gemm_contiguous_fp8": TableKind(
        form="grouped_gemm", formats={"weights": "fp8_block"}, columns=_GROUPED, usual=False
    ),
    "mla_decode_bf16": TableKind(form="mla_decode", formats={"core": "bf16", "cache": "bf16"}, columns=_MLA),
    "mla_decode_fp8": TableKind(form="mla_decode", formats={"core": "fp8", "cache": "fp8"}, columns=_MLA),
    "mla_decode_bf16_fp8": TableKind(form="mla_decode", formats={"core": "bf16", "cache": "fp8"}, columns=_MLA),
    "gqa_decode_bf16": TableKind(form="gqa_decode", formats={"core": "bf16", "cache": "bf16"}, columns=_GQA),
    "gqa_decode_fp8": TableKind(form="gqa_decode", formats={"core": "bf16", "cache": "fp8"}, columns=_GQA),
    "gqa_prefill_bf16": TableKind(form="gqa_prefill", formats={"core": "bf16", "cache": "bf16"}, columns=_GQA),
    "mla_prefill_bf16": TableKind(form="mla_prefill", formats={"core": "bf16", "cache": "bf16"}, columns=_MLA),
}


class MeasuredTable(Struct, frozen=True, kw_only=True, eq=False):
    """Columns of a shape and seconds, as long as each other; never faster than the sidecar's cold share allows.

    title, best: what to print beside a row, and how sure it is.
    """

    sidecar: Sidecar
    shape: Shape
    seconds: Array
    own: bool  # the user's, not the packaged one

    @property
    def title(self) -> str:
        """The sidecar's, and the cap that makes it an assumption."""
        share = self.sidecar.cold_share
        return self.sidecar.title if share is None else f"{self.sidecar.title}, at most {share:g} of the roofline"

    @property
    def best(self) -> Origin:
        """A capped table is an assumption."""
        return Origin.MEASURED if self.sidecar.cold_share is None else Origin.ASSUMED


def measured_cold(gpu: Gpu, shape: Shape, rows: int) -> tuple[Gpu, dict[str, Array]]:
    """The chip and the columns, as a form takes them, for rows measured as in a step, as `moeplan bench` does.

    No last-level cache holds what a kernel reads, activations come in the weights' format.
    """
    columns = {**shape, "converted": np.ones(rows)}
    return replace(gpu, l2=None), {name: np.asarray(values, dtype=float) for name, values in columns.items()}


def kind_named(name: str) -> TableKind:
    """Return a kind of table; raise UnknownName."""
    if name not in KINDS:
        raise UnknownName("kernel table", name, KINDS)
    return KINDS[name]


def kinds_of(form: str, formats: Mapping[str, str]) -> Iterator[str]:
    """The kinds of table that a decode step's kernel of that form and formats is looked up in."""
    for name, kind in KINDS.items():
        if kind.form == form and dict(kind.formats) == dict(formats) and kind.usual:
            yield name


def measured_table(catalog: Catalog, gpu: str, name: str) -> MeasuredTable | None:
    """Read a GPU's table of a kind, the user's before the packaged one; None where there is none."""
    path = catalog.kernel_table(gpu, name)
    return None if path is None else _read(catalog, gpu, name, path, path.stat().st_mtime_ns)


def table_at(path: Path, name: str) -> MeasuredTable:
    """Read a table of a kind from anywhere; raise InputError."""
    kind = kind_named(name)
    table = read_table(path, (*kind.columns, "seconds"))
    shape = {column: np.array([row[column] for row in table.rows]) for column in kind.columns}
    seconds = np.array([row["seconds"] for row in table.rows])
    return MeasuredTable(sidecar=table.sidecar, shape=shape, seconds=seconds, own=True)


@lru_cache(maxsize=64)
def _read(catalog: Catalog, gpu: str, name: str, path: Path, _changed: int) -> MeasuredTable:
    found = table_at(path, name)
    if found.sidecar.cold_share is not None:
        kind = kind_named(name)
        fastest = ideal_seconds(kind.form, catalog.gpu(gpu), kind.kernel, found.shape) / found.sidecar.cold_share
        found = replace(found, seconds=np.maximum(found.seconds, fastest))
    return replace(found, own=len(catalog.roots) > 1 and catalog.roots[-1] not in path.parents)
