"""The measured kernel tables of the package aiconfigurator-core, read lazily as arrays in SI units.

The package is found without being imported, or its `systems` folder is named. Its rows that are kept back for testing
are out of reach here, see `_checked`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError, UnknownName
from moeplan.kernels.silicon_flags import UNFIT, Columns, Flag, Mask, SiliconFacts, flags_of, key_of, silicon_facts
from moeplan.kernels.silicon_place import INSTALL, PACKAGE
from moeplan.kernels.silicon_schema import ELEMENT_BYTES, PROVENANCE, SCHEMAS, Column, Schema
from moeplan.specs.catalog import Catalog

KEPT_BACK: Final = "silicon_sample.csv"
CHANGED: Final = "moeplan knows the tables of aiconfigurator-core 0.12; install that version"
LISTED: Final = 40  # values named in a message at most
SUFFIX: Final = "_perf.parquet"

_RANKS: Final = {"dev": -4, "a": -3, "b": -2, "rc": -1, "": 0, "post": 1}
_VERSION: Final = re.compile(r"(\d+(?:\.\d+)*)(?:[.-]?(dev|a|b|rc|post)(\d*))?")


class SiliconTable(Struct, frozen=True, eq=False, kw_only=True):
    """Rows of one table: columns by name in SI units, and what is to be known of each row.

    Text columns hold str objects, axes int64, times float64. raw_rows: how many the file had before rows of equal keys
    became their median. source: package, GPU, engine, version and kernels, for printing beside every number.
    """

    system: str
    family: str
    engine: str
    version: str
    columns: Columns
    units: Mapping[str, str]
    flags: NDArray[np.uint16]
    raw_rows: int
    source: str

    def __len__(self) -> int:
        return self.flags.size

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    @property
    def fit(self) -> Mask:
        """Which rows hold a kernel's time for the work that they name."""
        mask: Mask = (self.flags & np.uint16(UNFIT)) == 0
        return mask

    def having(self, flag: Flag) -> Mask:
        """Which rows have any of these flags."""
        mask: Mask = (self.flags & np.uint16(flag)) != 0
        return mask

    def rows(self, mask: Mask) -> SiliconTable:
        """The same table with fewer rows."""
        columns = {name: values[mask] for name, values in self.columns.items()}
        return replace(self, columns=columns, flags=self.flags[mask])

    def where(self, wanted: Mapping[str, str | int]) -> SiliconTable:
        """The rows that hold these values; raise InputError for a column or a value that is not there."""
        table, faults = self, []
        for name, value in wanted.items():
            values = table.columns.get(name)
            if values is None or values.dtype.kind not in "iO":
                known = ", ".join(name for name, values in self.columns.items() if values.dtype.kind in "iO")
                faults.append(Fault(f"where {name}", "is no column to choose by", f"there is {known}"))
            elif not np.any(match := np.asarray(values == value, dtype=np.bool_)):
                known = ", ".join(map(str, np.unique(values)[:LISTED]))
                faults.append(Fault(f"where {name}", f"no row holds {value!r} in {self.source}", f"there is {known}"))
            else:
                table = table.rows(match)
        if faults:
            raise InputError("silicon", faults)
        return table

    def counts(self, name: str) -> dict[str, int]:
        """How many rows there are of each value of a text column."""
        values, counts = np.unique(self.columns[name].astype(str), return_counts=True)
        return {str(value): int(count) for value, count in zip(values, counts, strict=True)}


class SiliconFile(Struct, frozen=True, kw_only=True):
    """One file of the package, by what it is about."""

    system: str
    family: str
    engine: str
    version: str
    path: Path


def silicon_system(gpu: str, catalog: Catalog | None = None) -> str | None:
    """The folder in which one of our GPUs was measured, by its slug; None where it was not."""
    return silicon_facts(catalog).systems.get(gpu)


