"""Elasticities: known ones on chips bound by one thing, signs, homogeneity, and a search of our own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.errors import InputError
from moeplan.explain.sensitivity import sensitivity, with_gpu
from moeplan.kernels.sources import ALL, ARTICLE, KernelSources
from moeplan.ops.machine import Machine
from moeplan.predict import Prediction, Predictor
from moeplan.search.best import Found, best
from moeplan.search.space import Space
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster, Nic
from moeplan.specs.deployment import Acceptance, Deployment, Precision, ScheduleName
from moeplan.specs.gpu import Gpu, Memory
from moeplan.specs.model import ModelSpec

CATALOG = Catalog.standard()
RATES = ("memory bandwidth", "FLOP/s", "vector rate", "scale-up link", "NIC rate")
TIMES = ("all-to-all latency", "launch gaps and floors")


@cache
def predictor(model: str, gpu: str, nic: str = "cx7", sources: KernelSources = ALL) -> Predictor:
    return Predictor.of(CATALOG.model(model), cluster_of(CATALOG, gpu, nic, None), CATALOG, sources)


def deployment(model: ModelSpec, **changes: object) -> Deployment:
    plain = Deployment(
        batch=64, ep=1, context=4096, precision=Precision.of(model), acceptance=Acceptance.geometric(0.85, 3, "a test")
    )
    return replace(plain, **changes)


def elasticities(target: Predictor, chosen: Deployment, min_tps: float) -> dict[str, float]:
    found = sensitivity(target, chosen, min_tps=min_tps)
    sizes = [abs(item.value) for item in found]
    assert sizes == sorted(sizes, reverse=True)
    assert all(item.meaning for item in found)
    return {item.knob: item.value for item in found}


# --- chips of which the right answer is known -----------------------------------------------------------------------


def ideal(
    model: ModelSpec, *, flops: float = 1e22, bandwidth: float = 1e12, capacity: float = 1e15, vector: float = 1e24
) -> Predictor:
    """A chip of round figures without floors, gaps and overhead; no table of kernels is its own."""
    gpu = Gpu(
        name="ideal",
        vendor="this test",
        architecture="ideal",
        memory=Memory(capacity=capacity, bandwidth=bandwidth),
        compute={"bf16": flops, "fp8": 2 * flops},
        vector_rate=vector,
        attention_overlap="three-stage",
    )
    nic = Nic(name="ideal", line_rate=1e18, effective_rate=1e18, latency=0.0)
    machine = Predictor.of(model, Cluster(gpu=gpu, nic=nic, gpus_per_node=8, nics_per_node=8), CATALOG, ARTICLE).machine
    general = replace(
        machine.kernels.general,
        elementwise_floor=0.0,
        launch_gap=0.0,
        gqa_floor=0.0,
        all_to_all_latency=0.0,
        step_overhead=0.0,
    )
    kernels = replace(machine.kernels, general=general)
    return replace(Predictor.of(model, machine.cluster, CATALOG), machine=Machine(machine.cluster, kernels))


def line(target: Predictor, chosen: Deployment) -> tuple[float, float]:
    """Seconds of a step as fixed + slope·batch; checked to be a line."""
    one, two, four = (
        float(target.predict(replace(chosen, batch=factor * chosen.batch)).seconds) for factor in (1, 2, 4)
    )
    slope = (two - one) / float(chosen.batch)
    assert four == pytest.approx(one + 3 * float(chosen.batch) * slope, rel=1e-6)
    return one - slope * float(chosen.batch), slope


def percent(after: float, before: float) -> float:
    return 100 * (after / before - 1)


def test_a_step_bound_by_bandwidth_alone() -> None:
    """T = (w + k·b)/bw and T ≤ t: b = (bw·t − w)/k, so both what 1 % of bw and 1 % of t give are known."""
    model = CATALOG.model("llama-3.1-8b")
    target, chosen = ideal(model), deployment(model, batch=64)
    fixed, slope = line(target, chosen)
    time = fixed + 64 * slope
    found = elasticities(target, chosen, 1 / time)
    assert found["memory bandwidth"] == pytest.approx(percent((1.01 * time - fixed) / slope, 64), abs=2e-3)
    longer = time / 0.99
    assert found["promised speed"] == pytest.approx(percent((longer - fixed) / slope * 0.99, 64), abs=2e-3)
    for other in found.keys() - {"memory bandwidth", "promised speed"}:
        assert found[other] == pytest.approx(0, abs=1e-6), other
    assert found["memory bandwidth"] > 1.2  # more than proportional: the weights' share is already paid


def test_a_step_bound_by_arithmetic_alone() -> None:
    """Where every time falls with FLOP/s, 1 % more of it is as good as a promise 1 % lower, and 1 % faster."""
    model = CATALOG.model("llama-3.1-8b")
    target, chosen = ideal(model, flops=1e12, bandwidth=1e20), deployment(model, batch=64)
    found = elasticities(target, chosen, float(target.predict(chosen).tps_per_user))
    assert found["FLOP/s"] == pytest.approx(1 + found["promised speed"], abs=0.02)
    assert found["FLOP/s"] >= 0.999
    assert found["memory bandwidth"] == pytest.approx(0, abs=1e-6)
    assert found["memory capacity"] == 0


def largest_batch(target: Predictor, chosen: Deployment, capacity: float) -> float:
    """Requests that fit: what reserve and weights leave, over a request's cache and graphs."""
    memory = target.predict(replace(chosen, batch=1)).memory
    weights = float(memory.replicated_weights) + float(memory.expert_weights)
    each = float(memory.kv_cache) + target.rule.graph_bytes_per_request
    return (capacity * (1 - target.rule.reserve_share) - weights) / each


