"""The machines asked about: named clusters, or GPUs and network cards combined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from moeplan.cli.options import cluster_of, count, edited_cluster, names
from moeplan.errors import Fault, InputError, together
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster

if TYPE_CHECKING:
    from moeplan.specs.edits import Edit

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_NIC = "cx7"


def machine_options(*, several: bool) -> Callable[[Command], Command]:
    """The options of Machines; plan may name several of each."""
    shown = "NAME[,NAME…]" if several else "NAME"
    options: list[Callable[[Any], Any]] = [
        click.option("--gpu", metavar=shown, help="GPU by name; see `moeplan gpus`."),
        click.option("--nic", metavar=shown, help=f"Network card; see `moeplan nics`.  [default: {DEFAULT_NIC}]"),
        click.option("--cluster", metavar=shown, help="Cluster, instead of --gpu and --nic; see `moeplan clusters`."),
        click.option("--nics-per-node", type=click.IntRange(1, 1000), help="NICs in a node; default: one per GPU."),
    ]

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class Machines(Struct, frozen=True, kw_only=True, eq=False):
    """Where a model runs: --cluster alone, or --gpu with --nic; raise InputError for both or neither."""

    cluster: str | None
    gpu: str | None
    nic: str | None
    nics_per_node: str | int | None

    def __post_init__(self) -> None:
        faults = [
            Fault(option, f"contradicts --cluster {self.cluster}", f"drop one, or edit the cluster: --set {target}.…")
            for option, value, target in (("--gpu", self.gpu, "gpu"), ("--nic", self.nic, "nic"))
            if self.cluster is not None and value is not None
        ]
        if self.cluster is None and self.gpu is None:
            faults.append(Fault("--gpu", "is missing", "name a GPU (`moeplan gpus`) or a --cluster"))
        if faults:
            raise InputError("options", faults)

    def clusters(self, catalog: Catalog, edits: Sequence[Edit] = ()) -> Iterator[tuple[Mapping[str, str], Cluster]]:
        """Each cluster meant, after the options that name it alone; raise UnknownName or InputError."""
        per_node = int(count(str(self.nics_per_node), "--nics-per-node")) if self.nics_per_node is not None else None
        if self.cluster is not None:
            clusters = names(self.cluster, "--cluster")
            together("options", *(partial(catalog.cluster, name) for name in clusters))
            for name in clusters:
                yield {"cluster": name}, _edited(catalog.cluster(name), per_node, edits)
            return
        gpus, nics = names(self.gpu or "", "--gpu"), names(DEFAULT_NIC if self.nic is None else self.nic, "--nic")
        together("options", *(partial(catalog.gpu, gpu) for gpu in gpus), *(partial(catalog.nic, nic) for nic in nics))
        for gpu in gpus:
            for nic in nics:
                yield {"gpu": gpu, "nic": nic}, cluster_of(catalog, gpu, nic, per_node, edits)

    def one(self, catalog: Catalog, edits: Sequence[Edit] = ()) -> Cluster:
        """The only cluster meant; raise UnknownName or InputError, also for several."""
        found = [cluster for _, cluster in self.clusters(catalog, edits)]
        if len(found) > 1:
            option = "--cluster" if self.cluster is not None else "--gpu or --nic"
            raise InputError("options", [Fault(option, "names several", "name one; `moeplan plan` compares several")])
        return found[0]


def _edited(cluster: Cluster, nics_per_node: int | None, edits: Sequence[Edit]) -> Cluster:
    if edits:
        from moeplan.specs.edits import edited

        cluster = replace(cluster, gpu=edited(cluster.gpu, "gpu", edits), nic=edited(cluster.nic, "nic", edits))
        cluster = edited_cluster(cluster, edits)
    return replace(cluster, nics_per_node=nics_per_node) if nics_per_node is not None else cluster
