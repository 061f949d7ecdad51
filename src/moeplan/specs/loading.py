"""YAML or JSON text -> frozen struct, strictly: every fault at once, each with its path and a suggestion."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

import yaml
from msgspec import Struct
from msgspec.structs import FieldInfo, fields, replace

from moeplan import units
from moeplan.errors import Fault, InputError, suggestion

T = TypeVar("T")
SIGNED = "signed"
HUGE = 1e24  # no device, model or workload has a figure above this; a larger one is a slip of the pen


class _UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # chosen at run time
    """A safe YAML loader that refuses a key written twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build the mapping, or raise a constructor error that names the repeated key and its line."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} appears twice", key_node.start_mark
                    )
                seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def _whole_number(loader: Any, node: yaml.ScalarNode) -> int:
    value: int = loader.construct_yaml_int(node)
    if value.bit_length() > 4096:  # Python refuses to print much longer ones, such as a hexadecimal of 5,000 digits
        raise yaml.constructor.ConstructorError(None, None, "a number beyond any real figure", node.start_mark)
    return value


_UniqueKeys.add_constructor("tag:yaml.org,2002:int", _whole_number)
# YAML 1.1 reads 1e9 as text, for want of a dot and a sign; YAML 1.2, JSON and people mean a number where one is wanted.
_EXPONENT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def scalar(text: str) -> int | float | bool | str | None:
    """The value as a file has it, so that 6 is a number and «two-stage» is text."""
    try:
        value = yaml.load(text, Loader=_UniqueKeys)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError):
        return text
    return value if isinstance(value, int | float | bool) or value is None else text


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that holds one mapping.

    Raises InputError when the file cannot be read, is not UTF-8, is not valid YAML, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # no UTF-8 and no path at all are ValueErrors
        raise InputError(str(path), [Fault(str(path), f"cannot be read: {error}")]) from error
    return parse_mapping(text, str(path))


def parse_mapping(text: str, where: str) -> dict[str, Any]:
    """Parse YAML (JSON is a part of it) that holds one mapping; see read_mapping."""
    try:
        content = yaml.load(text, Loader=_UniqueKeys)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        # PyYAML lets the last five out of a tag such as «!!int ""» or «!!timestamp x»
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error) or type(error).__name__
        raise InputError(where, [Fault(where, f"is not valid YAML or JSON: {line}{problem}")]) from error
    if not isinstance(content, dict):
        kind = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise InputError(where, [Fault(where, f"{kind}, wanted a mapping of keys to values")])
    return content


def build(cls: type[T], content: Mapping[str, Any], where: str) -> T:
    """Build the struct from a mapping.

    A field `Annotated[float, "B/s"]` is written as text with a unit and held in SI base units;
    `Annotated[float, SIGNED]` is a plain number of either sign.

    Raises InputError that names every unknown, missing, ill-typed, negative or non-finite entry.
    """
    faults: list[Fault] = []
    result = _build(typing.cast(type[Struct], cls), content, "", faults)
    if faults:
        raise InputError(where, faults)
    return typing.cast(T, result)


@lru_cache(maxsize=256)
def struct_fields(cls: type[Struct]) -> dict[str, FieldInfo]:
    """The fields of a struct with their resolved types; a file holds many of one class."""
    return {field.name: field for field in fields(cls)}


def with_unit(hint: Any) -> tuple[Any, str | None]:
    """A field's type without its annotation, and the unit that the annotation names."""
    if typing.get_origin(hint) is Annotated:
        return hint.__origin__, hint.__metadata__[0]
    return hint, None


def _build(cls: type[Struct], content: Any, path: str, faults: list[Fault]) -> Any:
    if not isinstance(content, Mapping):
        faults.append(Fault(path or "top level", f"holds {content!r}, wanted a mapping"))
        return None
    fields = struct_fields(cls)
    for key in content:
        if key not in fields:
            fix = suggestion(str(key), fields) or f"allowed: {', '.join(fields)}"
            faults.append(Fault(_join(path, str(key)), "unknown key", fix))
    values = {}
    for name, field in fields.items():
        here = _join(path, name)
        hint, unit = with_unit(field.type)
        if name in content:
            values[name] = convert(hint, content[name], here, unit, faults)
        elif field.required:
            unit = "1" if unit == SIGNED else unit
            example = f"write for example «{name}: {units._EXAMPLES[unit]}»" if unit else f"add «{name}: …»"
            faults.append(Fault(here, "is missing", example))
    if faults:
        return None
    try:
        return cls(**values)
    except InputError as error:  # a rule between fields
        faults.extend(replace(fault, path=_join(path, fault.path)) for fault in error.faults)
        return None


def convert(hint: Any, value: Any, path: str, dimension: str | None, faults: list[Fault]) -> Any:
    """Turn one written value into what the type hint wants; append to `faults` what is wrong with it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return convert(next(a for a in args if a is not type(None)), value, path, dimension, faults)
    if dimension is not None and hint is float:
        return _quantity(value, dimension, path, faults)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _build(hint, value, path, faults)
    if origin is Literal:
        if value not in args:
            fix = suggestion(str(value), map(str, args)) or f"one of {', '.join(map(str, args))}"
            faults.append(Fault(path, f"holds {value!r}", fix))
        return value
    if origin is dict:
        return _dictionary(args[1], value, path, dimension, faults)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            faults.append(Fault(path, f"holds {value!r}, wanted a list"))
            return ()
        return tuple(convert(args[0], item, f"{path}[{i}]", dimension, faults) for i, item in enumerate(value))
    return _scalar(hint, value, path, faults)


def _dictionary(hint: Any, value: Any, path: str, dimension: str | None, faults: list[Fault]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        faults.append(Fault(path, f"holds {value!r}, wanted a mapping"))
        return {}
    return {str(key): convert(hint, item, _join(path, str(key)), dimension, faults) for key, item in value.items()}


def _quantity(value: Any, dimension: str, path: str, faults: list[Fault]) -> float:
    if not isinstance(value, str | int | float):
        faults.append(Fault(path, f"holds {value!r}, wanted a number with a unit"))
        return math.nan
    try:
        result = units.parse(value, "1", signed=True) if dimension == SIGNED else units.parse(value, dimension)
    except units.UnitError as error:
        faults.append(Fault(path, str(error)))
        return math.nan
    if abs(result) > HUGE:
        faults.append(Fault(path, f"{value!r} is beyond any real figure"))
    return result


def _scalar(hint: Any, value: Any, path: str, faults: list[Fault]) -> Any:
    if hint in (int, float) and isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if hint is int and isinstance(value, float) and value.is_integer() and abs(value) <= HUGE:
        value = int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= HUGE:
        value = float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        faults.append(Fault(path, f"holds {value!r}, wanted {_NAMES.get(hint, hint)}"))
        return value
    if isinstance(value, float) and not math.isfinite(value):
        faults.append(Fault(path, f"holds {value!r}, wanted a finite number"))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < 0:
            faults.append(Fault(path, f"holds {value!r}, which is negative"))
        elif value > HUGE:
            faults.append(Fault(path, f"holds {value!r}, which is beyond any real figure"))
    return value


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
