"""What one more percent of each thing gives: elasticities of throughput, the batch free to follow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import Fault, InputError
from moeplan.kernels.library import KernelLibrary
from moeplan.ops.machine import Machine
from moeplan.predict import Predictor, dispatchable
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Acceptance, Deployment
from moeplan.specs.gpu import Gpu, Memory

STEP = 0.01  # one percent
_MOVES, _STRIDES = 60, 40  # 1.25**60 is beyond any batch
_RANGE, _POINTS = 0.25, 2001  # batches around the winner's, as real numbers: whole ones would hide a percent


class Elasticity(Struct, frozen=True, kw_only=True):
    """value: percent of tokens per second per GPU for one percent of the knob, in the direction that helps."""

    knob: str
    value: float
    meaning: str


Change = tuple[Predictor, Deployment, float]


def sensitivity(predictor: Predictor, chosen: Deployment, *, min_tps: float) -> list[Elasticity]:
    """Elasticities of the best throughput, EP size, schedule and formats held, the batch re-optimised.

    The batch is a real number here, and still under memory and min_tps (accepted tokens per second per user). A promise
    that leaves room lets it grow first, until something binds. A knob that binds nothing gives 0.

    Raises InputError where no batch near the chosen one fits and keeps min_tps: there is nothing to follow.
    """
    chosen, start = _settled(predictor, chosen, min_tps), chosen
    base = _best_throughput(predictor, chosen, min_tps)
    if not base:
        problem = f"no batch within {_RANGE:.0%} of {float(start.batch):g} fits and keeps {min_tps:g} tok/s per user"
        fix = "start from a deployment that does, such as the winner of `moeplan plan`"
        raise InputError("sensitivity", [Fault("batch", problem, fix)])
    result = []
    for knob, meaning, change in _knobs():
        changed = change((predictor, chosen, min_tps))
        if changed is not None:
            result.append(Elasticity(knob=knob, value=(_best_throughput(*changed) / base - 1) / STEP, meaning=meaning))
    return sorted(result, key=lambda item: -abs(item.value))


def settled(predictor: Predictor, chosen: Deployment, min_tps: float) -> tuple[float, float]:
    """The batch around which the elasticities hold, as a real number, and its tokens per second per GPU."""
    top, batch = _best_near(predictor, _settled(predictor, chosen, min_tps), min_tps)
    return batch, top


def _settled(predictor: Predictor, chosen: Deployment, min_tps: float) -> Deployment:
    """Follow the best batch while it lies at the edge of what is looked at: a slack promise lets it grow."""
    for _ in range(_MOVES):
        batch = float(chosen.batch)
        batches = np.linspace(max(batch * (1 - _RANGE), 0.5), batch * (1 + _RANGE), _STRIDES + 1)
        top, at = _best_of(predictor, replace(chosen, batch=batches), min_tps)
        if not top or 0 < at < _STRIDES or batches[at] == batch:
            break
        chosen = replace(chosen, batch=float(batches[at]))
    return chosen


def _best_throughput(predictor: Predictor, chosen: Deployment, min_tps: float) -> float:
    return _best_near(predictor, chosen, min_tps)[0]


def _best_near(predictor: Predictor, chosen: Deployment, min_tps: float) -> tuple[float, float]:
    """Look at real batches around the chosen one, then again, finer, around the best of them: throughput and batch."""
    batch = float(chosen.batch)
    low, high = max(batch * (1 - _RANGE), 0.5), batch * (1 + _RANGE) + 1
    best, best_batch = 0.0, batch
    for _ in range(2):
        batches = np.sort(np.append(np.linspace(low, high, _POINTS), batch))  # the chosen one, whatever the rounding
        top, at = _best_of(predictor, replace(chosen, batch=batches), min_tps)
        low, high = float(batches[max(at - 1, 0)]), float(batches[min(at + 1, _POINTS)])
        best, best_batch = max((best, best_batch), (top, float(batches[at])))
    return best, best_batch


def _best_of(predictor: Predictor, chosen: Deployment, min_tps: float) -> tuple[float, int]:
    step = predictor.evaluate(chosen)
    allowed = np.logical_and(step.fits, np.greater_equal(step.tps_per_user, min_tps))
    allowed = np.logical_and(allowed, dispatchable(step))  # the search's limits, all three
    throughput = np.asarray(step.tps_per_gpu)
    if not np.any(allowed):
        return 0.0, 0
    at = int(np.argmax(np.where(allowed, throughput, -np.inf)))
    return float(throughput[at]), at


def _knobs() -> list[tuple[str, str, Callable[[Change], Change | None]]]:
    more = 1 + STEP
    return [
        ("memory capacity", "1 % more memory", _gpu(lambda g: replace(g, memory=_memory(g, "capacity", more)))),
        ("memory bandwidth", "1 % more bandwidth", _gpu(lambda g: replace(g, memory=_memory(g, "bandwidth", more)))),
        ("FLOP/s", "1 % more at every precision", _gpu(lambda g: replace(g, compute=_scaled(g.compute, more)))),
        ("vector rate", "1 % more exp2 per second", _gpu(lambda g: replace(g, vector_rate=g.vector_rate * more))),
        ("scale-up link", "1 % more per direction", _link),
        ("NIC rate", "1 % more of line and effective rate", _nic_rate),
        ("all-to-all latency", "1 % less", _latency),
        ("launch gaps and floors", "1 % less", _launches),
        ("acceptance", "1 % more of every draft's rate", _acceptance),
        ("promised speed", "1 % less per user", lambda change: (change[0], change[1], change[2] * (1 - STEP))),
    ]


def _gpu(edit: Callable[[Gpu], Gpu]) -> Callable[[Change], Change | None]:
    def change(before: Change) -> Change:
        predictor, chosen, min_tps = before
        return with_gpu(predictor, edit(predictor.machine.cluster.gpu)), chosen, min_tps

    return change


def with_gpu(predictor: Predictor, gpu: Gpu) -> Predictor:
    """The same predictor on an edited chip; its kernels keep the fractions of the roofline that they reach."""
    machine = predictor.machine
    kernels = replace(machine.kernels, gpu=gpu)
    return replace(predictor, machine=Machine(replace(machine.cluster, gpu=gpu), kernels))


def _link(before: Change) -> Change | None:
    predictor, chosen, min_tps = before
    gpu = predictor.machine.cluster.gpu
    if gpu.scale_up is None:
        return None
    faster = replace(gpu.scale_up, bandwidth=gpu.scale_up.bandwidth * (1 + STEP))
    return with_gpu(predictor, replace(gpu, scale_up=faster)), chosen, min_tps


def _nic_rate(before: Change) -> Change:
    predictor, chosen, min_tps = before
    nic = predictor.machine.cluster.nic
    faster = replace(
        nic,
        line_rate=nic.line_rate * (1 + STEP),
        effective_rate=nic.effective_rate * (1 + STEP),
    )
    return _with_cluster(predictor, replace(predictor.machine.cluster, nic=faster)), chosen, min_tps


def _latency(before: Change) -> Change:
    predictor, chosen, min_tps = before
    cluster = predictor.machine.cluster
    quicker = replace(cluster, nic=replace(cluster.nic, latency=cluster.nic.latency * (1 - STEP)))
    figures = predictor.machine.kernels.general
    kernels = replace(
        predictor.machine.kernels,
        general=replace(figures, all_to_all_latency=figures.all_to_all_latency * (1 - STEP)),
    )
    return _with_cluster(predictor, quicker, kernels), chosen, min_tps


def _launches(before: Change) -> Change:
    predictor, chosen, min_tps = before
    figures, less = predictor.machine.kernels.general, 1 - STEP
    general = replace(
        figures,
        launch_gap=figures.launch_gap * less,
        elementwise_floor=figures.elementwise_floor * less,
        gqa_floor=figures.gqa_floor * less,
        step_overhead=figures.step_overhead * less,
        serial_overhead=figures.serial_overhead * less,
    )
    kernels = replace(predictor.machine.kernels, general=general, hasten=predictor.machine.kernels.hasten * less)
    return _with_cluster(predictor, predictor.machine.cluster, kernels), chosen, min_tps


def _acceptance(before: Change) -> Change | None:
    predictor, chosen, min_tps = before
    if not float(np.max(chosen.drafts)):
        return None
    rates = tuple(min(rate * (1 + STEP), 1.0) for rate in chosen.acceptance.rates)
    return predictor, replace(chosen, acceptance=Acceptance(rates=rates, source=chosen.acceptance.source)), min_tps


def _with_cluster(predictor: Predictor, cluster: Cluster, kernels: KernelLibrary | None = None) -> Predictor:
    return replace(predictor, machine=Machine(cluster, kernels or predictor.machine.kernels))


def _memory(gpu: Gpu, name: str, factor: float) -> Memory:
    return replace(gpu.memory, **{name: getattr(gpu.memory, name) * factor})


def _scaled(rates: dict[str, float], factor: float) -> dict[str, float]:
    return {precision: rate * factor for precision, rate in rates.items()}
