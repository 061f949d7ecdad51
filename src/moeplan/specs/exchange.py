"""How tokens reach their experts by an all-to-all: a backend as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from moeplan.errors import Fault, InputError, UnknownName
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import LOW_LATENCY
from moeplan.specs.loading import build, read_mapping
from moeplan.specs.own_data import check_name, file_of, named_files, own_folder
from moeplan.specs.schedule import schedule

Mode = Literal["low-latency", "normal", "one domain"]
Direction = Literal["dispatch", "combine"]
Network = Literal["ibgda", "mori", "any", "none"]
Buffer = Literal["low-latency", "normal", "per rank"]
AUTO: Final = "auto"  # the first by `order` that a cluster can have


class Exchange(Struct, frozen=True, kw_only=True, eq=False):
    """Read from data/exchanges/*.yaml.

    mode: low-latency sends top_k messages per token; normal sends a token once per node and rank; one domain once per
    rank, over the scale-up link alone. backend: whose fits. wires: format on the way out by what the experts multiply
    in, bf16 where it is not listed; on the way back bf16. sms: taken while it runs; sms_all: it is a kernel of its own
    beside which nothing runs; hook: over the NIC it takes none. stands_in: whose times are taken, where not its own.
    vendors: whose GPUs it runs on. network: what drives the NIC between nodes, a library by which GPUs post messages
    themselves (specs.cluster.Nic.gpu_initiated), any card by the CPU, or none: it stays in one domain. buffer: by which
    rule of memory.py it reserves memory. capturable: in a CUDA graph. order: in which `usual` asks, 0: never by itself.
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
    vendors: tuple[str, ...]
    network: Network
    buffer: Buffer
    capturable: bool = True
    order: int = 0
    setup_source: str

    def wire(self, precision: str) -> str:
        """The format of a token on its way out, by what its experts multiply in."""
        return self.wires.get(precision, "bf16")

    @property
    def limited(self) -> bool:
        """Whether an engine limits the tokens that a rank may send: of kernels in DeepEP's low-latency layout."""
        return self.buffer == "low-latency"

    def most(self, cluster: Cluster) -> float:
        """The most ranks of that cluster that it connects; 0 where it does not run on its GPUs.

        A vendor that no all-to-all names, or a card that says nothing, rules nothing out.
        """
        gpu = cluster.gpu
        if gpu.vendor not in self.vendors and gpu.vendor in _vendors():
            return 0.0
        return gpu.domain if self._short(cluster) else inf

    def faults(self, cluster: Cluster, ranks: int) -> Iterator[Fault]:
        """Why it cannot connect so many ranks of that cluster, if so, and what can."""
        gpu, most = cluster.gpu, self.most(cluster)
        if ranks <= most:
            return
        fix = f"use {usual(cluster, ranks)}"
        if not most:
            yield Fault(self.name, f"runs on GPUs of {', '.join(self.vendors)}, {gpu.name} is of {gpu.vendor}", fix)
            return
        problem = f"{self._short(cluster)}, and {ranks} ranks are more than the {gpu.domain} of one domain"
        yield Fault(self.name, problem, f"{fix}, or at most {gpu.domain} GPUs" if gpu.domain > 1 else fix)

    def _short(self, cluster: Cluster) -> str:
        """Why it stops at the scale-up domain; empty where it does not."""
        if self.network == "none":
            return "stays in one domain of the scale-up link"
        driven = cluster.nic.gpu_initiated
        if self.network == "any" or driven is None or self.network in driven:
            return ""
        return f"needs a card that GPUs drive by {self.network}, {cluster.nic.name} is not known as one"


def exchange(name: str) -> Exchange:
    """The all-to-all of that name or alias; raise UnknownName with near names, InputError for a bad file."""
    return _exchange(name, own_folder())


@lru_cache(maxsize=32)
def _exchange(name: str, _own: Path | None) -> Exchange:
    given = name.lower().strip()
    if (path := file_of("exchanges", given)) is not None:
        return _one(path)  # a step asks for one: the others need not be read
    found = _all()
    for item in found.values():
        if given == item.name or given in item.aliases:
            return item
    raise UnknownName("exchange", name, {*found, *(alias for item in found.values() for alias in item.aliases)})


def exchange_names() -> tuple[str, ...]:
    """All names, sorted, aliases left out."""
    return tuple(_all())


def named_exchanges(names: Sequence[str]) -> tuple[str, ...]:
    """The own names of all-to-alls given by name or alias, each once; raise InputError naming every unknown one."""
    faults, found = [], []
    for name in names:
        try:
            found.append(exchange(name).name)
        except UnknownName as error:
            faults += [Fault("--exchange", fault.problem, fault.fix) for fault in error.faults]
    if faults:
        raise InputError("options", faults)
    return tuple(dict.fromkeys(found))


def usual(cluster: Cluster, ranks: int) -> str:
    """The first all-to-all by `order` that connects so many ranks of a cluster."""
    first = exchange(LOW_LATENCY)  # most clusters have it: the others need not be read
    if cluster.gpu.vendor in first.vendors and ranks <= first.most(cluster):
        return first.name
    ordered = sorted((item for item in _all().values() if item.order), key=lambda item: item.order)
    return next((item.name for item in ordered if ranks <= item.most(cluster)), first.name)


def usual_beside(name: str, cluster: Cluster, ranks: int) -> str:
    """The usual all-to-all, or its maker's in the mode that the schedule of that name was made for.

    Raises InputError where the maker has none that connects so many ranks.
    """
    first, mode = usual(cluster, ranks), schedule(name).mode
    if not mode or exchange(first).mode == mode:
        return first
    suited = [item for item in _all().values() if item.mode == mode and ranks <= item.most(cluster)]
    own = [item.name for item in suited if item.backend == exchange(first).backend]
    if not own:
        fix = f"name it: --exchange {' or '.join([first, *(item.name for item in suited)])}"
        problem = f"{name} was made for an all-to-all in {mode} mode, {exchange(first).title} has none here"
        raise InputError("options", [Fault("--schedule", problem, fix)])
    return own[0]


def usual_reach(cluster: Cluster) -> dict[str, tuple[float, float]]:
    """The usual all-to-all of every number of ranks: names with the sizes above the first number, up to the second."""
    domain = cluster.gpu.domain
    inside, across = usual(cluster, domain), usual(cluster, domain + 1)
    return {inside: (0.0, inf)} if inside == across else {inside: (0.0, float(domain)), across: (float(domain), inf)}


@lru_cache(maxsize=32)
def _one(path: Path) -> Exchange:
    found = build(Exchange, read_mapping(path), str(path))
    check_name(path, found.name)
    return found


def _all() -> dict[str, Exchange]:
    return _every(own_folder())


@lru_cache(maxsize=4)
def _every(_own: Path | None) -> dict[str, Exchange]:
    return {name: _one(path) for name, path in named_files("exchanges").items()}


def _vendors() -> frozenset[str]:
    """All whose GPUs some all-to-all runs on."""
    return frozenset(vendor for item in _all().values() for vendor in item.vendors)
