"""One GPU sends to another: over the scale-up link inside its domain, else over its share of the NICs."""

from __future__ import annotations

import numpy as np

from moeplan.kernels.origin import Origin
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine

LINK_SHARE = 0.8  # of the link's one-way rate that large copies reach: 160 of 200 GB/s on H800 (DeepEP's README)
LINK_START = 2e-6


def point_to_point(name: str, machine: Machine, *, bytes_: Real, inside: bool, messages: Real = 1.0) -> Cost:
    """Start + bytes over the rate; inside: both GPUs are joined by the scale-up link. messages leave one by one.

    Across nodes the card's effective rate and its latency; beyond a switch's uplinks, where those are fewer, their
    share, as if all GPUs sent at once. Assumed: no rows of single transfers are packaged.
    """
    cluster = machine.cluster
    link = cluster.gpu.scale_up
    if inside and link is not None:
        start, rate, what = LINK_START, LINK_SHARE * link.bandwidth, "scale-up link"
    else:
        start, rate = cluster.nic.latency, cluster.nic.effective_rate * cluster.nics_per_gpu
        rate, what = rate / cluster.oversubscription, "NIC"
    wire: Real = np.asarray(bytes_) / rate if np.ndim(bytes_) else bytes_ / rate
    floor = start * messages + 0.0 * wire
    return Cost(
        name=name,
        seconds=floor + wire,
        parts={"network": wire, "floor": floor},
        efficiencies={},
        origin=Origin.ASSUMED,
        source=f"{what} at the rate that large messages reach, nothing else on it",
        formula="messages · start + bytes / rate",
        terms={
            "bytes": (bytes_, "B"),
            "messages": (messages, ""),
            "start": (start, "s"),
            "rate": (rate, "B/s"),
        },
        bytes_=bytes_ * 1.0,
        lane="network",
    )