def silicon_files(root: Path, *, system: str | None = None) -> tuple[SiliconFile, ...]:
    """All files of a known family, sorted; only their names are read."""
    found = []
    for path in sorted((root / "data").glob(f"{system or '*'}/*/*/*/*{SUFFIX}")):
        family, (owner, folder, engine, version) = path.name.removesuffix(SUFFIX), path.parts[-5:-1]
        if family in SCHEMAS and SCHEMAS[family].folder == folder:
            found.append(SiliconFile(system=owner, family=family, engine=engine, version=version, path=path))
    return tuple(sorted(found, key=lambda file: (file.system, file.family, file.engine, version_key(file.version))))


def silicon_table(
    root: Path,
    *,
    system: str,
    family: str,
    engine: str,
    version: str | None = None,
    kernel_source: str | Sequence[str] | None = None,
    where: Mapping[str, str | int] | None = None,
) -> SiliconTable:
    """The rows of one table that one kernel gave.

    version: the latest by default; where: the value that other columns must have. When what is left comes from several
    kernels one must be named, or several: engines choose by shape, and the wrong kernel is off 2 to 7 times.
    Raises UnknownName, or InputError for a table that is not there, has changed, or leaves the kernel open.
    """
    table = silicon_file(root, system=system, family=family, engine=engine, version=version).where(where or {})
    return _of_kernel(table, (kernel_source,) if isinstance(kernel_source, str) else kernel_source)


def silicon_file(root: Path, *, system: str, family: str, engine: str, version: str | None = None) -> SiliconTable:
    """All rows of one table, of whatever kernel; see silicon_table."""
    file = _found(root, system, family, engine, version)
    return _read(root, file, file.path.stat().st_mtime_ns, silicon_facts())


def version_key(text: str) -> tuple[tuple[int, ...], int, int]:
    """Sort «1.3.0rc20» before «1.3.0» before «1.3.0.post2»; numbers by value, not by text."""
    match = _VERSION.match(text)
    if match is None:
        return (), 0, 0
    return tuple(map(int, match[1].split("."))), _RANKS[match[2] or ""], int(match[3] or 0)


def package_label(root: Path) -> str:
    """The package that a `systems` folder belongs to and its version, from the folder that pip leaves beside it."""
    beside = sorted(root.resolve().parent.parent.glob(f"{PACKAGE}-*.dist-info"))
    version = beside[-1].name.removeprefix(f"{PACKAGE}-").removesuffix(".dist-info") if beside else "of unknown version"
    return f"aiconfigurator-core {version}"


def kernel_counts(root: Path, file: SiliconFile) -> dict[str, int]:
    """How many rows each kernel has in a file; nothing else of it is read."""
    content = _open(root, file.path, ["kernel_source"]).read(columns=["kernel_source"], use_threads=False)
    words, codes = _coded(content["kernel_source"])
    return dict(zip(words.tolist(), np.bincount(codes, minlength=words.size).tolist(), strict=True))


def _found(root: Path, system: str, family: str, engine: str, version: str | None) -> SiliconFile:
    """The file of that name among those that are there: no part of a path is taken from the caller."""
    if family not in SCHEMAS:
        raise UnknownName("silicon family", family, SCHEMAS)
    systems = sorted(path.name for path in (root / "data").iterdir() if path.is_dir())
    if system not in systems:
        raise UnknownName("silicon system", system, systems)
    files = [file for file in silicon_files(root, system=system) if file.family == family]
    engines = sorted({file.engine for file in files})
    if engine not in engines:
        fix = f"there is {', '.join(engines)}" if engines else "see `moeplan silicon list`"
        raise InputError("silicon", [Fault("engine", f"{system} has no table {family} of {engine!r}", fix)])
    files = [file for file in files if file.engine == engine]
    named = [file for file in files if version is None or file.version == version]
    if not named:
        fix = f"there is {', '.join(file.version for file in files)}"
        raise InputError("silicon", [Fault("version", f"{system} {family} {engine} has no {version!r}", fix)])
    return named[-1]


