"""The only door to device libraries: imported by name when a measurement needs them, never before."""

from __future__ import annotations

import importlib
import importlib.util
from importlib import metadata
from typing import Any

from moeplan.errors import Fault, InputError

_HOW = {
    "torch": "install PyTorch built for CUDA (pip install torch)",
    "deep_gemm": "build it from github.com/deepseek-ai/DeepGEMM",
    "flash_mla": "build it from github.com/deepseek-ai/FlashMLA",
    "flashinfer": "pip install flashinfer-python",
    "deep_ep": "build it from github.com/deepseek-ai/DeepEP",
    "triton": "pip install triton",
}
DRY = "or list the shapes with --dry-run, which needs no GPU"


class Absent(InputError):
    """A GPU or a library that is not there, in one line."""

    def __init__(self, where: str, problem: str, fix: str) -> None:
        super().__init__(where, [Fault(where, problem, fix)])

    def __str__(self) -> str:
        return str(self.faults[0])


def present(name: str) -> bool:
    """Say whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def load(name: str) -> Any:
    """Import a module by name; raise Absent with what to do when it is missing or does not start."""
    root = name.partition(".")[0]
    how = f"{_HOW.get(root, 'install it')}, {DRY}"
    if not present(root):
        raise Absent(root, "is not installed", how)
    try:
        return importlib.import_module(name)
    except Exception as error:  # a library built for another CUDA fails in its own ways
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise Absent(root, f"cannot be imported: {line}", how) from error


def version(name: str) -> str:
    """The version of an installed library, or «of unknown version»."""
    found = getattr(load(name), "__version__", None)
    if found is None:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            return "of unknown version"
    return str(found)
