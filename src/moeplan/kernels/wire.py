"""Collectives as operators ask for them: a backend's all-to-all with its bytes, an engine's all-reduce, NCCL's."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import Fault, InputError
from moeplan.kernels.choice import choices, chosen_fit
from moeplan.kernels.fit import Fit, fit_of, fits_of
from moeplan.kernels.forms.form import Kernel, Parts, Shape
from moeplan.kernels.forms.network import message_bytes
from moeplan.kernels.times import KernelTimes, Timed
from moeplan.kinds import Real
from moeplan.routing.coverage import NO_LIMIT, GroupLimit
from moeplan.routing.targets import distinct_targets
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.exchange import Direction, Mode
from moeplan.specs.gpu import EDITED
from moeplan.specs.precision import weight_format

Collective = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]
FORMS: Final[dict[Mode, str]] = {
    "low-latency": "deepep_low_latency",
    "normal": "deepep_normal",
    "one domain": "nvlink_all_to_all",
}
USUAL_SMS: Final = 20.0  # that DeepEP's normal kernels take by default
REACHED: Final = 40 * 2**30 / 50e9  # share of its line that ConnectX-7 reaches, whose rows are behind most fits
FARTHEST: Final = ("h200", "h100")  # whose rows of several nodes hold the others back that have none


class Fabric(Struct, frozen=True, kw_only=True):
    """per_node: GPUs that the scale-up link joins; nic_rate: bytes/s of NICs per GPU; nic_latency: of a NIC, s.

    leaf: GPUs under one switch; beyond it `oversubscription` of them share what one could send.
    """

    per_node: float
    nic_rate: float
    nic_latency: float
    leaf: float = float("inf")
    oversubscription: float = 1.0

    @classmethod
    def of(cls, cluster: Cluster) -> Fabric:
        """The fabric of a cluster; an effective rate set by hand stands for the line that would reach it."""
        nic = cluster.nic
        by_hand = nic.assumed.get("effective_rate") == EDITED
        rate = min(nic.effective_rate / REACHED, nic.line_rate) if by_hand else nic.line_rate
        rate *= cluster.nics_per_gpu
        return cls(
            per_node=float(cluster.gpu.domain),
            nic_rate=rate,
            nic_latency=nic.latency,
            leaf=cluster.leaf_gpus,
            oversubscription=cluster.oversubscription,
        )

    def rate(self, ep: Real) -> Real:
        """bytes/s at which a GPU of ep that all send to each other fills its NIC.

        Of what crosses NICs, (ep − leaf)/(ep − per_node) leaves the switch, whose uplinks take 1/oversubscription of
        it: the slower of NIC and uplink sets the pace.
        """
        if self.oversubscription == 1.0 or not np.any(np.greater(ep, self.leaf)):
            return self.nic_rate
        leaves = np.maximum(ep - self.leaf, 0.0) / np.maximum(ep - self.per_node, 1.0)
        return self.nic_rate / np.maximum(self.oversubscription * leaves, 1.0)


class Traffic(Struct, frozen=True, kw_only=True, eq=False):
    """What one rank sends: copies of a token on average, and bytes that stay, cross the link, cross the NIC."""

    copies: Real
    stays: Real
    link: Real
    nic: Real
    near: Real = 0.0  # the same two of one token: they depend on the ranks alone
    far: Real = 0.0

    @property
    def payload(self) -> Real:
        """All bytes but those that stay on the rank."""
        return self.link + self.nic


class AllToAll(Struct, frozen=True, kw_only=True, eq=False):
    """Its time, its bytes, and the SMs that it takes from what runs beside; none where the NIC works alone."""

    timed: Timed
    traffic: Traffic
    sms: float


def all_to_all(
    library: KernelTimes,
    fabric: Fabric,
    *,
    mode: Mode,
    direction: Direction,
    wire: str,
    tokens: Real,
    hidden: Real,
    top_k: Real,
    experts: Real,
    ep: Real,
    backend: str = "deepep",
    sms: float = USUAL_SMS,
    skew: Real = 1.0,
    limit: GroupLimit = NO_LIMIT,
) -> AllToAll | None:
    """Time and bytes of one direction; None where the article's figures alone are asked.

    tokens: of one rank. wire: a format's name, fp8_block or nvfp4 with scales, or bf16. experts: slots in all. skew:
    bytes of the busiest rank over the mean. limit: of the router, which narrows where a token's copies go. Raises
    InputError where no fit of that backend is known, or none may answer.
    """
    limit = NO_LIMIT if mode == "low-latency" else limit  # a message per expert, wherever the experts lie
    shape: dict[str, Real] = {"tokens": tokens, "hidden": hidden, "top_k": top_k, "experts": experts, "ep": ep}
    shape |= {"skew": skew, "groups": float(limit.count), "top_groups": float(limit.taken), "sms": sms}
    shape |= {"per_node": fabric.per_node, "nic_rate": fabric.rate(ep), "nic_latency": fabric.nic_latency}
    shape["combine"] = float(direction == "combine")
    timed = asked(library, FORMS[mode], wire, shape, backend=backend, direction=direction)
    if timed is None:
        return None
    traffic = traffic_of(FORMS[mode], wire, shape)
    return AllToAll(timed=timed, traffic=traffic, sms=sms if mode == "normal" else 0.0)


def asked(
    library: KernelTimes, form: str, wire: str, shape: Shape, *, backend: str, direction: Direction
) -> Timed | None:
    """The time of a backend's kernel, of none but that backend's; see all_to_all. ep may be an array."""
    alone = np.size(shape["ep"]) == 1
    whole = {**shape, "ep": float(np.max(shape["ep"]))} if alone else shape
    return _one(library, form, wire, whole, f"{backend}-{direction}")


def traffic_of(form: str, wire: str, shape: Shape) -> Traffic:
    """Bytes that a rank sends, by where they go: every message of a low-latency kernel, else one per place."""
    kernel = Kernel(formats={"wire": weight_format(wire)})
    ep, skew = np.asarray(shape["ep"], dtype=float), shape.get("skew", 1.0)
    tokens = shape["tokens"]
    size = message_bytes(kernel, shape["hidden"], shape["combine"]) * skew
    group = np.minimum(shape.get("per_node", ep), ep)
    if form == "deepep_low_latency":
        every = size * shape["top_k"]
        near, far = every * (group - 1.0) / ep, every * (ep - group) / ep
        return Traffic(
            copies=shape["top_k"] + 0.0 * ep,
            stays=tokens * (every / ep),
            link=tokens * near,
            nic=tokens * far,
            near=near,
            far=far,
        )
    law = {"experts": shape["experts"], "top_k": shape["top_k"]}
    law |= {"groups": shape.get("groups", 1.0), "top_groups": shape.get("top_groups", 1.0)}
    copies = distinct_targets(ep, **law)
    count = np.maximum(ep / group, 1.0)
    far = size * distinct_targets(count, **law) * (1.0 - 1.0 / count)
    near = size * copies * (1.0 - 1.0 / group)
    stays = tokens * (size * copies / ep)
    return Traffic(copies=copies, stays=stays, link=tokens * near, nic=tokens * far, near=near, far=far)


def all_reduce(library: KernelTimes, *, bytes_: Real, ranks: float, engine: str = "") -> Timed | None:
    """Time of an engine's all-reduce of one buffer over the ranks of a scale-up domain, in a CUDA graph."""
    shape = {"bytes": bytes_, "ranks": ranks}
    return library.timed("all_reduce", {"wire": "bf16"}, shape, engine=engine)


