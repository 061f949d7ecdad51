"""What a cluster is: GPUs in nodes, joined by NICs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct, field

from moeplan.errors import Fault, InputError
from moeplan.specs.gpu import Gpu

Driver = Literal["ibgda", "mori"]


class Nic(Struct, frozen=True, kw_only=True):
    """A network card: line rate and the one-way rate that large messages reach, bytes/s; latency of a message, s.

    gpu_initiated: libraries by which GPUs post messages to it themselves, none where a CPU must; None: not stated.
    """

    name: str
    line_rate: Annotated[float, "B/s"]
    effective_rate: Annotated[float, "B/s"]
    latency: Annotated[float, "s"]
    gpu_initiated: tuple[Driver, ...] | None = None
    sources: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    slug: str = ""  # the name of its file, by which measured collectives are found

    def __post_init__(self) -> None:
        faults = []
        if not self.line_rate > 0:
            faults.append(Fault("line_rate", "is zero", "give the rate of one port in one direction"))
        if not 0 < self.effective_rate <= self.line_rate:
            fix = f"give a rate between 0 and line_rate ({self.line_rate / 1e9:g} GB/s)"
            faults.append(Fault("effective_rate", f"is {self.effective_rate / 1e9:g} GB/s", fix))
        if faults:
            raise InputError(self.name, faults)


class Cluster(Struct, frozen=True, kw_only=True):
    """GPUs in nodes: nics_per_node cards shared by gpus_per_node GPUs.

    leaf_nodes: nodes under one switch, which reach each other at the rate of their NICs; beyond it `oversubscription`
    nodes share what one could send.
    """

    gpu: Gpu
    nic: Nic
    gpus_per_node: int
    nics_per_node: int
    nodes: int | None = None  # None: as many as asked for
    leaf_nodes: int | None = None  # None: all
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        faults = [
            Fault(name, f"is {value}", "give at least 1")
            for name in ("gpus_per_node", "nics_per_node", "nodes", "leaf_nodes", "oversubscription")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        if self.oversubscription > 1 and self.leaf_nodes is None:
            fix = "give leaf_nodes: the nodes under one switch, which it does not slow down"
            faults.append(Fault("oversubscription", f"is {self.oversubscription:g} beyond no switch", fix))
        if faults:
            raise InputError(f"cluster of {self.gpu.name}", faults)

    @property
    def nics_per_gpu(self) -> float:
        """The share of a NIC that one GPU has: 0.5 for four cards in a node of eight GPUs."""
        return self.nics_per_node / self.gpus_per_node

    @property
    def leaf_gpus(self) -> float:
        """GPUs under one switch: those that reach each other at the rate of their NICs, or by the scale-up link."""
        if self.leaf_nodes is None:
            return float("inf")
        return float(max(self.leaf_nodes * self.gpus_per_node, self.gpu.domain))

    @property
    def total_gpus(self) -> int | None:
        """All GPUs, or None where the cluster has no fixed size."""
        return None if self.nodes is None else self.nodes * self.gpus_per_node
