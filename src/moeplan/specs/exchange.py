"""How tokens reach their experts by an all-to-all: a backend as data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from moeplan.errors import UnknownName
from moeplan.specs.loading import build, read_mapping

Mode = Literal["low-latency", "normal", "one domain"]
Direction = Literal["dispatch", "combine"]
FOLDER = Path(__file__).resolve().parents[1] / "data" / "exchanges"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Read from data/exchanges/*.yaml.

    mode: low-latency sends top_k messages per token; normal sends a token once per node and rank; one domain once per
    rank, over the scale-up link alone. backend: whose fits. wires: format on the way out by what the experts multiply
    in, bf16 where it is not listed; on the way back bf16. sms: taken while it runs; sms_all: it is a kernel of its own
    beside which nothing runs; hook: over the NIC it takes none. stands_in: whose times are taken, where not its own.
    """

    name: str
    title: str
    mode: Mode
    backend: str
    meaning: str
    source: str
    aliases: tuple[str, ...] = ()
    wires: dict[str, str]
    sms: int = 0
    sms_all: bool = False
    hook: bool = False
    stands_in: str = ""

    def wire(self, precision: str) -> str:
        """The format of a token on its way out, by what its experts multiply in."""
        return self.wires.get(precision, "bf16")


@lru_cache(maxsize=32)
def exchange(name: str) -> Exchange:
    """The all-to-all of that name or alias; raise UnknownName with near names."""
    given = name.lower().strip()
    if (path := FOLDER / f"{given}.yaml").is_file():  # a step asks for one: the others need not be read
        return _one(path)
    found = _all()
    for item in found.values():
        if given == item.name or given in item.aliases:
            return item
    raise UnknownName("exchange", name, {*found, *(alias for item in found.values() for alias in item.aliases)})


def exchange_names() -> tuple[str, ...]:
    """All names, sorted, aliases left out."""
    return tuple(_all())


@lru_cache(maxsize=32)
def _one(path: Path) -> Exchange:
    return build(Exchange, read_mapping(path), str(path))


@lru_cache(maxsize=1)
def _all() -> dict[str, Exchange]:
    found = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        item = _one(path)
        found[item.name] = item
    return found
