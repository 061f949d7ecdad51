"""Published times of many kernels in one file of data/observations: text columns say which, numbers are a shape."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array
from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, read_mapping

TEXT: Final = ("backend", "mode", "direction", "wire", "gpu", "nic", "kind", "source")
NUMBERS: Final = (
    *("nics_per_gpu", "per_node", "ep", "tokens", "hidden", "top_k", "experts", "sms", "groups", "top_groups"),
    "seconds",
)


class About(Struct, frozen=True, kw_only=True, eq=False):
    """What stands beside the file."""

    title: str
    source: str
    note: str = ""


def observed(catalog: Catalog, name: str, wanted: Mapping[str, str]) -> tuple[dict[str, Array], Array, str]:
    """Columns of a shape, seconds and a title of the rows whose text columns hold these values; raise InputError.

    A direction becomes the column `combine`, a NIC its rate per GPU and its latency.
    """
    path = catalog.data_file("observations", f"{name}.csv")
    about = build(About, read_mapping(path.with_suffix(".yaml")), str(path.with_suffix(".yaml")))
    faults = [Fault(f"where {key}", "is no column", f"one of {', '.join(TEXT)}") for key in wanted if key not in TEXT]
    rows = [
        row
        for row in _read(path, wanted.get("gpu", ""))
        if all(row[key] == value for key, value in wanted.items() if key in TEXT)
    ]
    if not rows and not faults:
        faults = [Fault("where", f"no row of {path.name} holds {dict(wanted)}", "see the file")]
    if faults:
        raise InputError(str(path), faults)
    shape = {column: np.array([float(row[column]) for row in rows]) for column in NUMBERS}
    seconds = shape.pop("seconds")
    cards = {name: catalog.nic(name) for name in dict.fromkeys(row["nic"] for row in rows)}
    nics = [cards[row["nic"]] for row in rows]
    shape["nic_rate"] = np.array([nic.line_rate for nic in nics]) * shape.pop("nics_per_gpu")
    shape["nic_latency"] = np.array([nic.latency for nic in nics])
    shape["combine"] = np.array([float(row["direction"] == "combine") for row in rows])
    return shape, seconds, about.title


def observed_keys(catalog: Catalog, name: str) -> list[dict[str, str]]:
    """The kernels, GPUs and cards of a file: its text columns but the kind and source of a row, each pair once."""
    rows = _read(catalog.data_file("observations", f"{name}.csv"), "")
    keys = dict.fromkeys(tuple((key, row[key]) for key in TEXT if key not in ("kind", "source")) for row in rows)
    return [dict(key) for key in keys]


@lru_cache(maxsize=32)
def _read(path: Path, word: str) -> tuple[dict[str, str], ...]:
    """The rows of a file that hold a word anywhere, all for none: a step asks for one chip's and reads no others."""
    with path.open(newline="", encoding="utf-8") as file:
        head = file.readline()
        return tuple(csv.DictReader([head, *(line for line in file if word in line)]))