def _of_kernel(table: SiliconTable, names: Sequence[str] | None) -> SiliconTable:
    kernels = table.counts("kernel_source")
    if names is None and len(kernels) > 1:
        listed = "; ".join(f"{name} ({count} rows)" for name, count in kernels.items())
        fix = f"name one (or several) as kernel_source, or narrow the rows: {listed}"
        raise InputError("silicon", [Fault("kernel_source", f"{table.source} holds {len(kernels)} kernels", fix)])
    chosen = tuple(names) if names is not None else tuple(kernels)
    if missing := [name for name in chosen if name not in kernels]:
        fault = Fault("kernel_source", f"{table.source} has no {missing[0]!r}", f"there is {', '.join(kernels)}")
        raise InputError("silicon", [fault])
    mask = np.isin(table["kernel_source"].astype(str), chosen)
    return replace(table.rows(mask), source=f"{table.source}, kernel {' + '.join(chosen)}")


@lru_cache(maxsize=16)
def _read(root: Path, file: SiliconFile, _changed: int, facts: SiliconFacts) -> SiliconTable:
    schema = SCHEMAS[file.family]
    columns, words = _content(root, file, schema)
    if "message_bytes" in columns:
        columns["message_bytes"] = columns["message_bytes"] * _element_bytes(columns, words, schema.element_type)
    origin: Columns = {name: columns.pop(name) for name in PROVENANCE if name in columns}
    size = columns["kernel_source"].size
    columns, flags = _merged(columns, _provenance_flags(origin, words, file, size), schema)
    rules = [rule for rule in facts.rules if rule.holds_for(file.family, file.engine, file.version)]
    flags |= flags_of(columns, words, columns[schema.times[0].name], rules)
    timed = [columns[column.name] for column in schema.times if "notify" not in column.name]
    flags[~np.all([values > 0 for values in timed], axis=0)] |= np.uint16(Flag.NOT_TIMED)
    columns = {name: words[name][values] if name in words else values for name, values in columns.items()}
    for values in (*columns.values(), flags):
        values.setflags(write=False)
    return SiliconTable(
        system=file.system,
        family=file.family,
        engine=file.engine,
        version=file.version,
        columns=columns,
        units={column.name: column.unit for column in schema.columns if column.name in columns},
        flags=flags,
        raw_rows=size,
        source=_source(root, file, words),
    )


def _content(root: Path, file: SiliconFile, schema: Schema) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the columns in SI units, text as places in a list of words; and these lists, sorted."""
    found = _open(root, file.path).schema_arrow
    where = f"{package_label(root)}, {file.path.relative_to(root)}"
    read = _checked_columns(found, schema, where)
    texts = [column.raw for column in read if column.kind == "text"]
    content = _open(root, file.path, texts).read(columns=[column.raw for column in read], use_threads=False)
    if empty := [column.raw for column in read if content[column.raw].null_count]:
        raise InputError(where, [Fault(f"column {name}", "has rows without a value") for name in empty])
    columns, words = {}, {}
    for column in read:
        values = content[column.raw]
        if column.kind == "text":
            words[column.name], columns[column.name] = _coded(values)
        else:
            columns[column.name] = values.to_numpy() * column.factor if column.kind == "real" else values.to_numpy()
    return columns, words


def _open(root: Path, path: Path, texts: Sequence[str] = ()) -> Any:
    """Open a Parquet file; the columns `texts` come as codes into few words."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError("silicon", [Fault("pyarrow", "is not installed", INSTALL)]) from error
    path = _checked(root, path)
    try:
        return parquet.ParquetFile(path, read_dictionary=list(texts))
    except (OSError, ValueError) as error:  # pyarrow's own errors are one of them
        raise InputError("silicon", [Fault(str(path), f"cannot be read: {error}")]) from error


def _checked(root: Path, path: Path) -> Path:
    """Return the path if it leads to a Parquet file under systems/data, links resolved; refuse any other.

    The package also ships silicon_sample.csv, the rows that its authors keep back: a fit that has seen them proves
    nothing, so no way leads there.
    """
    real, data = path.resolve(), (root / "data").resolve()
    if real.name == KEPT_BACK or real.suffix != ".parquet" or data not in real.parents:
        raise InputError("silicon", [Fault(str(path), "is no .parquet under systems/data", "only these are read")])
    return real


