"""A strict reader of one JSON mapping: hands out values, collects every fault, and never raises on the way."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from moeplan.errors import Fault, suggestion

LARGEST: Final = 100_000_000  # no width, vocabulary, count or context of a real model is larger
MOST_LAYERS: Final = 1_000
_NEAR: Final = 0.9  # how alike an unread key must be to an absent one to count as its misspelling


class Fields:
    """One mapping of a config, read key by key.

    A wrong or missing value is noted in `faults` and a harmless placeholder (the least allowed value) is returned, so
    that the caller reads on and every fault is found in one pass. Rules between keys ask `sound` first: a placeholder
    proves nothing. Keys that start with «_» are comments.
    """

    def __init__(self, content: Mapping[str, Any], *, path: str = "", faults: list[Fault] | None = None) -> None:
        self.content = content
        self.path = path
        self.faults: list[Fault] = [] if faults is None else faults
        self.asked: dict[str, None] = {}
        self._bad: set[str] = set()

    def fault(self, key: str, problem: str, fix: str = "") -> None:
        """Note what is wrong with a key, once per key."""
        if key not in self._bad:
            self._bad.add(key)
            self.faults.append(Fault(self._join(key), problem, fix))

    def sound(self, *keys: str) -> bool:
        """Whether none of the keys has a fault so far."""
        return self._bad.isdisjoint(keys)

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        self.asked[key] = None
        return self.content.get(key) is not None

    def whole(self, key: str, *, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """Return a whole number within least..most; without a default the key must be there."""
        value = self._value(key, default)
        if key in self._bad:
            return least
        if not isinstance(value, int) or isinstance(value, bool):
            self.fault(key, f"holds {short(value)}, wanted a whole number", _number_fix(value))
        elif value < least:
            what = "is negative" if value < 0 else f"is less than {least}"
            self.fault(key, f"holds {short(value)}, which {what}", f"write a whole number from {least} on")
        elif value > most:
            self.fault(key, f"holds {short(value)}, which is beyond any real model", f"write at most {most}")
        else:
            return value
        return least

    def whole_or_null(self, key: str, *, required: bool = False, least: int = 1, most: int = LARGEST) -> int | None:
        """Return a whole number, or None for null; unless required, an absent key reads as null."""
        if self.has(key) or (required and key not in self.content):
            return self.whole(key, least=least, most=most)
        return None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false; null reads as the default."""
        value = self.content[key] if self.has(key) else default
        if not isinstance(value, bool):
            self.fault(key, f"holds {short(value)}, wanted true or false")
            return default
        return value

    def word(self, key: str, choices: Sequence[str], *, default: str | None = None) -> str:
        """Return one of the words; null reads as the default."""
        value = default if default is not None and not self.has(key) else self._value(key, default)
        if key not in self._bad and value not in choices:
            near = suggestion(value, choices) if isinstance(value, str) else ""
            self.fault(key, f"holds {short(value)}, which is not known here", near or f"known: {', '.join(choices)}")
        return value if isinstance(value, str) and value in choices else choices[0]

    def wholes(self, key: str, *, most: int) -> tuple[int, ...]:
        """Return a list of whole numbers from 0 to most; absent or null: empty."""
        items = self.content[key] if self.has(key) else []
        if not isinstance(items, list | tuple):
            self.fault(key, f"holds {short(items)}, wanted a list of whole numbers")
            return ()
        for item in items:
            if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= most:
                self.fault(key, f"holds {short(item)} in its list, wanted whole numbers from 0 to {most}")
                return ()
        return tuple(items)

    def words(self, key: str, choices: Sequence[str] = (), *, required: bool = False) -> tuple[str, ...]:
        """Return a list of words (of the choices, where given); unless required, absent or null reads as empty."""
        items = self._value(key, None) if required else self.content[key] if self.has(key) else []
        if key in self._bad:
            return ()
        if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
            self.fault(key, f"holds {short(items)}, wanted a list of words")
            return ()
        for item in items:
            if choices and item not in choices:
                fix = suggestion(item, choices) or f"known: {', '.join(choices)}"
                self.fault(key, f"holds {short(item)} in its list", fix)
                return ()
        return tuple(items)

    def section(self, key: str) -> Fields | None:
        """Return a reader of the mapping below the key (its faults are ours); None when absent, null or no mapping."""
        if not self.has(key):
            return None
        value = self.content[key]
        if not isinstance(value, Mapping):
            self.fault(key, f"holds {short(value)}, wanted a mapping")
            return None
        return Fields(value, path=self._join(key), faults=self.faults)

    def expect(self, key: str, wanted: bool | int, why: str) -> None:
        """Note a fault unless the key is absent, null or holds the one value that is modelled."""
        value = self.content[key] if self.has(key) else wanted
        if type(value) is not type(wanted) or value != wanted:
            self.fault(key, f"holds {short(value)}, {why}", f"only {str(wanted).lower()} is supported")

    def finish(self) -> None:
        """Note absent keys that an unread key resembles: a misspelt key must not silently take a default."""
        absent = [key for key in self.asked if key not in self.content and key not in self._bad]
        for key in absent:
            near = self._misspelling(key)
            if near:
                self.fault(near, "is an unknown key", f"did you mean {key}?")

    def _value(self, key: str, default: Any) -> Any:
        self.asked[key] = None
        if key in self.content:
            return self.content[key]
        if default is None:
            near = self._misspelling(key)
            add = f"add «{key}: …» as in the model's published config.json"
            self.fault(key, "is missing", f"is {near!r} meant as {key}? rename it" if near else add)
        return default

    def _misspelling(self, key: str) -> str:
        unread = [str(k) for k in self.content if k not in self.asked and not str(k).startswith("_")]
        near = difflib.get_close_matches(key, unread, n=1, cutoff=_NEAR)
        return near[0] if near else ""

    def _join(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def _number_fix(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) <= LARGEST:
        return f"write {int(value)}"
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 12:
        return f"write {int(value)} without quotes"
    return ""


def short(value: Any) -> str:
    """Return a value as text for a message, cut to 60 signs, whatever it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return f"a number of {value.bit_length()} bits"  # repr refuses ints of more than 4300 digits
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "…"
