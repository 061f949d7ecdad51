"""The two all-to-alls of expert parallelism, as DeepEP's low-latency kernels do them."""

from __future__ import annotations

import numpy as np

from moeplan.kernels.all_to_all import Direction, message_bytes, wire_share
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine


def all_to_all(
    name: Direction, machine: Machine, *, tokens: Real, hidden: int, top_k: int, ep: Real, dispatch: str
) -> Cost:
    """One token goes to top_k experts as top_k messages, not de-duplicated (DeepEP V1 low-latency).

    seconds = latency + NIC bytes / (rate·share) + scale-up bytes / (rate·share). Of the tokens·top_k messages a rank
    sends, a fraction 1/ep stays, (g − 1)/ep cross the scale-up link of g GPUs, (ep − g)/ep cross the NIC. The two
    links' times nearly add in DeepEP's measurements, since the same SMs feed both. `tokens` per rank.
    While tokens cross the scale-up link the SMs copy and are taken from compute (batch article); over the NIC none are.
    """
    cluster, figures = machine.cluster, machine.kernels.general
    gpu, nic = cluster.gpu, cluster.nic
    group = np.minimum(gpu.domain, ep)
    across, inside = (ep - group) / ep, (group - 1) / ep
    payload = tokens * (top_k * message_bytes(name, hidden, dispatch=dispatch))
    sources = machine.kernels.sources
    tables = sources.may("table") or sources.article
    share = wire_share(name, ep, gpu, nic, figures, machine.kernels.catalog, tables=tables)
    rate = nic.line_rate * cluster.nics_per_gpu
    link = gpu.scale_up.bandwidth if gpu.scale_up is not None else np.inf
    perfect, spent = across / rate + inside / link, across / (rate * share.nic) + inside / (link * share.scale_up)
    wire = payload * spent
    latency: Real = np.where(ep > group, nic.latency, np.where(ep > 1, figures.all_to_all_latency, 0.0))
    seconds = latency + wire
    taken = figures.scale_up_sm_share
    copying = payload * (taken * inside / (link * share.scale_up)) / np.maximum(seconds, np.finfo(float).tiny)
    return Cost(
        name=name,
        seconds=seconds,
        parts={"network": wire, "floor": latency},
        efficiencies={"network": perfect / np.where(spent > 0.0, spent, 1.0)},
        origin=share.origin,
        source=share.source,
        formula="latency + payload · (across / (NIC rate · share) + inside / (link · link share))",
        terms={
            "tokens": (tokens, "per rank"),
            "messages per token": (top_k, ""),
            "payload": (payload, "B"),
            "across": (across, "of it"),
            "inside": (inside, "of it"),
            "NIC rate": (rate, "B/s"),
            "share": (share.nic, ""),
            "link": (link, "B/s"),
            "link share": (share.scale_up, ""),
            "latency": (latency, "s"),
        },
        bytes_=payload * (across + inside),
        lane="network",
        sm_share=np.where(ep > group, copying, taken),
        measurable=True,
    )
