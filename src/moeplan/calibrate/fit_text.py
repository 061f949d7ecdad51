"""A fit as YAML text."""

from __future__ import annotations

from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import asdict

from moeplan.kernels.fit import FitFile

WIDTH = 120
EMPTY: tuple[Any, ...] = ("", (), [], {}, None)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # its base asks
        return True


def fit_text(file: FitFile) -> str:
    """The file, keys without a value left out, lists of plain values on one line."""
    return yaml.dump(
        _plain(file), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH, default_flow_style=None
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        value = asdict(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item not in EMPTY}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return int(value) if value == int(value) and abs(value) < 1e12 else float(f"{value:.4g}")
    return value
