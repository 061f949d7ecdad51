"""The four chains that start at the batch: weights, rows, all-to-all, KV cache (batch article, roofline of MoE)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array, Real
from moeplan.layers.layer import Layer
from moeplan.ops.cost import Cost
from moeplan.predict import Prediction, Predictor, dispatchable
from moeplan.routing.coverage import coverage
from moeplan.specs.deployment import Deployment, ScheduleName
from moeplan.specs.model import ModelSpec
from moeplan.specs.parameters import Parameters, parameters, replicated_bytes, routed_bytes
from moeplan.specs.schedule import PLAIN
from moeplan.specs.schedule import schedule as named

WIRE = ("dispatch", "combine")
DRAFT_PRODUCTS = 2  # a draft's projection and head, beside its layer


class FourChains(Struct, frozen=True, kw_only=True, eq=False):
    """One GPU's step over the batch, all of the shape of `batch`; NaN where a dense model has none.

    schedule: its name, of the faster one where two were compared. eager_seconds: without CUDA graphs, see eager_step.

    Weights: tokens that meet in the EP group at once (see experts_covered), bytes of weights read in a step,
    intensity = 2 · N_active · tokens of the GPU / bytes. Rows: mean per expert slot, waste = FLOP done over FLOP asked.
    skew: rows of the fullest rank over the mean. All-to-all: bytes, busy seconds, and the share of the step that it is
    exposed; expert_share: that of the routed experts and it. KV: bytes asked, and what is free for it.
    """

    batch: Array
    schedule: NDArray[np.str_]
    seconds: Array
    tps_per_user: Array
    tps_per_gpu: Array
    eager_seconds: Array
    tokens: Array
    weight_bytes: Array
    intensity: Array
    rows: Array
    waste: Array
    skew: Array
    expert_share: Array
    wire_bytes: Array
    wire_seconds: Array
    wire_share: Array
    kv_bytes: Array
    kv_room: Array
    fits: Array
    dispatchable: Array

    def at(self, batch: float) -> int:
        """Where that batch is; raise ValueError when it is not there."""
        found = np.flatnonzero(self.batch == batch)
        if not found.size:
            raise ValueError(f"no batch of {batch:g} here")
        return int(found[0])


def four_chains(predictor: Predictor, deployment: Deployment, schedule: str, *, host_launch: float) -> FourChains:
    """The chains over deployment.batch, an array; schedule: a name, or auto: naive or two-batch, the faster at each.

    host_launch: see eager_step. Two-batch overlap takes even batches: named alone, odd ones are left out; under auto
    they run the naive schedule.
    Raises InputError where that leaves no batch.
    """
    batch = np.atleast_1d(np.asarray(deployment.batch, dtype=float))
    overlap = predictor.model.is_moe and float(deployment.ep) > 1
    if schedule != "auto":
        parts = named(schedule).micro_batches
        batch = batch[batch % parts == 0]
        if not batch.size:
            fix = f"{schedule} overlap needs {'an even batch' if parts == 2 else f'a multiple of {parts}'}"
            raise InputError("options", [Fault("--batches", "leaves nothing to try", fix)])
        return _chains(predictor, replace(deployment, batch=batch), schedule, host_launch)
    plain = _chains(predictor, replace(deployment, batch=batch), PLAIN, host_launch)
    if not overlap:
        return plain
    other = _chains(predictor, replace(deployment, batch=batch), "two-batch", host_launch)
    faster = (batch % 2 == 0) & (other.seconds < plain.seconds)
    names = FourChains.__struct_fields__
    chosen = {name: np.where(faster, getattr(other, name), getattr(plain, name)) for name in names}
    # Micro-batches double the launches: without graphs the plain schedule may be the faster one where it is not with.
    either = np.where(batch % 2 == 0, np.minimum(plain.eager_seconds, other.eager_seconds), plain.eager_seconds)
    return FourChains(**{**chosen, "eager_seconds": either})


def full_weight_bytes(model: ModelSpec) -> float:
    """Bytes of all weights of the model that GEMMs read: the input embedding is looked up, not multiplied."""
    table = 0.0 if model.tied_embeddings else parameters(model).embedding.bytes_in(model.formats.embedding)
    return replicated_bytes(model, mtp=False) + routed_bytes(model, mtp=False) - table


def experts_covered(model: ModelSpec, tokens: Array) -> Array:
    """Share of the experts that tokens which meet at once hit, C (batch article, coverage); 1 for a dense model."""
    if model.experts is None:
        return np.ones(np.shape(tokens))
    return np.asarray(coverage(tokens, experts=model.experts.count, top_k=model.experts.top_k))


def weight_traffic(step: Prediction) -> Real:
    """Bytes of weights that the fullest GPU reads in a step, the drafts' passes left out.

    [C · W_routed + W_shared] · bpp (batch article), with the routed experts of this rank and everything else, which
    attention-DP holds in full on every rank. Micro-batches read the layers that they split once each.
    """
    model, count = step.model, parameters(step.model)
    once = full_weight_bytes(model) - routed_bytes(model, mtp=False)
    load = step.load
    if load is None or model.experts is None:
        return once
    times = named(step.deployment.schedule).micro_batches
    again = (times - 1) * _replicated_of_sparse_layers(model, count)
    routed = routed_bytes(model, mtp=False) / model.experts.count * load.active
    return once + again + times * routed


def operators_of(step: Prediction) -> int:
    """Operators that a step launches: of all layers and micro-batches, outside of them, and of the drafts' passes."""
    layers = sum(_operators(group.layer) * group.timeline.micro_batches * group.group.count for group in step.groups)
    outside = sum(cost.name != "step_overhead" for cost in step.outside)
    draft = max(step.groups, key=lambda group: group.group.ffn == "moe").layer
    return layers + outside + int(step.deployment.drafts) * (_operators(draft) + DRAFT_PRODUCTS)


