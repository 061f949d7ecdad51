"""Which shapes: a preset of the data folder, or the user's CSV."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from msgspec import Struct, field

from moeplan.bench.family import COLUMNS, Family, Shape, key
from moeplan.errors import Fault, InputError, UnknownName
from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, read_mapping

FOLDER, DEVICES = "bench", "devices"
LARGEST = 1 << 40


class Routed(Struct, frozen=True, kw_only=True):
    """A serving set-up whose grouped GEMMs are wanted: every batch, q_len and number of data-parallel ranks."""

    experts: int
    top_k: int
    batch: tuple[int, ...]
    q_len: tuple[int, ...]
    ranks: tuple[int, ...]

    def loads(self) -> Iterator[dict[str, int]]:
        """Active groups and rows of each, even routing.

        groups = min(E/D, B·Q·K) (article, eq. 4), rounded up where D does not divide E; m = ceil(B·Q·D·K/E) (eq. 7).
        """
        for batch, q_len, ranks in itertools.product(self.batch, self.q_len, self.ranks):
            sent = batch * q_len * self.top_k
            groups = min(ceil(self.experts / ranks), sent)
            yield {"groups": groups, "m": ceil(sent * ranks / self.experts)}


class Preset(Struct, frozen=True, kw_only=True):
    """Shapes of one family: a grid of columns or routed loads, times products (n, k).

    block_m: row tiles to sweep, for kernels that take one.
    """

    title: str
    source: str
    family: Family
    grid: dict[str, tuple[int, ...]] = field(default_factory=dict)
    routed: Routed | None = None
    products: tuple[tuple[int, ...], ...] = ()
    block_m: tuple[int, ...] = ()

    def shapes(self) -> list[Shape]:
        """Every shape once, in the order of its columns."""
        loads = list(self.routed.loads()) if self.routed is not None else [{}]
        grid = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        products = [dict(zip(("n", "k"), product, strict=True)) for product in self.products] or [{}]
        found = [load | row | product for product in products for load in loads for row in grid]
        return unique(self.family, found)


def unique(family: Family, shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes without repetition, columns in the table's order; the first of equals stays where it is."""
    by_key = {key(shape, family): shape for shape in shapes}
    return [dict(zip(COLUMNS[family], values, strict=True)) for values in by_key]


def preset_names(catalog: Catalog, families: Sequence[Family] = ()) -> list[str]:
    """Names of the presets of some families; of all when none is named."""
    names = {path.stem for root in catalog.roots for path in (root / FOLDER).glob("*.yaml")} - {DEVICES}
    return sorted(name for name in names if not families or _read(catalog, name).family in families)


def preset(catalog: Catalog, name: str, families: Sequence[Family]) -> Preset:
    """Return the preset of that name; raise UnknownName, or InputError when it is of another command."""
    if name not in preset_names(catalog):
        raise UnknownName("preset", name, preset_names(catalog, families))
    found = _read(catalog, name)
    if found.family not in families:
        fix = f"presets here: {', '.join(preset_names(catalog, families))}"
        raise InputError("options", [Fault("--preset", f"{name} is of {found.family}", fix)])
    return found


def _read(catalog: Catalog, name: str) -> Preset:
    path = catalog.data_file(FOLDER, f"{name}.yaml")
    return build(Preset, read_mapping(path), str(path))


def shapes_of_file(path: Path, families: Sequence[Family]) -> tuple[Family, list[Shape]]:
    """Read a CSV of shapes; its header tells the family. A column `seconds` is passed over, so that a table serves.

    Raises InputError naming every cell that is no whole number of at least 1.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header, written = tuple(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError("--shapes", [Fault(str(path), f"cannot be read: {error}")]) from error
    names = {name for name in header if name != "seconds"}
    family = next((item for item in families if set(COLUMNS[item]) == names), None)
    if family is None:
        wanted = " or ".join(dict.fromkeys(",".join(COLUMNS[item]) for item in families))
        raise InputError("--shapes", [Fault(str(path), f"its header is {','.join(header)!r}", f"write {wanted}")])
    faults: list[Fault] = []
    shapes = [_shape(line, COLUMNS[family], number, faults) for number, line in enumerate(written, 2)]
    if not shapes:
        faults.append(Fault("rows", "there are none", "write at least one shape"))
    if faults:
        raise InputError(str(path), faults)
    return family, unique(family, shapes)


def _shape(line: dict[str, str], columns: tuple[str, ...], number: int, faults: list[Fault]) -> Shape:
    shape = {}
    for name in columns:
        text = (line[name] or "").strip()
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
        if not 1 <= value <= LARGEST:
            faults.append(
                Fault(f"line {number}, {name}", f"holds {line[name]!r}", "write a whole number of at least 1")
            )
        shape[name] = value
    return shape
