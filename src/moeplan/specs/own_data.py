"""The user's own files of what is looked up by name alone: schedules and all-to-alls.

A step names its schedule and its all-to-all, and the formulas ask for them by that name, without a catalog. So the
folder of --data is set once, before anything is read (cli.options.data_option).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from moeplan.errors import Fault, InputError

Kind = Literal["schedules", "exchanges"]
PACKAGED: Final = Path(__file__).resolve().parents[1] / "data"
SUFFIXES: Final = (".yaml", ".yml")
_own: list[Path] = []  # the folder, if there is one


def use_own(folder: str | Path | None) -> None:
    """Look for schedules/ and exchanges/ in that folder, too, its files before ours; None: in the packaged data."""
    _own[:] = [Path(folder)] if folder else []


def own_folder() -> Path | None:
    """The folder in use."""
    return _own[0] if _own else None


def named_files(kind: Kind) -> dict[str, Path]:
    """Every file of a kind by its name, the user's before ours."""
    found = {path.stem: path for path in sorted((PACKAGED / kind).glob("*.yaml"))}
    for root in _own:
        found |= {path.stem.lower(): path for end in SUFFIXES for path in sorted((root / kind).glob(f"*{end}"))}
    return dict(sorted(found.items()))


def file_of(kind: Kind, name: str) -> Path | None:
    """The file of exactly that name, without listing the others where there is no folder of the user's."""
    if os.path.basename(name) != name:
        return None
    if _own:
        return named_files(kind).get(name)
    path = PACKAGED / kind / f"{name}.yaml"
    return path if os.path.isfile(path) else None


def check_name(path: Path, name: str) -> None:
    """A file is found by its own name, and what it holds goes by the same: raise InputError where they differ."""
    if path.stem.lower() != name:
        fault = Fault("name", f"is {name!r}", f"write {path.stem.lower()!r}, as the file is called, or rename the file")
        raise InputError(str(path), [fault])