def eager_step(step: Prediction, host_launch: float) -> Real:
    """A step without CUDA graphs: max(step, operators · host seconds per operator), the kernels' time or the host's.

    The host's does not depend on the batch (batch article: 144, 141, 146, 143 ms at 1, 8, 32, 64 requests).
    """
    result: Real = np.maximum(step.seconds, operators_of(step) * host_launch)
    return result


def _operators(layer: Layer) -> int:
    return sum(cost.name != "launch gaps" for stage in layer.stages.values() for cost in stage.costs)


def _replicated_of_sparse_layers(model: ModelSpec, count: Parameters) -> float:
    """Bytes of everything but routed experts in the layers that have them."""
    formats = model.formats
    outside = count.embedding.bytes_in(formats.embedding) + count.head.bytes_in(formats.embedding)
    own = count.router.bytes_in("bf16") + count.shared.bytes_in(formats.linear)
    every = replicated_bytes(model, mtp=False) - outside - own - count.dense.bytes_in(formats.linear)
    return own + every * model.moe_layer_count / model.layer_count


def _chains(predictor: Predictor, deployment: Deployment, schedule: ScheduleName, host_launch: float) -> FourChains:
    step = predictor.evaluate(replace(deployment, schedule=schedule))
    batch = np.asarray(deployment.batch)
    experts, load = step.model.experts, step.load
    tokens = batch * deployment.q_len
    active = parameters(step.model).active_without_embedding
    bytes_ = weight_traffic(step)
    wire_bytes, wire_seconds, wire_exposed = _wire(step)
    met: Real = tokens
    rows: Real = np.nan
    skew: Real = np.nan
    if experts is not None and load is not None:
        met = tokens * deployment.ep / named(schedule).micro_batches
        rows = load.mean_rows_per_slot
        skew = load.rows / (load.slots * rows)
    found: dict[str, Real] = {
        "batch": batch,
        "seconds": step.seconds,
        "tps_per_user": step.tps_per_user,
        "tps_per_gpu": step.tps_per_gpu,
        "eager_seconds": eager_step(step, host_launch),
        "tokens": met,
        "weight_bytes": bytes_,
        "intensity": 2.0 * active * tokens / bytes_,
        "rows": rows,
        "waste": next((cost.padding for cost in _costs(step) if cost.name == "routed_gate_up"), np.nan),
        "skew": skew,
        "expert_share": _routed_seconds(step) / step.seconds,
        "wire_bytes": wire_bytes,
        "wire_seconds": wire_seconds,
        "wire_share": wire_exposed / step.seconds,
        "kv_bytes": step.memory.kv_cache,
        "kv_room": step.memory.free + step.memory.kv_cache,
        "fits": step.fits,
        "dispatchable": dispatchable(step),
    }
    columns = {name: np.broadcast_to(value, batch.shape) for name, value in found.items()}
    return FourChains(**columns, schedule=np.full(batch.shape, schedule))


def _costs(step: Prediction) -> Iterator[Cost]:
    for group in step.groups:
        for stage in group.layer.stages.values():
            yield from stage.costs


def _wire(step: Prediction) -> tuple[Real, Real, Real]:
    """Bytes, busy and exposed seconds of the all-to-alls of a step."""
    bytes_: Real = 0.0
    busy: Real = 0.0
    exposed: Real = 0.0
    for group in step.groups:
        copies = group.timeline.micro_batches * group.group.count
        for name, stage in group.layer.stages.items():
            if name in WIRE:
                for cost in stage.costs:
                    bytes_ = bytes_ + copies * cost.bytes_
                busy = busy + copies * stage.seconds
                exposed = exposed + group.group.count * group.timeline.exposed[name]
    return bytes_, busy, exposed


def _routed_seconds(step: Prediction) -> Real:
    """Exposed seconds of the routed experts and the all-to-alls: what a better balance would shorten."""
    total: Real = 0.0
    for group in step.groups:
        for name, seconds in group.timeline.exposed.items():
            if name == "routed" or name in WIRE:
                total = total + group.group.count * seconds
    return total
