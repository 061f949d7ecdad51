"""Words -> values by flag, as the engine's own parser reads them, with every word that it would refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from moeplan.engines.rules.flags.book import Flag, FlagBook, Spelling
from moeplan.engines.rules.flags.values import VARIABLE, converted, sized
from moeplan.errors import Fault, suggestion

_NEGATIVE = re.compile(r"-\d+(\.\d*)?$")


class Parsed(Struct, kw_only=True):
    """What was read.

    values: by the flag's first name; broken: given, but not readable; variables: left to the shell; model: the word
    without a flag, where the server takes one.
    """

    book: FlagBook
    others: Sequence[FlagBook] = ()
    takes_model: bool = True
    values: dict[str, Any] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    variables: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def put(self, flag: Flag, path: str, raw: Any, *, twice: bool = True) -> None:
        """Keep a flag's value; the last one given counts, as in argparse."""
        if twice and flag.name in self.values:
            self.notes.append(f"{path} is given more than once: the last counts")
        if (said := self.book.said(self.book.deprecated, flag)) is not None:
            self.notes.append(f"{path} is deprecated in {self.book.title}: {said}")
        if isinstance(raw, str) and VARIABLE.search(raw) and flag.kind != "json":
            self.variables[flag.name] = raw  # a fault only where the value matters
            self.values[flag.name] = raw
            return
        before = len(self.faults)
        self.values[flag.name] = converted(flag, raw, self.book, path, self.faults)
        if len(self.faults) > before:
            self.broken.add(flag.name)
        else:
            self.broken.discard(flag.name)
            self.variables.pop(flag.name, None)


def parse_words(words: Sequence[str], parsed: Parsed) -> None:
    """Read the words of a command line into `parsed`."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or _NEGATIVE.match(word):
            _positional(word, parsed)
            continue
        name, equals, attached = word.partition("=")
        if parsed.book.engine == "vllm":
            name, equals, attached = _as_vllm(name, equals, attached)
        if parsed.book.engine == "vllm" and "." in name:
            _dotted(name, attached if equals else (rest.pop(0) if rest else None), parsed)
            continue
        spelling = _spelling(name, parsed)
        if spelling is None:
            if not equals and rest and not _is_flag(rest[0]):  # the value of a flag that is not known
                rest.pop(0)
            continue
        _valued(spelling, name, attached if equals else None, rest, parsed)


def parse_mapping_of_flags(given: Mapping[str, Any], parsed: Parsed) -> None:
    """Read flags from a mapping: names with or without dashes; true sets a switch, null leaves a flag out."""
    for key, raw in given.items():
        name = str(key).lstrip("-")
        name = name if parsed.book.engine == "trtllm" else name.replace("_", "-")
        spelling = _spelling(f"--{name}", parsed)
        if spelling is None or raw is None:
            continue
        if spelling.flag.kind in ("switch", "toggle") and isinstance(raw, bool):
            if raw or spelling.flag.kind == "toggle":
                parsed.put(spelling.flag, f"--{name}", spelling.value == raw)
            continue
        parsed.put(spelling.flag, f"--{name}", raw)


def _positional(word: str, parsed: Parsed) -> None:
    if parsed.model is None and parsed.takes_model:
        parsed.model = word
        return
    fix = "quote a value that holds spaces, or put -- in front of a flag"
    parsed.faults.append(Fault(word, "is neither a flag nor the value of one", fix))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _NEGATIVE.match(word)


def _as_vllm(name: str, equals: str, attached: str) -> tuple[str, str, str]:
    """Underscores are dashes up to the first dot, and -O3 is --optimization-level 3."""
    if name.startswith("--"):
        head, dot, tail = name.partition(".")
        return head.replace("_", "-") + dot + tail, equals, attached
    if name.startswith("-O") and name[2:3] != ".":
        return "--optimization-level", "=" if name != "-O" or equals else "", name[2:] or attached
    return name, equals, attached


def _spelling(name: str, parsed: Parsed) -> Spelling | None:
    """The flag that a word names, exactly or by an abbreviation that fits one flag only (argparse; not click)."""
    book = parsed.book
    if name in book.words:
        return book.words[name]
    if book.engine != "trtllm" and name.startswith("--") and len(name) > 2:
        near = {word: said for word, said in book.words.items() if word.startswith(name)}
        if near and len({(said.flag.name, said.value) for said in near.values()}) == 1:
            word = min(near, key=len)
            parsed.notes.append(f"{name} is read as {word}, the only flag that it abbreviates")
            return near[word]
    parsed.faults.append(_unknown(name, parsed))
    return None


def _unknown(name: str, parsed: Parsed) -> Fault:
    book = parsed.book
    problem = f"is no flag of {book.title}"
    holders = [other.version for other in parsed.others if name in other.words]
    if holders:
        problem += f"; {book.engine} {', '.join(holders)} has it"
    short = [word for word in book.words if word.startswith(name)] if book.engine != "trtllm" else []
    stem = name.lstrip("-")
    if stem in book.renamed:
        return Fault(name, problem, f"here: {book.renamed[stem]}")
    if len(short) > 1 and len(name) > 3:
        return Fault(name, f"{problem}; it abbreviates {', '.join(sorted(short)[:4])}", "write one of them out")
    fix = suggestion(name, (word for word in book.words if word.startswith("--"))) or "leave it out, or check its name"
    return Fault(name, problem, fix)


def _valued(spelling: Spelling, name: str, attached: str | None, rest: list[str], parsed: Parsed) -> None:
    flag = spelling.flag
    if flag.kind in ("switch", "toggle"):
        if attached is not None:
            parsed.faults.append(Fault(name, f"takes no value, but has {attached!r}", f"write {name} alone"))
            parsed.broken.add(flag.name)
            return
        parsed.put(flag, name, spelling.value)
        return
    if flag.kind == "many":
        found = [attached] if attached is not None else _until_flag(rest)
        parsed.put(flag, name, found)
        return
    if attached is None and (not rest or _is_flag(rest[0])):
        if flag.kind == "maybe":
            parsed.put(flag, name, "")
            return
        after = f"{rest[0]} follows" if rest else "the command ends"
        parsed.faults.append(Fault(name, f"needs a value, but {after}", f"write {name} VALUE"))
        parsed.broken.add(flag.name)
        return
    parsed.put(flag, name, attached if attached is not None else rest.pop(0))


def _until_flag(rest: list[str]) -> list[str]:
    found = []
    while rest and not _is_flag(rest[0]):
        found.append(rest.pop(0))
    return found


def _dotted(name: str, text: str | None, parsed: Parsed) -> None:
    """--flag.key value: a part of a json flag (vLLM); key+ adds to a list."""
    head, *keys = name.split(".")
    spelling = _spelling(head, parsed)
    if spelling is None:
        return
    if spelling.flag.kind != "json" or text is None:
        problem = "needs a value" if text is None else f"{head} holds no keys"
        parsed.faults.append(Fault(name, problem, f"write {head} VALUE"))
        return
    value: Any = _literal(text)
    if keys[-1].endswith("+"):
        keys[-1], value = keys[-1][:-1], [_literal(part) for part in text.split(",")]
    for key in reversed(keys):
        value = {key: value}
    old = parsed.values.get(spelling.flag.name)
    merged = _merged(old, value) if isinstance(old, dict) else value
    parsed.put(spelling.flag, head, merged, twice=False)


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        try:
            return sized(text, "vllm")
        except ValueError:
            return text


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        kept = result.get(key)
        result[key] = _merged(kept, value) if isinstance(kept, dict) and isinstance(value, dict) else value
    return result
