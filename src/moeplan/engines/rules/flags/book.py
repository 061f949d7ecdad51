"""The flags that one version of an engine takes, read from data/engines/flags."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

from msgspec import Struct

from moeplan.engines.rules import EngineName
from moeplan.errors import Fault, InputError, suggestion
from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, read_mapping

KINDS = ("switch", "toggle", "whole", "sized", "number", "text", "json", "many", "maybe")
ENGINES: tuple[EngineName, ...] = ("sglang", "vllm", "trtllm")


class Flag(Struct, frozen=True):
    """One flag: the name that the parser prints first, what follows it, and its other names, without dashes."""

    name: str
    kind: str
    names: tuple[str, ...]


class Spelling(Struct, frozen=True):
    """What a word such as --no-enforce-eager says: a flag, or its negation."""

    flag: Flag
    value: bool = True


class FlagBook(Struct, frozen=True, kw_only=True, dict=True):
    """Every flag of a version: its names by kind, the choices of those that matter, and what became of old ones.

    renamed: names (of flags and variables) that this version lacks, with what does it here; meaning: what a flag counts
    in this version; keys: what a json flag, or a part of the configuration file, may hold.
    """

    engine: EngineName
    version: str
    source: str
    names: dict[str, str]
    choices: dict[str, tuple[str, ...]]
    deprecated: dict[str, str]
    renamed: dict[str, str]
    meaning: dict[str, str]
    keys: dict[str, str]

    def __post_init__(self) -> None:
        _ = self.words  # a word that names two flags is a fault of the file

    @cached_property
    def words(self) -> dict[str, Spelling]:
        """Every word that names a flag; raise InputError where the names contradict each other."""
        words: dict[str, Spelling] = {}
        faults = [Fault(f"names.{kind}", "unknown kind", f"one of {', '.join(KINDS)}") for kind in self.names]
        faults = [fault for fault in faults if fault.path.split(".")[1] not in KINDS]
        for kind, text in self.names.items():
            for entry in text.split():
                names = tuple(entry.split("|"))
                flag = Flag(names[0].lstrip("-"), kind, tuple(name.lstrip("-") for name in names))
                for word, value in _spellings(names, kind, paired=self.engine == "vllm"):
                    if word in words and words[word].flag != flag:
                        faults.append(Fault(f"names.{kind}", f"{word} names two flags", "keep one"))
                    words[word] = Spelling(flag, value)
        if faults:
            raise InputError(f"{self.engine} {self.version}", faults)
        return words

    @property
    def title(self) -> str:
        """The engine and its version, for messages."""
        return f"{self.engine} {self.version}"

    def flag(self, name: str) -> Flag | None:
        """The flag of any of its names, without dashes."""
        found = self.words.get(f"--{name}") or self.words.get(f"-{name}")
        return None if found is None else found.flag

    def allowed(self, flag: Flag) -> tuple[str, ...]:
        """The values that a flag may have; empty where any is taken, or they are not listed."""
        return next((self.choices[name] for name in flag.names if name in self.choices), ())

    def said(self, table: dict[str, str], flag: Flag) -> str | None:
        """What one of the tables says of a flag, under any of its names."""
        return next((table[name] for name in flag.names if name in table), None)


def _spellings(names: tuple[str, ...], kind: str, *, paired: bool) -> list[tuple[str, bool]]:
    """Every word for a flag and whether it says yes; `paired`: --enable-x and --disable-x are two words for one."""
    said = [(name if name.startswith("-") else f"--{name}", True) for name in names]
    if kind != "toggle":
        return said
    long = [name for name in names if not name.startswith("-")]
    said += [(f"--no-{name}", False) for name in long]
    if paired:
        said += [(f"--disable-{name.removeprefix('enable-')}", False) for name in long if name.startswith("enable-")]
        said += [(f"--enable-{name.removeprefix('disable-')}", False) for name in long if name.startswith("disable-")]
    return said


def known_versions(catalog: Catalog, engine: EngineName) -> tuple[str, ...]:
    """The versions whose flags are known, oldest first."""
    found = {
        path.stem.removeprefix(f"{engine}-")
        for root in catalog.roots
        for path in (root / "engines" / "flags").glob(f"{engine}-*.yaml")
    }
    return tuple(sorted(found, key=lambda text: [int(part) for part in re.findall(r"\d+", text)]))


@lru_cache(maxsize=16)
def flag_book(catalog: Catalog, engine: EngineName, version: str) -> FlagBook:
    """The flags of that version.

    Raises InputError when they are not known.
    """
    known = known_versions(catalog, engine)
    if version not in known:
        fix = suggestion(version, known) or f"known: {', '.join(known)}"
        raise InputError("engine version", [Fault("engine_version", f"no flags of {engine} {version} are known", fix)])
    path = catalog.data_file("engines", "flags", f"{engine}-{version}.yaml")
    return build(FlagBook, read_mapping(path), str(path))
