"""What a plan and a single deployment have in common as questions: options as typed, or as read from a saved file."""

from __future__ import annotations

from msgspec import Struct

from moeplan.cli.machines import Machines
from moeplan.kernels.sources import KernelSources, read_sources


class Question(Struct, frozen=True, kw_only=True, eq=False):
    """The options that both have."""

    model: str
    cluster: str | None = None
    gpu: str | None
    nic: str | None
    nics_per_node: str | int | None
    context: str
    mtp: str
    schedule: str
    kv: str
    attention: str
    experts: str | None
    linear: str | None
    acceptance: str
    kernels: str
    strict: bool = False
    edits: tuple[str, ...]
    data: str | None = None
    load: str | None = None
    redundant: str | None = None

    @property
    def machines(self) -> Machines:
        """Where the model runs; raise InputError for options that contradict each other."""
        return Machines(cluster=self.cluster, gpu=self.gpu, nic=self.nic, nics_per_node=self.nics_per_node)

    @property
    def formats(self) -> dict[str, str | None]:
        """The formats by option."""
        return {"--experts": self.experts, "--linear": self.linear, "--attention": self.attention, "--kv": self.kv}

    @property
    def sources(self) -> KernelSources:
        """Which sources may answer for a kernel; raise InputError."""
        return read_sources(self.kernels, strict=self.strict)
