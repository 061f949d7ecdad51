"""The user's kernel tables and fits: that every file is one which predictions look for, by name and by folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from moeplan.errors import Fault, InputError, UnknownName, suggestion
from moeplan.kernels.choice import choices, generation
from moeplan.kernels.forms.catalog import FORMS
from moeplan.kernels.measured import KINDS
from moeplan.specs.catalog import Catalog

# Tables that no form reads: bytes on the wire, and what `moeplan bench` writes beside the kernels' own.
OTHERS: Final = (
    "low_latency_dispatch_rdma",
    "low_latency_combine_rdma",
    "low_latency_dispatch_nvlink_rdma",
    "low_latency_combine_nvlink_rdma",
    "copy",
    "dispatch",
    "combine",
)
TABLES: Final = (".csv", ".parquet")


def check_own_files(catalog: Catalog) -> None:
    """Raise InputError naming every table and fit of the user's that no prediction would ever find."""
    faults = [fault for root in catalog.roots[:-1] for fault in (*_tables(catalog, root), *_fits(catalog, root))]
    if faults:
        raise InputError("--data", faults)


def _tables(catalog: Catalog, root: Path) -> Iterator[Fault]:
    gpus = catalog.names("gpus")
    for path in sorted(path for end in TABLES for path in root.glob(f"kernels/*/*{end}")):
        where = str(path.relative_to(root))
        if path.parent.name not in gpus:
            yield Fault(
                where, f"no GPU is called {path.parent.name!r}", _near(path.parent.name, gpus, "the GPU's file")
            )
        if path.stem not in KINDS and path.stem not in OTHERS:
            yield Fault(where, "is no kind of table", _near(path.stem, (*KINDS, *OTHERS), "a kind of docs/data.md"))


def _fits(catalog: Catalog, root: Path) -> Iterator[Fault]:
    gpus = catalog.names("gpus")
    folders = {*gpus, *(generation(catalog.gpu(gpu).architecture) for gpu in gpus)}
    known = choices(catalog)
    for path in sorted(path for end in (".yaml", ".yml") for path in root.glob(f"kernels/fits/*/*{end}")):
        where = str(path.relative_to(root))
        form, _, rest = path.stem.partition(".")
        formats, _, name = rest.partition(".")
        if path.suffix == ".yml":
            yield Fault(where, "ends in .yml", "end it in .yaml")
        if path.parent.name not in folders:
            yield Fault(
                where,
                f"no chip or generation is called {path.parent.name!r}",
                _near(path.parent.name, folders, "a GPU"),
            )
        if form not in FORMS:
            yield Fault(where, f"no form is called {form!r}", _near(form, FORMS, "<form>.<formats>.<kernel>.yaml"))
        elif not name:
            yield Fault(where, "names no kernel", "name it <form>.<formats>.<kernel>.yaml")
        else:
            asked = {*known.kernels.get(form, {}), *known.instead.get(form, {})}
            if asked and formats not in asked:
                yield Fault(where, f"no {form} is asked for in {formats!r}", _near(formats, asked, "other formats"))


def _near(word: str, known: tuple[str, ...] | list[str] | set[str], else_: str) -> str:
    return suggestion(word, known) or f"name it after {else_}"


def check_chip(catalog: Catalog, path: Path, folder: str, named: str) -> None:
    """Refuse a table whose sidecar names another chip of the catalog than the folder that it lies in."""
    try:
        other = catalog.path("gpus", named).stem
    except UnknownName:
        return  # a text for people
    if other != folder:
        fix = f"move it to kernels/{other}, or write gpu: {folder}"
        raise InputError(str(path), [Fault("gpu", f"is {named}, in the folder of {folder}", fix)])