def test_a_batch_bound_by_memory_alone() -> None:
    """The promise is far: more memory gives its batch, a faster memory gives its time, the promise gives nothing."""
    model = CATALOG.model("llama-3.1-8b")
    target = ideal(model, capacity=24e9)
    chosen = deployment(model, batch=1)
    most = largest_batch(target, chosen, 24e9)
    chosen = replace(chosen, batch=int(most))
    fixed, slope = line(target, replace(chosen, batch=4))
    found = elasticities(target, chosen, 0.01)

    def throughput(batch: float) -> float:
        return batch / (fixed + slope * batch)

    more = largest_batch(target, chosen, 1.01 * 24e9)
    assert found["memory capacity"] == pytest.approx(percent(throughput(more), throughput(most)), rel=0.02)
    assert found["memory capacity"] > 0.5
    assert found["memory bandwidth"] == pytest.approx(1, abs=1e-3)
    assert found["promised speed"] == 0


@pytest.mark.parametrize("rate", [0.3, 0.85])
def test_acceptance(rate: float) -> None:
    """One draft gives 1 + a tokens a step, so 1 % more of a gives a/(1+a) %.

    Of the speed, where memory holds the batch; of the time allowed, where the promise does: (w + k·b)/(k·b) of batch.
    """
    model = CATALOG.model("deepseek-v3")
    target = ideal(model, capacity=2e12)
    chosen = deployment(model, batch=256, drafts=1, acceptance=Acceptance(rates=(rate,), source="this test"))
    fixed, slope = line(target, chosen)
    share = rate / (1 + rate)
    time = fixed + 256 * slope
    found = elasticities(target, chosen, (1 + rate) / time)
    allowed = time * (1 + 1.01 * rate) / (1 + rate)
    assert found["acceptance"] == pytest.approx(percent((allowed - fixed) / slope, 256), abs=5e-3)
    assert found["acceptance"] == pytest.approx(share * (fixed + 256 * slope) / (256 * slope), rel=0.02)
    full = ideal(model, capacity=1e12)
    held = replace(chosen, batch=int(largest_batch(full, chosen, 1e12)))
    found = elasticities(full, held, 0.01)
    assert found["memory capacity"] > 0
    assert found["acceptance"] == pytest.approx(share, abs=1e-3)


# --- signs, sums and a search of our own, on real chips -------------------------------------------------------------


class Case(NamedTuple):
    gpu: str
    model: str
    changes: dict[str, object]

    def __str__(self) -> str:
        return f"{self.gpu}-{self.model}-{'-'.join(map(str, self.changes.values()))}"


CASES = [
    Case("h800", "deepseek-v3", dict(ep=128, batch=128, schedule="two-batch")),
    Case("h800", "deepseek-v3", dict(ep=128, batch=64, drafts=1)),
    Case("h20", "deepseek-v3", dict(ep=24, batch=32, drafts=1)),
    Case("h100", "llama-3.1-8b", dict(batch=64)),
    Case("a100", "qwen3-30b-a3b", dict(ep=8, batch=64, schedule="two-batch")),
    Case("b200", "gpt-oss-120b", dict(ep=8, batch=32)),
]


