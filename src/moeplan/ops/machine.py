"""What runs the operators: a cluster's GPU and NIC, and the efficiencies of its kernels."""

from __future__ import annotations

from msgspec import Struct

from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.sources import ALL, KernelSources
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster


class Machine(Struct, frozen=True, eq=False):
    """A cluster with its kernel library."""

    cluster: Cluster
    kernels: KernelLibrary

    @classmethod
    def of(cls, cluster: Cluster, catalog: Catalog, sources: KernelSources = ALL) -> Machine:
        """Build the machine of a cluster, its efficiencies from the catalog's tables."""
        return cls(cluster, KernelLibrary.of(cluster.gpu, catalog, sources))