def collective(
    library: KernelTimes,
    name: Collective,
    *,
    bytes_: Real,
    ranks: float,
) -> Timed | None:
    """Time of NCCL's collective; bytes_: the whole buffer, as nccl-tests counts."""
    shape = {"bytes": bytes_, "ranks": ranks}
    shape |= {"times": 2.0 if name == "all-reduce" else 1.0, "direct": float(name == "all-to-all")}
    return library.timed("nccl", {"wire": "bf16"}, shape, engine=f"nccl-{name}", exact=True)


def _one(library: KernelTimes, form: str, wire: str, shape: Shape, kernel: str) -> Timed | None:
    facts = {"combine": float(np.max(shape["combine"]))}
    formats = {"wire": wire}
    chosen = chosen_fit(library.catalog, library.gpu, form, formats, engine=kernel, facts=facts, exact=True)
    if chosen is None and not library.sources.article:
        known = sorted({name for names in choices(library.catalog).kernels[form].values() for name in names})
        problem = f"no {kernel} is known to {form}"
        if kernel in known:
            problem = f"no rows of {kernel} with {wire} on {library.gpu.name} or a chip like it, so no fit"
        fault = Fault("backend", problem, f"one of {', '.join(name for name in known if name != kernel)}")
        raise InputError("all-to-all", [fault])
    ask = library.timed if np.size(shape["ep"]) == 1 else library.timed_along
    timed = ask(form, formats, shape, facts=facts, engine=kernel, exact=True)
    if timed is None or chosen is None or timed.beyond == 0.0 or not _crosses(chosen.fit, shape):
        return timed
    return _held_back(library, timed, chosen.fit, shape)


def _crosses(fit: Fit, shape: Shape) -> bool:
    """Whether a question is of several nodes and the rows behind the fit of one alone."""
    if "per_node" not in fit.range:
        return False
    return fit.range["ep"][1] <= fit.range["per_node"][0] and bool(np.any(np.greater(shape["ep"], shape["per_node"])))


def _held_back(library: KernelTimes, timed: Timed, fit: Fit, shape: Shape) -> Timed:
    """No faster than a chip whose several nodes were measured: what a faster link gains there nobody has shown."""
    known = _of_several_nodes(library.catalog, f"{fit.form.name}.{fit.kernel.formats['wire'].name}.{timed.kernel}")
    note = "no row of several nodes"
    if known is None:
        return replace(timed, source=f"{timed.source}; {note}")
    gpu, other = known
    least = other.parts(library.catalog.packaged.gpu(gpu), shape)
    crosses = np.greater(shape["ep"], shape["per_node"])
    slower = np.logical_and(crosses, np.greater(least.seconds, timed.parts.seconds))
    parts = Parts(
        seconds=np.where(slower, least.seconds, timed.parts.seconds),
        compute=timed.parts.compute,
        memory=timed.parts.memory,
        network=np.where(slower, least.network, timed.parts.network),
    )
    return replace(timed, parts=parts, source=f"{timed.source}; {note}, no faster than {gpu}")


@lru_cache(maxsize=64)
def _of_several_nodes(catalog: Catalog, recipe: str) -> tuple[str, Fit] | None:
    fits = fits_of(catalog, recipe)
    for gpu in FARTHEST:
        if gpu in fits and fits[gpu].range["ep"][1] > fits[gpu].range["per_node"][1]:
            return gpu, fit_of(fits[gpu])
    return None
