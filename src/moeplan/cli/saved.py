"""Questions as YAML files: kept in git, run again, compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from moeplan import __version__
from moeplan.errors import Fault, InputError, suggestion
from moeplan.files import write_whole
from moeplan.specs.hf_fields import short
from moeplan.specs.loading import HUGE, read_mapping

T = TypeVar("T")
# What stands for the same thing: the one typed puts out the one saved.
_REPLACES = {"cluster": ("gpu", "nic", "nics_per_node"), "gpu": ("cluster",), "nic": ("cluster",)}
_FILES = ("model", "load", "cluster")  # options that may name a file
_NOT_KEPT = ("data", "as_json", "save", "chart", "explain", "front")


def is_saved(model: str) -> bool:
    """Whether the MODEL argument names a saved question instead."""
    return model.lower().endswith((".yaml", ".yml"))


def with_saved(ctx: click.Context, options: dict[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    """Fill the options that were not typed from the file that MODEL names, if it names one.

    An option that can be given several times, such as --set, adds to what the file holds or replaces it path by path.
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
    saved = {**content[section], **_paths_from(path.parent, content[section])}
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
    parameters = {str(parameter.name): parameter for parameter in ctx.command.params}

    def several(name: str) -> bool:
        return parameters[name].multiple

    for name, others in _REPLACES.items():
        if name in options and ctx.get_parameter_source(name) == typed:
            saved = {key: value for key, value in saved.items() if key not in others}
    filled = {
        name: _as_typed(ctx, parameters[name], value, f"{section}.{name}", faults)
        for name, value in saved.items()
        if value is not None and (name == "model" or several(name) or ctx.get_parameter_source(name) != typed)
    }
    filled |= {name: _added(value, options[name]) for name, value in filled.items() if several(name) and value}
    if faults:
        raise InputError(str(path), faults)
    return options | filled


def save(path: Path, section: str, options: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> None:
    """Write the question, whole or not at all; `extra` holds further sections. Files are named from beside it."""
    import yaml

    sections = {section: kept(options), **(extra or {})}
    beside = {name: {**each, **_paths_beside(path.parent, each)} for name, each in sections.items()}
    content = {"moeplan": __version__, **beside}
    write_whole(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode())


def kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make up a question, empty ones left out."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if name not in _NOT_KEPT and value not in (None, (), False)
    }


def _paths_beside(folder: Path, options: Mapping[str, Any]) -> dict[str, str]:
    """The options that name files by a path from here, as paths from `folder`: they hold wherever both move to."""
    named = _named(Path(), options) if folder.resolve() != Path.cwd() else {}
    return {name: Path(os.path.relpath(text, folder)).as_posix() for name, text in named.items()}


def _paths_from(folder: Path, options: Mapping[str, Any]) -> dict[str, str]:
    """The options that name files by a path from `folder`, as paths from here."""
    named = _named(folder, options) if folder.resolve() != Path.cwd() else {}
    return {name: os.path.relpath(folder / text) for name, text in named.items()}


def _named(folder: Path, options: Mapping[str, Any]) -> dict[str, str]:
    """The relative paths; what has neither ending nor folder is a name of the catalog or a law, whatever lies there."""
    texts = {name: options.get(name) for name in _FILES}
    return {
        name: text
        for name, text in texts.items()
        if isinstance(text, str) and (Path(text).suffix or "/" in text) and not Path(text).is_absolute()
        if os.path.exists(folder / text)  # unlike Path.exists, says no to a name that no path can have
    }


def required(options: Mapping[str, Any], *names: str) -> None:
    """Raise InputError naming every option that is still missing."""
    faults = [
        Fault(f"--{name.replace('_', '-')}", "is missing", "see --help") for name in names if options.get(name) is None
    ]
    if faults:
        raise InputError("options", faults)


def _added(saved: tuple[str, ...], typed: tuple[str, ...]) -> tuple[str, ...]:
    """Both, but no saved PATH=VALUE whose path is typed again."""
    again = {text.partition("=")[0] for text in typed}
    return (*(text for text in saved if text.partition("=")[0] not in again), *typed)


def _as_typed(ctx: click.Context, parameter: click.Parameter, value: Any, where: str, faults: list[Fault]) -> Any:
    """What the command line would have passed for the value, checked in the same way."""
    items = value if isinstance(value, list) and parameter.multiple else [value]
    flag = isinstance(parameter, click.Option) and parameter.is_flag
    if flag and isinstance(value, bool):
        return value
    if (
        flag
        or any(isinstance(item, bool | list | dict) for item in items)
        or (parameter.multiple and items is not value)
    ):
        fix = "write a list of texts" if parameter.multiple else "write it as on the command line"
        fix = "write true or false" if flag else fix
        faults.append(Fault(where, f"holds {short(value)}", fix))
        return None
    texts = [short(item) if isinstance(item, int) and abs(item) > HUGE else str(item) for item in items]
    try:
        return parameter.type_cast_value(ctx, tuple(texts) if parameter.multiple else texts[0])
    except click.BadParameter as error:
        faults.append(Fault(where, error.message))
        return None