def asked(case: Case) -> tuple[Predictor, Deployment, Prediction]:
    target = predictor(case.model, case.gpu)
    chosen = deployment(target.model, **case.changes)
    return target, chosen, target.predict(chosen)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_where_the_promise_binds(case: Case) -> None:
    """No change that helps is negative, and more memory gives nothing.

    Every time is a latency or a work over a rate, so 1 % of all of them is as good as a promise 1 % lower, and 1 %
    faster: their elasticities add up to 1 + that of the promise, but for terms of second order.
    """
    target, chosen, step = asked(case)
    found = elasticities(target, chosen, float(step.tps_per_user))
    assert all(value > -1e-3 for value in found.values()), found
    assert found["memory capacity"] == 0
    assert found["promised speed"] >= 0  # 0 where one request more would need a whole tile more
    total = sum(found.get(knob, 0) for knob in (*RATES, *TIMES))
    assert total == pytest.approx(1 + found["promised speed"], rel=0.1, abs=0.06)
    assert ("acceptance" in found) == bool(chosen.drafts)
    assert ("scale-up link" in found) == (step.cluster.gpu.scale_up is not None)
    if not target.model.is_moe:
        assert found["NIC rate"] == found["all-to-all latency"] == found["scale-up link"] == 0


def test_every_time_is_behind_a_knob() -> None:
    """All rates 1 % up and all latencies 1 % down together: the step is exactly 1 % faster, no second is left out."""
    for case in CASES:
        target, chosen, step = asked(case)
        cluster, kernels = target.machine.cluster, target.machine.kernels
        gpu, general, nic = cluster.gpu, kernels.general, cluster.nic
        link = gpu.scale_up
        quick = replace(
            gpu,
            memory=replace(gpu.memory, bandwidth=gpu.memory.bandwidth * 1.01),
            compute={name: rate * 1.01 for name, rate in gpu.compute.items()},
            vector_rate=gpu.vector_rate * 1.01,
            scale_up=replace(link, bandwidth=link.bandwidth * 1.01) if link is not None else None,
        )
        card = replace(
            nic,
            line_rate=nic.line_rate * 1.01,
            effective_rate=nic.effective_rate * 1.01,
            latency=nic.latency / 1.01,
        )
        short = replace(
            general,
            elementwise_floor=general.elementwise_floor / 1.01,
            launch_gap=general.launch_gap / 1.01,
            gqa_floor=general.gqa_floor / 1.01,
            all_to_all_latency=general.all_to_all_latency / 1.01,
            step_overhead=general.step_overhead / 1.01,
        )
        kernels = replace(kernels, gpu=quick, general=short, hasten=1 / 1.01)
        machine = Machine(replace(cluster, gpu=quick, nic=card), kernels)
        faster = replace(target, machine=machine).predict(chosen)
        assert float(step.seconds) / float(faster.seconds) == pytest.approx(1.01, rel=1e-6), str(case)


@pytest.mark.parametrize(
    ("gpu", "model", "counts", "context"),
    [("l40s", "llama-3.1-8b", (1,), 8000.0), ("h200", "deepseek-v3", (8,), 20_000.0)],
)
def test_where_memory_binds(gpu: str, model: str, counts: tuple[int, ...], context: float) -> None:
    target = predictor(model, gpu)
    spec = target.model
    schedules: tuple[ScheduleName, ...] = ("naive",)
    grid = Space(
        counts=counts,
        batches=tuple(range(1, 1025)),
        drafts=(0,),
        precisions=(Precision.of(spec),),
        schedules=schedules,
        context=context,
        acceptance=Acceptance.geometric(0.85, 1, "this test"),
    )
    won = best(target, grid, min_tps=0.1)
    assert isinstance(won, Found)
    assert won.binding == "memory"
    found = elasticities(target, won.prediction.deployment, 0.1)
    assert found["memory capacity"] > 0.1
    assert found["promised speed"] == 0
    assert sum(found.get(knob, 0) for knob in (*RATES, *TIMES)) == pytest.approx(1, abs=0.03)


def own_search(target: Predictor, chosen: Deployment, min_tps: float) -> float:
    """The best throughput over 10,000 real batches."""
    batches = np.linspace(0.75 * float(chosen.batch), 1.3 * float(chosen.batch), 10_001)
    step = target.evaluate(replace(chosen, batch=batches))
    allowed = np.asarray(step.fits) & (np.asarray(step.tps_per_user) >= min_tps)
    return float(np.max(np.where(allowed, step.tps_per_gpu, 0.0)))


