"""Asking parsed flags for values: a default leaves a note, a value out of range a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from moeplan.engines.rules.flags.parsing import Parsed
from moeplan.errors import Fault


class Broken(Exception):
    """A value is not readable: its own fault is recorded, and what rests on it is not asked."""


class Fields(dict[str, Any]):
    """Fields of the layout found so far; one that a broken part left out breaks what needs it."""

    def __missing__(self, key: str) -> Any:
        raise Broken(key)


class Reading(Struct, kw_only=True):
    """Parsed flags, and the fields that the parts of a reader find in them."""

    parsed: Parsed
    fields: Fields = field(default_factory=Fields)

    def part(self, read: Callable[[Reading], None]) -> None:
        """Run one part of a reader, unless something that it needs is broken."""
        try:
            read(self)
        except Broken:
            assert self.parsed.faults

    def fault(self, path: str, problem: str, fix: str) -> None:
        """Record something wrong."""
        self.parsed.faults.append(Fault(path, problem, fix))

    def note(self, text: str) -> None:
        """Record something to know."""
        self.parsed.notes.append(text)

    def given(self, name: str) -> bool:
        """Whether the flag was written."""
        return self.parsed.values.get(self._key(name)) is not None

    def value(self, name: str) -> Any:
        """The flag's value, None where it was not written; Broken where it cannot be read."""
        key = self._key(name)
        if key in self.parsed.variables:
            problem = f"holds the shell variable {self.parsed.variables[key]}"
            self.fault(f"--{name}", problem, "write its value")
            raise Broken(name)
        if key in self.parsed.broken:
            raise Broken(name)
        return self.parsed.values.get(key)

    def whole(self, name: str, default: int, *, least: int = 1, why: str = "default") -> int:
        """A whole number of at least `least`, or the default with a note of its origin."""
        value = self.optional_whole(name, least=least)
        if value is not None:
            return value
        self.note(f"--{name} not given: {default} ({why} of {self.parsed.book.title})")
        return default

    def plain(self, name: str, default: int = 1, *, least: int = 1) -> int:
        """A whole number, or a default that goes without saying; also where the version lacks the flag."""
        value = self.optional_whole(name, least=least) if self.has(name) else None
        return default if value is None else value

    def optional_whole(self, name: str, *, least: int = 1) -> int | None:
        """A whole number of at least `least`, or None."""
        value = self.value(name)
        return None if value is None else self.at_least(f"--{name}", value, least)

    def at_least(self, path: str, value: Any, least: int) -> int:
        """A whole number from a nested key, or Broken."""
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.fault(path, f"is {value!r}", f"give a whole number from {least}")
            raise Broken(path)
        return value

    def share(self, path: str, value: Any) -> float | None:
        """A share of memory, or None."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            self.fault(path, f"is {value!r}", "give a share above 0 and at most 1")
            raise Broken(path)
        return float(value)

    def wholes(self, path: str, value: Any) -> list[int]:
        """A list of sizes, each at least 1, or Broken."""
        items = value if isinstance(value, list | tuple) else ()
        found = [int(item) if isinstance(item, str) and item.isdecimal() else item for item in items]
        if not found or any(isinstance(item, bool) or not isinstance(item, int) or item < 1 for item in found):
            self.fault(path, f"holds {value!r}", "give whole numbers from 1")
            raise Broken(path)
        return found

    def switch(self, name: str) -> bool:
        """Whether a switch is on."""
        return bool(self.value(name))

    def text(self, name: str, default: str) -> str:
        """A word, or the default with a note."""
        value = self.value(name)
        if value is not None:
            return str(value)
        self.note(f"--{name} not given: {default} (default of {self.parsed.book.title})")
        return default

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A json flag's content, empty where it was not written."""
        value = self.value(name)
        if value is None:
            return {}
        return self.as_mapping(f"--{name}", value)

    def as_mapping(self, path: str, value: Any) -> Mapping[str, Any]:
        """A nested mapping, or Broken."""
        if not isinstance(value, Mapping):
            self.fault(path, f"holds {value!r}", "give keys and values")
            raise Broken(path)
        return value

    def unknown_until_start(self, names: Iterable[str], reason: str) -> None:
        """Note that the server itself finds a value."""
        self.note(f"{', '.join(names)} not given: {reason}")

    def _key(self, name: str) -> str:
        flag = self.parsed.book.flag(name)
        return name if flag is None else flag.name

    def has(self, name: str) -> bool:
        """Whether this version has the flag at all."""
        return self.parsed.book.flag(name) is not None
