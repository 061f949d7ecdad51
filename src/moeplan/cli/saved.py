"""Questions as YAML files: kept in git, run again, compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from moeplan import __version__
from moeplan.errors import Fault, InputError, suggestion
from moeplan.files import write_whole
from moeplan.specs.loading import read_mapping

T = TypeVar("T")
_NOT_KEPT = ("data", "as_json", "save", "chart", "explain", "front")


def is_saved(model: str) -> bool:
    """Whether the MODEL argument names a saved question instead."""
    return model.lower().endswith((".yaml", ".yml"))


def with_saved(ctx: click.Context, options: dict[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    """Fill the options that were not typed from the file that MODEL names, if it names one.

    The first of `sections` that the file has is read. Raises InputError for a file without any, or with unknown keys.
    """
    if not is_saved(options["model"]):
        return options
    path = Path(options["model"])
    content = read_mapping(path)
    section = next((name for name in sections if isinstance(content.get(name), Mapping)), None)
    if section is None:
        fix = f"wanted {' or '.join(sections)}: save one with --save"
        raise InputError(str(path), [Fault(str(path), "holds no such question", fix)])
    saved = content[section]
    allowed = [name for name in options if name not in _NOT_KEPT]
    faults = [
        Fault(f"{section}.{key}", "unknown key", suggestion(str(key), allowed) or f"known: {', '.join(allowed)}")
        for key in saved
        if key not in allowed
    ]
    if "model" not in saved or is_saved(str(saved["model"])):
        faults.append(Fault(f"{section}.model", "is missing", "name a model"))
    if faults:
        raise InputError(str(path), faults)
    typed = click.core.ParameterSource.COMMANDLINE
    filled = {
        name: _as_typed(value)
        for name, value in saved.items()
        if ctx.get_parameter_source(name) != typed or name == "model"
    }
    return options | filled


def save(path: Path, section: str, options: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> None:
    """Write the question, whole or not at all; `extra` holds further sections."""
    import yaml

    content = {"moeplan": __version__, section: kept(options), **(extra or {})}
    write_whole(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode())


def kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make up a question, empty ones left out."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if name not in _NOT_KEPT and value is not None and value != ()
    }


def required(options: Mapping[str, Any], *names: str) -> None:
    """Raise InputError naming every option that is still missing."""
    faults = [
        Fault(f"--{name.replace('_', '-')}", "is missing", "see --help") for name in names if options.get(name) is None
    ]
    if faults:
        raise InputError("options", faults)


def _as_typed(value: Any) -> Any:
    """What the command line would have passed: text, or a tuple of texts."""
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    return value if isinstance(value, bool) or value is None else str(value)
