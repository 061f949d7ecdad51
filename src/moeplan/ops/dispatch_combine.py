"""The two all-to-alls of expert parallelism, by the backend that does them."""

from __future__ import annotations

import numpy as np

from moeplan.errors import Fault, Unsupported
from moeplan.kernels.origin import Origin, worst
from moeplan.kernels.wire import AllToAll, Fabric, Traffic
from moeplan.kernels.wire import all_to_all as timed_all_to_all
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.routing.coverage import NO_LIMIT, GroupLimit
from moeplan.specs.cluster import Nic
from moeplan.specs.exchange import Direction, Exchange
from moeplan.specs.gpu import EDITED

TINY = np.finfo(float).tiny


def all_to_all(
    name: Direction,
    machine: Machine,
    exchange: Exchange,
    *,
    tokens: Real,
    hidden: int,
    top_k: int,
    experts: Real,
    ep: Real,
    precision: str,
    limit: GroupLimit = NO_LIMIT,
    skew: Real = 1.0,
) -> Cost:
    """One direction of an all-to-all; tokens per rank, experts: slots in all, precision: what they multiply in.

    seconds: a fitted form's (docs/wire.md), corrected by measured rows; with the article's figures rates alone.
    While tokens cross the scale-up link SMs copy them and are taken from compute (batch article); over the NIC none
    are, or as many as the backend's normal kernels take.

    Raises Unsupported where one domain of the scale-up link does not hold the ranks.
    """
    wire = exchange.wire(precision) if name == "dispatch" else "bf16"
    if machine.kernels.sources.article:
        return _by_rates(name, machine, tokens=tokens, hidden=hidden, top_k=top_k, ep=ep, dispatch=_plain(wire))
    domain = machine.cluster.gpu.domain
    if exchange.mode == "one domain" and np.any(np.greater(ep, domain)):
        fault = Fault("exchange", f"{exchange.name} reaches the {domain} GPUs of one domain", "use deepep-low-latency")
        raise Unsupported(machine.cluster.gpu.name, [fault])
    sent = timed_all_to_all(
        machine.kernels,
        Fabric.of(machine.cluster),
        mode=exchange.mode,
        direction=name,
        wire=wire,
        tokens=tokens,
        hidden=hidden,
        top_k=top_k,
        experts=experts,
        ep=ep,
        backend=exchange.backend,
        sms=exchange.sms or 20.0,
        limit=limit,
        skew=skew,
    )
    assert sent is not None, "only the article's figures give none"
    return _cost(name, machine, exchange, sent, tokens=tokens, ep=ep)


def _cost(name: Direction, machine: Machine, exchange: Exchange, sent: AllToAll, *, tokens: Real, ep: Real) -> Cost:
    timed, traffic, several = sent.timed, sent.traffic, np.greater(ep, 1)
    perfect = _at_line_rate(machine, traffic)
    alone = not np.all(several)
    seconds = np.where(several, timed.seconds, 0.0) if alone else timed.seconds
    network = np.minimum(timed.network, seconds)
    notes = [f"for {exchange.title} stand {exchange.stands_in}"] if exchange.stands_in else []
    origins = _of_edits(machine.cluster.nic)
    if machine.cluster.oversubscription > 1 and np.any(np.greater(ep, machine.cluster.leaf_gpus)):
        notes.append(f"uplinks of a switch {machine.cluster.oversubscription:g}:1, by their rate, not measured")
        origins.append(Origin.EXTRAPOLATED)
    return Cost(
        name=name,
        seconds=seconds,
        parts={"network": network, "floor": seconds - network},
        efficiencies={"network": np.minimum(perfect / np.maximum(network, TINY), 1.0)},
        origin=worst(timed.origin, *origins),
        source="; ".join((timed.source, *notes)),
        formula=f"{exchange.title}: start and wire of a fitted form (docs/wire.md)",
        terms={
            "tokens": (tokens, "per rank"),
            "copies of a token": (traffic.copies, ""),
            "over the link": (traffic.link, "B"),
            "over the NIC": (traffic.nic, "B"),
            "NIC rate": (machine.cluster.nic.line_rate * machine.cluster.nics_per_gpu, "B/s"),
            "link": (_link(machine), "B/s"),
            "start": (seconds - network, "s"),
        },
        bytes_=traffic.payload * np.where(several, 1.0, 0.0) if alone else traffic.payload,
        lane="network",
        sm_share=_sm_share(machine, exchange, traffic),
        measurable=True,
        error=timed.error,
    )


def _of_edits(nic: Nic) -> list[Origin]:
    """How sure a figure of a card is at best that was edited: a rate it reaches is assumed, others lead beyond rows."""
    if nic.assumed.get("effective_rate") == EDITED:
        return [Origin.ASSUMED]
    return [Origin.EXTRAPOLATED] if EDITED in nic.assumed.values() else []


def _sm_share(machine: Machine, exchange: Exchange, traffic: Traffic) -> Real:
    """What is taken of the SMs: all, a fixed number, or what copies over the link by its share of the time."""
    if exchange.sms_all:
        return 1.0
    if not exchange.hook:
        return min(exchange.sms / machine.cluster.gpu.units, 1.0)
    rate = machine.cluster.nic.line_rate * machine.cluster.nics_per_gpu
    link, nic = traffic.near / _link(machine), traffic.far / rate
    return machine.kernels.general.scale_up_sm_share * link / np.maximum(link + nic, TINY)


def _at_line_rate(machine: Machine, traffic: Traffic) -> Real:
    rate = machine.cluster.nic.line_rate * machine.cluster.nics_per_gpu
    return traffic.nic / rate + traffic.link / _link(machine)


def _link(machine: Machine) -> float:
    gpu = machine.cluster.gpu
    return gpu.scale_up.bandwidth if gpu.scale_up is not None else np.inf


def _plain(wire: str) -> str:
    return "bf16" if wire == "bf16" else "fp8"


def _by_rates(
    name: Direction, machine: Machine, *, tokens: Real, hidden: int, top_k: int, ep: Real, dispatch: str
) -> Cost:
    """Latency + NIC bytes / (rate·share) + scale-up bytes / (rate·share), with shares read off DeepEP's table.

    Of the tokens·top_k messages that a rank sends, a fraction 1/ep stays, (g − 1)/ep cross the scale-up link of g GPUs,
    (ep − g)/ep cross the NIC.
    """
    from moeplan.kernels.all_to_all import message_bytes, wire_share

    cluster, figures = machine.cluster, machine.kernels.general
    gpu, nic = cluster.gpu, cluster.nic
    group = np.minimum(gpu.domain, ep)
    across, inside = (ep - group) / ep, (group - 1) / ep
    payload = tokens * (top_k * message_bytes(name, hidden, dispatch=dispatch))
    share = wire_share(name, ep, gpu, nic, figures, machine.kernels.catalog)
    rate, link = nic.line_rate * cluster.nics_per_gpu, _link(machine)
    perfect, spent = across / rate + inside / link, across / (rate * share.nic) + inside / (link * share.scale_up)
    wire = payload * spent
    latency: Real = np.where(ep > group, nic.latency, np.where(ep > 1, figures.all_to_all_latency, 0.0))
    taken = figures.scale_up_sm_share
    copying = payload * (taken * inside / (link * share.scale_up)) / np.maximum(latency + wire, TINY)
    return Cost(
        name=name,
        seconds=latency + wire,
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
