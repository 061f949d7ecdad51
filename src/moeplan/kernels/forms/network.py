"""What the forms of collectives share: columns of a fabric, bytes of a message, the link that it crosses."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.errors import Fault, Unsupported
from moeplan.kernels.forms.form import Kernel, Shape
from moeplan.kinds import Array, Real
from moeplan.specs.gpu import Gpu

HEADER: Final = 16.0  # bytes of a dispatched message that say where its token comes from
# Of the fabric: GPUs that the scale-up link joins, bytes/s of the NIC at one GPU's disposal, the NIC's latency in s.
FABRIC: Final = ("per_node", "nic_rate", "nic_latency")
# skew: bytes of the busiest rank over the mean of all. groups, top_groups: of the router's limit, 1 of 1 is none.
USUAL: Final = {"skew": 1.0, "groups": 1.0, "top_groups": 1.0}


def link_if_any(gpu: Gpu) -> float:
    """The same for kernels that leave a chip without a link to its NIC: nothing crosses a link then, at any rate."""
    return gpu.scale_up.bandwidth if gpu.scale_up is not None else float("inf")


def link_of(gpu: Gpu) -> float:
    """One-way rate of the scale-up link; raise Unsupported for a chip that has none."""
    if gpu.scale_up is None:
        raise Unsupported(gpu.name, [Fault("scale_up", f"{gpu.name} has no scale-up link", "take a GPU with one")])
    return gpu.scale_up.bandwidth


def columns(shape: Shape, names: tuple[str, ...]) -> dict[str, Array]:
    """The named columns as arrays; those of USUAL may be missing."""
    return {
        name: np.asarray(shape[name] if name in shape else USUAL[name], dtype=float)
        for name in dict.fromkeys((*names, *USUAL))
    }


def message_bytes(kernel: Kernel, hidden: Real, combine: Real) -> Real:
    """One token on the wire: its elements and their scales; a dispatched one has a header."""
    return hidden * kernel.formats["wire"].activation_bytes + HEADER * (1.0 - combine)


def node_count(ep: Real, per_node: Real) -> Real:
    """Groups of GPUs that NICs have to join, at least 1."""
    return np.maximum(ep / per_node, 1.0)
