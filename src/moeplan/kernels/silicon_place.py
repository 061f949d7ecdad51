"""Where the silicon tables are; asked by every prediction, so it imports nothing that takes time."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from moeplan.errors import Fault, InputError

ENVIRONMENT: Final = "MOEPLAN_SILICON"
PACKAGE: Final = "aiconfigurator_core"
INSTALL: Final = "pip install 'moeplan[silicon]'"


def silicon_root(given: str | Path | None = None) -> Path:
    """The package's `systems` folder: the one given, else the environment's MOEPLAN_SILICON, else the installed one's.

    Raises InputError when the package is not installed, or the folder holds no data.
    """
    named = given if given is not None else os.environ.get(ENVIRONMENT) or None
    if named is None:
        spec = find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise InputError("silicon", [Fault("aiconfigurator-core", "is not installed", INSTALL)])
        root = Path(next(iter(spec.submodule_search_locations))) / "systems"
    else:
        root = Path(named)
    if not (str(named) and (root / "data").is_dir()):
        fix = f"give the folder `systems` of aiconfigurator-core, or {INSTALL}"
        raise InputError("silicon", [Fault(str(root), "holds no folder `data`", fix)])
    return root


def silicon_named() -> str | None:
    """The folder that the environment names, «» for the installed package, None where there are no tables to read.

    Raises InputError for a folder named that holds no tables.
    """
    folder = os.environ.get(ENVIRONMENT) or ""
    if folder:
        silicon_root(folder)
    return _named(folder)


@lru_cache(maxsize=8)
def _named(folder: str) -> str | None:
    there = bool(folder) or find_spec(PACKAGE) is not None
    return folder if there and find_spec("pyarrow") is not None else None
