"""moeplan silicon: the measured kernel tables of aiconfigurator-core, where it is installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from moeplan import units
from moeplan.cli.options import Command, data_option, json_option, print_json
from moeplan.errors import Fault, InputError
from moeplan.kernels.silicon import (
    SiliconFile,
    SiliconTable,
    kernel_counts,
    package_label,
    silicon_file,
    silicon_files,
    silicon_system,
    silicon_table,
)
from moeplan.kernels.silicon_flags import Flag, silicon_facts
from moeplan.kernels.silicon_place import silicon_root
from moeplan.report.document import document
from moeplan.report.tables import console, table
from moeplan.specs.catalog import Catalog

HEAD = 10


def _root_option(command: Command) -> Command:
    """Another place of the tables than the installed package."""
    text = "Folder `systems` of aiconfigurator-core, if it is not installed (MOEPLAN_SILICON)."
    return click.option("--tables", metavar="DIR", help=text)(command)


@click.group("silicon")
def command() -> None:
    """List and show measured kernel tables (pip install 'moeplan[silicon]')."""


@command.command("list")
@click.option("--system", metavar="GPU", help="One GPU, by our name or the package's, such as h200 or h200_sxm.")
@_root_option
@data_option
@json_option
def list_command(system: str | None, tables: str | None, data: str | None, as_json: bool) -> int:
    """List the tables: family, engine, version, rows, kernels."""
    root = silicon_root(tables)
    owner = None if system is None else _system(root, system, Catalog.standard(data))
    files = silicon_files(root, system=owner)
    counts = [kernel_counts(root, file) for file in files]
    if as_json:
        content = [_file_content(file, kernels) for file, kernels in zip(files, counts, strict=True)]
        print_json(document("silicon", {"package": package_label(root), "tables": content}))
        return 0
    rows = [
        (file.system, file.family, file.engine, file.version, f"{sum(kernels.values()):,}", ", ".join(kernels))
        for file, kernels in zip(files, counts, strict=True)
    ]
    headers = ("system", "family", "engine", "version", "rows", "source")
    console().print(table(*_left_aligned(headers, rows, (0, 1, 2, 3)), title=package_label(root)))
    return 0


@command.command("show")
@click.argument("system")
@click.argument("family")
@click.option("--engine", required=True, help="sglang, vllm, trtllm, nccl …")
@click.option("--version", "engine_version", help="The engine's version; default: the latest.")
@click.option("--kernel-source", "kernels", multiple=True, help="One kernel (or several, repeated); default: all.")
@click.option("--where", multiple=True, metavar="COLUMN=VALUE", help="Only rows with that value, such as m=64.")
@click.option("--rows", "head", type=click.IntRange(1, 10_000), default=HEAD, show_default=True, help="Rows to print.")
@_root_option
@data_option
@json_option
def show_command(
    system: str,
    family: str,
    engine: str,
    engine_version: str | None,
    kernels: tuple[str, ...],
    where: tuple[str, ...],
    head: int,
    tables: str | None,
    data: str | None,
    as_json: bool,
) -> int:
    """Show a table's head, units, kernels and marks."""
    root = silicon_root(tables)
    owner = _system(root, system, Catalog.standard(data))
    chosen = _conditions(where)
    if kernels:
        found = silicon_table(
            root,
            system=owner,
            family=family,
            engine=engine,
            version=engine_version,
            kernel_source=kernels,
            where=chosen,
        )
    else:
        found = silicon_file(root, system=owner, family=family, engine=engine, version=engine_version).where(chosen)
    if as_json:
        print_json(document("silicon_table", _table_content(found, head)))
    else:
        _print_table(found, head)
    return 0


def _system(root: Path, name: str, catalog: Catalog) -> str:
    """The package's folder of a GPU; raise UnknownName, or InputError for a GPU that it does not have."""
    if any(file.system == name for file in silicon_files(root)):
        return name
    slug = catalog.gpu(name).slug
    system = silicon_system(slug, catalog)
    if system is None:
        fix = f"measured are {', '.join(sorted(silicon_facts(catalog).systems))}"
        raise InputError("silicon", [Fault(slug, f"{package_label(root)} has no tables of it", fix)])
    return system


def _conditions(where: Iterable[str]) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for text in where:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError("options", [Fault("--where", f"is {text!r}", "write COLUMN=VALUE, such as m=64")])
        found[name] = int(value) if value.lstrip("-").isdecimal() else value
    return found


def _file_content(file: SiliconFile, kernels: dict[str, int]) -> dict[str, Any]:
    named = {"system": file.system, "family": file.family, "engine": file.engine, "engine_version": file.version}
    return named | {"rows": sum(kernels.values()), "kernel_sources": kernels}


def _table_content(found: SiliconTable, head: int) -> dict[str, Any]:
    return {
        "system": found.system,
        "family": found.family,
        "engine": found.engine,
        "engine_version": found.version,
        "source": found.source,
        "raw_rows": found.raw_rows,
        "rows": len(found),
        "fit_rows": int(found.fit.sum()),
        "kernel_sources": found.counts("kernel_source"),
        "flags": _flag_counts(found),
        "units": dict(found.units),
        "head": {name: values[:head].tolist() for name, values in found.columns.items()}
        | {"flags": [Flag(flags).words for flags in found.flags[:head].tolist()]},
    }


def _flag_counts(found: SiliconTable) -> dict[str, int]:
    counts = {flag.words[0]: int(found.having(flag).sum()) for flag in Flag}
    return {word: count for word, count in counts.items() if count}


def _print_table(found: SiliconTable, head: int) -> None:
    out = console()
    out.print(found.source)
    merged = f", medians of {found.raw_rows:,} in the file" if found.having(Flag.DUPLICATED).any() else ""
    out.print(f"{len(found):,} rows{merged}; {int(found.fit.sum()):,} fit for use")
    for word, count in _flag_counts(found).items():
        out.print(f"  {count:,} {word}")
    for name, count in found.counts("kernel_source").items():
        out.print(f"  {count:,} of kernel {name}")
    rows = []
    for place in range(min(head, len(found))):
        cells = [_cell(values[place], found.units[name]) for name, values in found.columns.items()]
        rows.append((*cells, ", ".join(Flag(int(found.flags[place])).words)))
    texts = [place for place, values in enumerate(found.columns.values()) if values.dtype.kind == "O"]
    out.print()
    out.print(table(*_left_aligned([*found.columns, "flags"], rows, [*texts, len(found.columns)])))


def _cell(value: Any, unit: str) -> str:
    if isinstance(value, float):
        return units.si(value, unit)
    return f"{value} {unit}".rstrip()


def _left_aligned(
    headers: Sequence[str], rows: Sequence[Sequence[str]], columns: Iterable[int]
) -> tuple[list[str], list[list[str]]]:
    """Fill text columns with spaces, for the tables of moeplan put what they do not know to the right."""
    filled_headers, filled = list(headers), [list(row) for row in rows]
    for column in columns:
        width = max([len(headers[column]), *(len(row[column]) for row in rows)])
        filled_headers[column] = headers[column].ljust(width)
        for row in filled:
            row[column] = row[column].ljust(width)
    return filled_headers, filled
