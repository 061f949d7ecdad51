"""Where to run: the smallest of the turning point, the promise and the memory; which binds, and what moves it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from moeplan.errors import InputError, Unsupported
from moeplan.explain.batch_article import turning_point, turning_tile
from moeplan.explain.four_chains import FourChains, experts_covered, four_chains, full_weight_bytes
from moeplan.explain.sensitivity import with_gpu
from moeplan.explain.shares import measured_share
from moeplan.kernels.origin import Origin
from moeplan.kinds import Array
from moeplan.predict import Prediction, Predictor
from moeplan.specs.deployment import Deployment, Precision, check_precision
from moeplan.specs.parameters import parameters
from moeplan.specs.precision import Format, weight_format

LARGEST = 4096  # requests per GPU that limits are sought up to
MORE_MEMORY = 1.1
TURNING, PROMISE, MEMORY, ALL_TO_ALL = "B*", "B_SLA", "B_max_mem", "all-to-all"


class Place(Struct, frozen=True, kw_only=True):
    """One batch and what it gives."""

    batch: int
    schedule: str
    seconds: float
    tps_per_user: float
    tps_per_gpu: float


class OperatingPoint(Struct, frozen=True, kw_only=True):
    """Limits on the batch, in requests per GPU; 0 where not even one request will do, LARGEST where none was found.

    turning: B* of the article's formula, dealt over the GPUs; promise: the largest batch that keeps the speed promised,
    by the step's prediction, and eager_promise without CUDA graphs; memory: the largest that fits; all_to_all: the most
    that the engine's low-latency kernels take. at: the smallest of these as the article has it. best: the highest
    throughput under promise, memory and all-to-all alone; origin and measured: how sure its step is at worst, and the
    share of its time on kernels measured on this GPU. All None where nothing is feasible. fastest: tokens per second of
    a user at the smallest batch.
    """

    turning: float
    promise: int
    eager_promise: int
    memory: int
    all_to_all: int
    at: Place | None
    best: Place | None
    origin: Origin | None
    measured: float | None
    fastest: float

    @property
    def limits(self) -> dict[str, float]:
        """The limits by name."""
        return {TURNING: self.turning, PROMISE: self.promise, MEMORY: self.memory, ALL_TO_ALL: self.all_to_all}

    @property
    def binds(self) -> str:
        """The limit that is smallest."""
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def next(self) -> tuple[str, float]:
        """The limit that would bind if the smallest were gone, and how many times as far it is; infinite beyond 0."""
        (_, least), (name, value) = sorted(self.limits.items(), key=lambda item: item[1])[:2]
        return name, value / least if least else np.inf


class Move(Struct, frozen=True, kw_only=True):
    """One change and the operating point after it; point None: why the change cannot be made."""

    change: str
    point: OperatingPoint | None
    reason: str = ""


class Budget(Struct, frozen=True, kw_only=True, eq=False):
    """The four chains and the operating point of one group of GPUs.

    ridge: FLOP/s over bytes/s at the precision that the weights are multiplied in. turning_tokens: B* in tokens of the
    whole group. own_turning: requests per GPU at which multiplying takes as long as reading, with the weights that a
    GPU really reads: attention-DP holds all but the routed experts on every one. coverage: of the experts, by the
    chains' batches.
    """

    ridge: float
    precision: str
    turning_tokens: float
    turning_tile: float
    own_turning: float
    host_launch: float
    chains: FourChains
    coverage: Array
    point: OperatingPoint
    moves: tuple[Move, ...]


def budget(
    predictor: Predictor, deployment: Deployment, *, schedule: str, min_tps: float, host_launch: float
) -> Budget:
    """Answer for the batches of the deployment, an array; its other figures are scalars.

    host_launch: seconds of the host per operator without CUDA graphs. Raises InputError, see four_chains.
    """
    weights = _weights(predictor, deployment)
    ridge = _ridge(predictor, deployment)
    chains = four_chains(predictor, deployment, schedule, host_launch=host_launch)
    wide = _wide(predictor, deployment, schedule, host_launch)
    return Budget(
        ridge=ridge,
        precision=weights.computes_in,
        turning_tokens=_turning_tokens(predictor, deployment),
        turning_tile=turning_tile(ridge, weights.bytes_per_element),
        own_turning=_first(wide, wide.intensity >= ridge),
        host_launch=host_launch,
        chains=chains,
        coverage=experts_covered(predictor.model, chains.tokens),
        point=_point(predictor, deployment, wide, min_tps),
        moves=tuple(_moves(predictor, deployment, schedule, min_tps, host_launch)),
    )


def operating_point(
    predictor: Predictor, deployment: Deployment, *, schedule: str, min_tps: float, host_launch: float
) -> OperatingPoint:
    """min(B*, B_SLA, B_max_mem) and the engine's limit, each up to LARGEST; deployment.batch does not matter.

    Raises Unsupported for a precision that the GPU lacks.
    """
    return _point(predictor, deployment, _wide(predictor, deployment, schedule, host_launch), min_tps)


def _wide(predictor: Predictor, deployment: Deployment, schedule: str, host_launch: float) -> FourChains:
    every = np.arange(1.0, LARGEST + 1)
    return four_chains(predictor, replace(deployment, batch=every), schedule, host_launch=host_launch)


def _point(predictor: Predictor, deployment: Deployment, wide: FourChains, min_tps: float) -> OperatingPoint:
    fits, takes = wide.fits.astype(bool), wide.dispatchable.astype(bool)
    kept = wide.tps_per_user >= min_tps
    eager = wide.tps_per_user * wide.seconds / wide.eager_seconds >= min_tps
    # Requests of a GPU whose tokens, with those of the GPUs that share the weights, make up the article's B*.
    sharing = float(deployment.ep) if predictor.model.is_moe else 1.0
    turning = _turning_tokens(predictor, deployment) / (sharing * float(deployment.q_len))
    allowed = kept & fits & takes
    at = best = None
    if allowed.any():
        below = allowed & (wide.batch <= max(turning, _first(wide, allowed)))
        at = _place(wide, int(np.flatnonzero(below)[-1]))
        best = _place(wide, int(np.argmax(np.where(allowed, wide.tps_per_gpu, -np.inf))))
    step = _predicted(predictor, deployment, best)
    return OperatingPoint(
        turning=turning,
        promise=_largest(wide, kept),
        eager_promise=_largest(wide, eager),
        memory=_largest(wide, fits),
        all_to_all=_largest(wide, takes),
        at=at,
        best=best,
        origin=step.origin if step is not None else None,
        measured=measured_share(step) if step is not None else None,
        fastest=float(wide.tps_per_user[0]),
    )


def _predicted(predictor: Predictor, deployment: Deployment, place: Place | None) -> Prediction | None:
    """The step at one place, with everything about it."""
    if place is None:
        return None
    return predictor.predict(replace(deployment, batch=place.batch, schedule=place.schedule))


def _first(wide: FourChains, wanted: NDArray[np.bool_]) -> float:
    """The smallest batch wanted; LARGEST where there is none."""
    return float(wide.batch[wanted].min(initial=LARGEST))


def _largest(wide: FourChains, allowed: NDArray[np.bool_]) -> int:
    """The largest batch allowed, 0 where there is none."""
    return int(wide.batch[allowed].max(initial=0.0))


def _place(chains: FourChains, index: int) -> Place:
    return Place(
        batch=int(chains.batch[index]),
        schedule=str(chains.schedule[index]),
        seconds=float(chains.seconds[index]),
        tps_per_user=float(chains.tps_per_user[index]),
        tps_per_gpu=float(chains.tps_per_gpu[index]),
    )


def _weights(predictor: Predictor, deployment: Deployment) -> Format:
    """The format of most weights."""
    return deployment.precision.experts if predictor.model.is_moe else deployment.precision.linear


def _ridge(predictor: Predictor, deployment: Deployment) -> float:
    """FLOP per byte at which the GPU turns from memory to arithmetic."""
    gpu = predictor.machine.cluster.gpu
    return gpu.peak(_weights(predictor, deployment).computes_in) / gpu.memory.bandwidth


def _turning_tokens(predictor: Predictor, deployment: Deployment) -> float:
    """B* of the article, tokens of the group; the input embedding counts on neither side."""
    model = deployment.precision.applied_to(predictor.model)
    active = parameters(model).active_without_embedding
    return turning_point(_ridge(predictor, deployment), full_weight_bytes(model), active)


Changed = tuple[Predictor, Deployment]


def _moves(
    predictor: Predictor, deployment: Deployment, schedule: str, min_tps: float, host_launch: float
) -> Iterator[Move]:
    """Every change, answered by the model again."""
    for name, changed in _changes(predictor, deployment):
        if isinstance(changed, str):
            yield Move(change=name, point=None, reason=changed)
            continue
        try:
            point = operating_point(*changed, schedule=schedule, min_tps=min_tps, host_launch=host_launch)
        except InputError as error:  # such as kernels of the other format that no allowed source answers for
            yield Move(change=name, point=None, reason="; ".join(map(str, error.faults)))
        else:
            yield Move(change=name, point=point)


def _changes(predictor: Predictor, deployment: Deployment) -> Iterator[tuple[str, Changed | str]]:
    """What to ask again, or why it cannot be asked."""
    gpu = predictor.machine.cluster.gpu
    if predictor.model.is_moe:
        yield f"EP{2 * int(deployment.ep)}", _doubled(predictor, deployment)
    for name, other in _precisions(predictor, deployment.precision):
        yield name, (predictor, replace(deployment, precision=other))
    yield "one MTP draft more", _drafted(predictor, deployment)
    memory = replace(gpu.memory, capacity=gpu.memory.capacity * MORE_MEMORY)
    yield "10 % more memory", (with_gpu(predictor, replace(gpu, memory=memory)), deployment)


def _doubled(predictor: Predictor, deployment: Deployment) -> Changed | str:
    total, ep = predictor.machine.cluster.total_gpus, 2 * int(deployment.ep)
    if total is not None and ep > total:
        return f"the cluster has {total} GPUs"
    if deployment.redundant is not None and predictor.model.experts is not None:
        slots = predictor.model.experts.count + deployment.redundant
        if ep > slots:
            return f"{slots} slots leave a rank of {ep} empty"
    return predictor, replace(deployment, ep=ep)


def _drafted(predictor: Predictor, deployment: Deployment) -> Changed | str:
    drafts, rates = int(deployment.drafts) + 1, len(deployment.acceptance.rates)
    if not predictor.model.mtp_layers:
        return f"{predictor.model.name} ships no multi-token-prediction module"
    if drafts > rates:
        return f"--acceptance has {rates} rates for {drafts} drafts"
    return predictor, replace(deployment, drafts=drafts)


def _precisions(predictor: Predictor, precision: Precision) -> Iterator[tuple[str, Precision]]:
    """The other formats of cache, core and weights that this GPU can multiply in."""
    gpu, model = predictor.machine.cluster.gpu, predictor.model
    fp8, nvfp4 = weight_format("fp8_block"), weight_format("nvfp4")
    cache = "fp8" if precision.kv.name == "bf16" else "bf16"
    yield f"KV {cache}", replace(precision, kv=weight_format(cache))
    others = []
    if precision.core.name == "bf16":
        others.append(("attention core fp8", replace(precision, core=weight_format("fp8"))))
    if precision.linear.name == "bf16" or (model.is_moe and precision.experts.name == "bf16"):
        wide = replace(precision, experts=fp8, linear=fp8, attention_linear=fp8, attention_output=fp8)
        others.append(("weights fp8", wide))
    if model.is_moe and precision.experts.name != "nvfp4":
        others.append(("experts nvfp4", replace(precision, experts=nvfp4)))
    for name, other in others:
        try:
            check_precision(other, gpu.supports, gpu.name)
        except Unsupported:  # a change that this chip cannot make is no answer to «what moves it»
            continue
        yield name, other
