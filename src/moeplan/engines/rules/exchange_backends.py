"""How an engine is asked for an all-to-all, and what its backends are known to run with."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from moeplan.engines.rules.support import by_start
from moeplan.specs.loading import build, read_mapping

PATH = Path(__file__).resolve().parents[2] / "data" / "engines" / "sglang-exchanges.yaml"


class Backend(Struct, frozen=True, kw_only=True):
    """What asks for one all-to-all: flag values, and the variable that sizes its buffer, empty where none does."""

    backend: str
    mode: str = ""
    variable: str = ""
    install: str = ""


class Overlap(Struct, frozen=True, kw_only=True):
    """What a schedule is written for; empty: no limit is known."""

    families: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()


class ExchangeBackends(Struct, frozen=True, kw_only=True):
    """Read from data/engines/sglang-exchanges.yaml, which says what each part is."""

    exchanges: dict[str, Backend]
    exchanges_source: str
    architectures: dict[str, tuple[str, ...]]
    families: dict[str, tuple[str, ...]]
    families_source: str
    overlaps: dict[str, Overlap]
    overlaps_source: str

    def known_on(self, architecture: str) -> tuple[str, ...]:
        """The backends known to run on an architecture."""
        return by_start(self.architectures, architecture, ())

    def exchanges_on(self, architecture: str) -> list[str]:
        """The all-to-alls that can be asked for there."""
        known = self.known_on(architecture)
        return [name for name, item in self.exchanges.items() if item.backend in known]

    def takes(self, backend: str, family: str) -> bool:
        """Whether a backend takes a family of models, as far as it names those that it takes."""
        return family in self.families.get(backend, (family,))


@lru_cache(maxsize=1)
def exchange_backends() -> ExchangeBackends:
    """SGLang's; raise InputError for a bad file."""
    return build(ExchangeBackends, read_mapping(PATH), str(PATH))
