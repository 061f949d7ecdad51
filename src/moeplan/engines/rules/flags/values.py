"""Text after a flag as the value that its parser makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from moeplan.engines.rules.flags.book import Flag, FlagBook
from moeplan.errors import Fault, suggestion

_SUFFIX = {
    "sglang": {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
    "vllm": {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
    "trtllm": {},
}
MOST_CHOICES = 14  # listed whole in a message; of more, the near ones
VARIABLE = re.compile(r"\$(\w+|\{.*\}|\(.*\))")


def converted(flag: Flag, raw: Any, book: FlagBook, path: str, faults: list[Fault]) -> Any:
    """The value of a flag from its text (or from YAML); appends a fault and returns None where it has none."""
    try:
        value = _converted(flag, raw, book)
    except ValueError as error:
        faults.append(Fault(path, f"holds {_shown(raw)}", str(error)))
        return None
    allowed = book.allowed(flag)
    if allowed and str(value) not in allowed:
        few = len(allowed) <= MOST_CHOICES
        fix = (suggestion(str(value), allowed) if not few else "") or f"one of {', '.join(allowed)}"
        faults.append(Fault(path, f"holds {_shown(raw)}", fix))
        return None
    if flag.kind == "json" and isinstance(value, Mapping):
        check_keys(value, flag.name, book, path, faults)
    return value


def check_keys(value: Mapping[str, Any], table: str, book: FlagBook, path: str, faults: list[Fault]) -> None:
    """Append a fault for each key that the version does not know, where its keys are listed; go into nested ones."""
    known = book.keys.get(table, "").split()
    for key, inner in value.items():
        name = str(key).replace("-", "_")
        if known and name not in known:
            fix = suggestion(name, known) or f"known: {', '.join(known[:12])}{', …' * (len(known) > 12)}"
            faults.append(Fault(f"{path}.{key}", f"is no key of it in {book.title}", fix))
        if isinstance(inner, Mapping):
            check_keys(inner, name if table == "config" else f"{table}.{name}", book, f"{path}.{key}", faults)


def sized(text: str, engine: str) -> int:
    """A whole number with a suffix as the engine reads it: 32k is 32,000; 32,768 is 32Ki for SGLang, 32K for vLLM."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]+)", text.strip())
    if found is None:
        return int(text)
    factor = _SUFFIX[engine].get(found[2])
    if factor is None or ("." in found[1] and factor % 10):
        raise ValueError(f"give a whole number, or one with {', '.join(_SUFFIX[engine]) or 'no suffix'}")
    return round(float(found[1]) * factor)


def _converted(flag: Flag, raw: Any, book: FlagBook) -> Any:
    if flag.kind in ("switch", "toggle"):
        if not isinstance(raw, bool):
            raise ValueError("give true or false")
        return raw
    if flag.kind in ("whole", "sized"):
        return _whole(flag, raw, book)
    if flag.kind == "number":
        try:
            return float(raw)
        except (TypeError, ValueError):
            raise ValueError("give a number") from None
    if flag.kind == "json" and isinstance(raw, str):
        try:
            return json.loads(raw)
        except json.JSONDecodeError as error:
            raise ValueError(f"give JSON in single quotes ({error.msg} at character {error.pos + 1})") from None
    if flag.kind == "many":
        return raw if isinstance(raw, list) else [raw]
    return raw


def _whole(flag: Flag, raw: Any, book: FlagBook) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError("give a whole number")
    if flag.name == "max-model-len" and str(raw).lower() == "auto":
        return -1
    if flag.kind == "sized":
        try:
            return sized(str(raw), book.engine)
        except ValueError as error:
            known = str(error).startswith("give")
            raise ValueError(str(error) if known else "give a whole number, such as 32768 or 32k") from None
    try:
        return int(raw)
    except ValueError:
        raise ValueError("give a whole number") from None


def _shown(raw: Any) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else f"{text[:57]}…"