def scaled_memory(gpu: Gpu, **factors: float) -> Gpu:
    return replace(gpu, memory=replace(gpu.memory, **{k: getattr(gpu.memory, k) * f for k, f in factors.items()}))


EDITS: dict[str, Callable[[Cluster], Cluster]] = {
    "memory bandwidth": lambda c: replace(c, gpu=scaled_memory(c.gpu, bandwidth=1.01)),
    "memory capacity": lambda c: replace(c, gpu=scaled_memory(c.gpu, capacity=1.01)),
    "FLOP/s": lambda c: replace(
        c, gpu=replace(c.gpu, compute={name: rate * 1.01 for name, rate in c.gpu.compute.items()})
    ),
    "vector rate": lambda c: replace(c, gpu=replace(c.gpu, vector_rate=c.gpu.vector_rate * 1.01)),
    "NIC rate": lambda c: replace(
        c, nic=replace(c.nic, line_rate=c.nic.line_rate * 1.01, effective_rate=c.nic.effective_rate * 1.01)
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_search_of_our_own_on_an_edited_chip_agrees(case: Case) -> None:
    """The predictor is built anew from the edited cluster, so that nothing is shared with the answer."""
    target, chosen, step = asked(case)
    min_tps = float(step.tps_per_user) * 0.999  # not on the edge: a tenth of a percent of room
    found, before = elasticities(target, chosen, min_tps), own_search(target, chosen, min_tps)
    for knob, edit in EDITS.items():
        changed = Predictor.of(target.model, edit(target.machine.cluster), CATALOG)
        ours = percent(own_search(changed, chosen, min_tps), before)
        assert found[knob] == pytest.approx(ours, abs=0.05), knob


def test_an_edited_chip_keeps_the_kernels_shares() -> None:
    target = predictor("deepseek-v3", "h800")
    chosen = deployment(target.model, ep=32, batch=64)
    edited = with_gpu(target, scaled_memory(target.machine.cluster.gpu, bandwidth=2.0))
    before = {cost.name: cost for cost in target.predict(chosen).outside}
    after = {cost.name: cost for cost in edited.predict(chosen).outside}
    for name, cost in before.items():
        assert after[name].efficiencies == cost.efficiencies
        if "memory" in cost.parts:
            assert float(after[name].parts["memory"]) == pytest.approx(float(cost.parts["memory"]) / 2)


# --- nothing to follow ----------------------------------------------------------------------------------------------


def test_a_promise_that_no_batch_keeps_is_an_error() -> None:
    target = predictor("deepseek-v3", "h800")
    chosen = deployment(target.model, ep=128, batch=128)
    with pytest.raises(InputError, match="no batch within 25% of 128 fits and keeps 1000 tok/s per user"):
        sensitivity(target, chosen, min_tps=1000.0)


def test_a_deployment_that_does_not_fit_is_an_error() -> None:
    target = predictor("deepseek-v3", "h100")
    chosen = deployment(target.model, ep=8, batch=8)
    assert not bool(target.predict(chosen).fits)
    with pytest.raises(InputError, match="fits and keeps"):
        sensitivity(target, chosen, min_tps=1.0)


def test_steps_in_the_published_factors_are_not_taken_for_gains() -> None:
    """At 64 rows the article's factors step up: a link that carries nothing must not look like what pays."""
    target = predictor("deepseek-v3", "b200", "cx7", ARTICLE)
    chosen = deployment(target.model, ep=32, batch=64, drafts=2, context=5000)
    found = elasticities(target, chosen, float(target.predict(chosen).tps_per_user))
    assert 0 <= found["scale-up link"] < 0.1
    assert found["memory capacity"] == 0


def test_a_slack_promise_lets_the_batch_grow_until_memory_binds() -> None:
    """From a small batch or from a large one the same limits bind, whatever the start."""
    target = predictor("deepseek-v3", "h800")
    starts = (deployment(target.model, batch=batch, ep=64, context=5000) for batch in (16, 96))
    small, large = (elasticities(target, chosen, 1.0) for chosen in starts)
    assert small["promised speed"] == pytest.approx(0.0, abs=1e-3)
    assert small["memory capacity"] > 0.05
    assert small.keys() == large.keys()
    for knob, value in small.items():
        assert value == pytest.approx(large[knob], abs=0.02)
