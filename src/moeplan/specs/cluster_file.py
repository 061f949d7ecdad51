"""A cluster as written in YAML: names instead of things."""

from __future__ import annotations

from msgspec import Struct, field


class ClusterFile(Struct, frozen=True, kw_only=True):
    """A cluster as written in YAML: names instead of things."""

    name: str
    gpu: str
    nic: str
    gpus_per_node: int
    nics_per_node: int
    nodes: int | None = None
    leaf_nodes: int | None = None
    oversubscription: float = 1.0
    sources: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
