"""Edited things: «gpu.memory.bandwidth=4.8TB/s», «model.top_k=6» applied to a spec, checked like a file."""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from moeplan.errors import Fault, InputError, suggestion
from moeplan.specs.gpu import EDITED
from moeplan.specs.loading import convert, scalar, struct_fields, with_unit

T = TypeVar("T")
Target = Literal["gpu", "nic", "model", "cluster"]
TARGETS: tuple[Target, ...] = get_args(Target)


class Edit(Struct, frozen=True):
    """One edit as written: what it edits, the path inside, the new value as text."""

    target: Target
    path: str
    value: str


def parse_edits(texts: Sequence[str]) -> list[Edit]:
    """Read TARGET.PATH=VALUE; raise InputError naming every one that is not of this form."""
    edits, faults = [], []
    for text in texts:
        path, equals, value = text.partition("=")
        head, _, rest = path.strip().partition(".")
        if not (equals and rest and value.strip()):
            faults.append(Fault(f"--set {text}", "is not TARGET.PATH=VALUE", "such as gpu.memory.bandwidth=4.8TB/s"))
        elif head not in TARGETS:
            near = suggestion(head, TARGETS) or f"one of {', '.join(TARGETS)}"
            faults.append(Fault(f"--set {text}", f"edits an unknown {head!r}", near))
        else:
            edits.append(Edit(head, rest, value.strip()))
    if faults:
        raise InputError("options", faults)
    return edits


def edited(thing: T, target: Target, edits: Sequence[Edit]) -> T:
    """Apply the edits of one target. A path may leave out the folders before it where only one field has that name.

    Raises InputError naming every unknown or ambiguous path, ill-typed value, and rule that the edited thing breaks.
    """
    faults: list[Fault] = []
    for edit in edits:
        if edit.target != target:
            continue
        full = _resolve(thing, edit, faults)
        if full is not None:
            thing = typing.cast(T, _replace(thing, full.split("."), edit, faults))
            if not faults and hasattr(thing, "assumed"):
                marked = {**thing.assumed, full: EDITED}
                thing = typing.cast(T, _unchecked(thing, "assumed", marked))
            elif not faults and hasattr(thing, "edited"):
                thing = typing.cast(T, _unchecked(thing, "edited", True))
    if faults:
        raise InputError("--set", faults)
    try:
        return typing.cast(T, replace(typing.cast(Any, thing)))  # the rules hold for all edits together
    except InputError as error:
        raise InputError("--set", error.faults) from error


def _resolve(thing: object, edit: Edit, faults: list[Fault]) -> str | None:
    paths = list(_paths(thing))
    if edit.path in paths:
        return edit.path
    ends = [path for path in paths if path.endswith(f".{edit.path}")]
    if len(ends) == 1:
        return ends[0]
    where = f"{edit.target}.{edit.path}"
    if ends:
        faults.append(Fault(where, "is ambiguous", f"write one of {', '.join(f'{edit.target}.{end}' for end in ends)}"))
    else:
        names = [*paths, *{path.rsplit(".", 1)[-1] for path in paths}]
        near = suggestion(edit.path, names) or f"known: {', '.join(paths)}"
        faults.append(Fault(where, "no such figure", near))
    return None


def _paths(thing: object, prefix: str = "") -> Iterator[str]:
    """Every path to a single value inside a spec: nested structs and dictionaries of figures."""
    assert isinstance(thing, Struct)
    for name in thing.__struct_fields__:
        value, path = getattr(thing, name), f"{prefix}{name}"
        if name in ("sources", "assumed", "slug", "name", "edited"):
            continue
        if isinstance(value, Struct):
            yield from _paths(value, f"{path}.")
        elif isinstance(value, dict):
            yield from (f"{path}.{key}" for key in value)
        elif not isinstance(value, tuple):
            yield path


def _replace(thing: Any, path: list[str], edit: Edit, faults: list[Fault]) -> Any:
    name, *rest = path
    value = getattr(thing, name)
    hint, dimension = with_unit(struct_fields(thing.__class__)[name].type)
    where, before = f"{edit.target}.{edit.path}", len(faults)
    new: Any
    if isinstance(value, dict):
        new = {**value, rest[0]: convert(typing.get_args(hint)[1], edit.value, where, dimension, faults)}
    elif rest:
        new = _replace(value, rest, edit, faults)
    else:
        new = convert(hint, scalar(edit.value), where, dimension, faults)
    return thing if len(faults) > before else _unchecked(thing, name, new)


def _unchecked(thing: Any, name: str, value: Any) -> Any:
    """A copy with another value in one field, its rules not yet looked at."""
    changed = copy.copy(thing)
    force_setattr(changed, name, value)
    return changed