def _checked_columns(found: Any, schema: Schema, where: str) -> list[Column]:
    """Return the columns to read; raise InputError for each that is missing, unknown or of another type."""
    given = {field.name: str(field.type) for field in found}
    known = {column.raw: column for column in schema.columns}
    faults = [
        Fault(f"column {column.raw}", "is missing", CHANGED)
        for column in schema.columns
        if column.required and column.raw not in given
    ]
    for name, type_ in given.items():
        if name not in known:
            faults.append(Fault(f"column {name}", "is unknown", CHANGED))
        elif not _is_kind(type_, known[name].kind):
            faults.append(Fault(f"column {name}", f"is of type {type_}, wanted {known[name].kind} values", CHANGED))
    if faults:
        raise InputError(where, faults)
    return [column for column in schema.columns if column.raw in given and (column.used or column.raw in PROVENANCE)]


def _is_kind(type_: str, kind: str) -> bool:
    if kind == "text":
        return "string" in type_
    return type_.startswith({"whole": "int", "real": "double", "yes_no": "bool"}[kind])


def _coded(column: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the words of a text column, sorted, and the place among them of every row's."""
    column = column.unify_dictionaries()
    words = np.array(column.chunk(0).dictionary.to_pylist() if column.num_chunks else [], dtype=object)
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks] or [np.zeros(0, np.int64)])
    order = np.argsort(words)
    place = np.empty(words.size, dtype=np.int64)
    place[order] = np.arange(words.size)
    return words[order], place[codes]


def _element_bytes(columns: Columns, words: Columns, name: str) -> NDArray[Any]:
    if unknown := [word for word in words[name] if word not in ELEMENT_BYTES]:
        fix = f"moeplan knows {', '.join(ELEMENT_BYTES)}"
        raise InputError("silicon", [Fault(name, f"elements of unknown size: {', '.join(unknown)}", fix)])
    sizes: NDArray[Any] = np.array([ELEMENT_BYTES[word] for word in words[name]])[columns[name]]
    return sizes


def _provenance_flags(origin: Columns, words: Columns, file: SiliconFile, size: int) -> NDArray[np.uint16]:
    flags = np.zeros(size, dtype=np.uint16)
    if "device" in origin and len(words["device"]) > 1:
        flags[origin["device"] != np.bincount(origin["device"]).argmax()] |= np.uint16(Flag.OTHER_DEVICE)
    if "version" in origin:
        flags[(words["version"] != file.version)[origin["version"]]] |= np.uint16(Flag.OTHER_VERSION)
    return flags


def _merged(
    columns: dict[str, NDArray[Any]], flags: NDArray[np.uint16], schema: Schema
) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint16]]:
    """One row per key, sorted by it: the median of the rows that share it, whose flags it keeps."""
    keyed = columns | {"device": flags & np.uint16(Flag.OTHER_DEVICE)}
    axes = [column.name for column in schema.axes if column.name in columns]
    keys, first, group, counts = np.unique(
        key_of(keyed, [*axes, "device"], flags.size), return_index=True, return_inverse=True, return_counts=True
    )
    merged = {name: columns[name][first] for name in axes}
    for column in schema.times:
        merged[column.name] = _medians(columns[column.name], group, first, counts)
    result = np.zeros(keys.size, dtype=np.uint16)
    np.bitwise_or.at(result, group, flags)
    result[counts > 1] |= np.uint16(Flag.DUPLICATED)
    return merged, result


def _medians(
    values: NDArray[Any], group: NDArray[np.intp], first: NDArray[np.intp], counts: NDArray[np.intp]
) -> NDArray[Any]:
    result = values[first]
    again = counts[group] > 1
    if not np.any(again):
        return result
    order = np.flatnonzero(again)[np.lexsort((values[again], group[again]))]
    places = np.flatnonzero(counts > 1)
    size = counts[places]
    start = np.cumsum(size) - size
    low, high = order[start + (size - 1) // 2], order[start + size // 2]
    result[places] = (values[low] + values[high]) / 2
    return result


def _source(root: Path, file: SiliconFile, words: Columns) -> str:
    text = f"{package_label(root)}, {file.system}, {file.engine} {file.version}, {file.family}{SUFFIX}"
    others = [str(word) for word in words.get("version", ()) if word != file.version]
    return f"{text} (rows of {', '.join(others)})" if others else text
