"""Laws that hold for every GPU, model and deployment, searched for counterexamples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import Unsupported
from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.origin import Origin
from moeplan.kernels.sources import ALL, ARTICLE, KernelSources
from moeplan.kernels.work import Work
from moeplan.ops.cost import Cost
from moeplan.ops.roofline import roofline
from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import SCHEDULES, Acceptance, Deployment, Precision, check_precision
from moeplan.specs.gpu import Gpu
from moeplan.specs.model import ModelSpec

CATALOG = Catalog.standard()
GPUS, MODELS, NICS = CATALOG.names("gpus"), CATALOG.names("models"), CATALOG.names("nics")
DRAFTS = 3
ACCEPTANCE = Acceptance.geometric(0.85, DRAFTS, "this test")
MODERATE = settings(max_examples=60, deadline=None)


class Case(Struct, frozen=True):
    gpu: Gpu
    model: ModelSpec
    cluster: Cluster
    sources: KernelSources
    deployment: Deployment

    @property
    def predictor(self) -> Predictor:
        return cached_predictor(
            self.model.name, self.gpu.slug, self.cluster.nic.slug, self.cluster.nics_per_node, self.sources
        )

    def predict(self, **changes: object) -> Prediction:
        return self.predictor.predict(replace(self.deployment, **changes))


@cache
def cached_model(name: str) -> ModelSpec:
    return CATALOG.model(name)


BY_NAME = {cached_model(name).name: name for name in MODELS}


@cache
def cluster_of(gpu: str, nic: str, nics_per_node: int) -> Cluster:
    device = CATALOG.gpu(gpu)
    return Cluster(gpu=device, nic=CATALOG.nic(nic), gpus_per_node=device.gpus_per_node, nics_per_node=nics_per_node)


@cache
def cached_predictor(model: str, gpu: str, nic: str, nics_per_node: int, sources: KernelSources) -> Predictor:
    cluster = cluster_of(gpu, nic, nics_per_node)
    return Predictor.of(cached_model(BY_NAME[model]), cluster, CATALOG, sources)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    model = cached_model(draw(st.sampled_from(MODELS)))
    nics_per_node = draw(st.sampled_from([1, 4, 8]))
    cluster = cluster_of(draw(st.sampled_from(GPUS)), draw(st.sampled_from(NICS)), nics_per_node)
    sources = draw(st.sampled_from([ALL, ALL, ARTICLE]))
    schedule = draw(st.sampled_from(SCHEDULES)) if model.is_moe else "naive"
    batch = draw(st.one_of(st.integers(1, 64), st.integers(1, 4096)))
    precision = Precision.of(
        model,
        experts=draw(st.sampled_from([None, None, "bf16", "fp8_block"])),
        linear=draw(st.sampled_from([None, None, "bf16"])),
        core=draw(st.sampled_from(["bf16", "bf16", "fp8"])),
        kv=draw(st.sampled_from(["bf16", "fp8", "nvfp4"])),
    )
    try:
        check_precision(precision, cluster.gpu.supports, cluster.gpu.name)
    except Unsupported:
        assume(False)
    most = min(model.max_position or 10**6, 10**6)
    fewest = 2 if schedule == "two-batch" else 1  # one GPU has no all-to-all to overlap
    deployment = Deployment(
        batch=batch * 2 if schedule == "two-batch" else batch,
        ep=draw(st.one_of(st.integers(fewest, 32), st.integers(fewest, 1024))),
        context=draw(st.one_of(st.integers(1, 1000), st.integers(1, most))),
        precision=precision,
        acceptance=ACCEPTANCE,
        drafts=draw(st.integers(0, DRAFTS)) if model.mtp_layers else 0,
        schedule=schedule,
        redundant=draw(st.sampled_from([None, None, 1024])) if model.is_moe else None,
        load=draw(st.sampled_from(["sampled", "even"])),
    )
    if deployment.redundant and (model.experts is None or model.experts.count * (float(deployment.ep) - 1) < 1024):
        deployment = replace(deployment, redundant=None)  # more copies of an expert than ranks
    return Case(cluster.gpu, model, cluster, sources, deployment)


def all_costs(step: Prediction) -> Iterator[Cost]:
    for group in step.groups:
        for stage in group.layer.stages.values():
            yield from stage.costs
    yield from step.outside


def sane(value: object) -> bool:
    number = float(value)  # type: ignore[arg-type]  # a scalar prediction
    return math.isfinite(number) and number >= 0


@settings(max_examples=200, deadline=None)
@given(cases())
def test_every_time_is_positive_and_finite(case: Case) -> None:
    step = case.predict()
    for cost in all_costs(step):
        assert sane(cost.seconds), cost.name
        assert cost.lane == "network" or float(cost.seconds) > 0, cost.name
        assert all(sane(part) for part in cost.parts.values()), cost.name
        assert sane(cost.flops), cost.name
        assert sane(cost.bytes_), cost.name
        assert all(0 < float(share) <= 1 for share in cost.efficiencies.values()), cost.name
        assert max(float(part) for part in cost.parts.values()) <= float(cost.seconds) * (1 + 1e-12), cost.name
        assert cost.source
    assert sane(step.drafting)
    assert (float(step.drafting) > 0) == (step.deployment.drafts > 0)
    for value in (step.seconds, step.tpot, step.tps_per_user, step.tps_per_gpu, step.memory.total):
        assert sane(value)
        assert float(value) > 0
    assert sane(step.memory.kv_cache)
    assert sane(step.memory.expert_weights)
    assert sane(step.memory.all_to_all_buffer)


@MODERATE
@given(cases())
def test_a_step_is_the_sum_of_its_exposed_parts(case: Case) -> None:
    step = case.predict()
    total = float(step.drafting) + sum(float(cost.seconds) for cost in step.outside)
    for group in step.groups:
        exposed = sum(float(seconds) for seconds in group.timeline.exposed.values())
        assert exposed == pytest.approx(float(group.timeline.seconds), rel=1e-12)
        total += group.group.count * exposed
    assert total == pytest.approx(float(step.seconds), rel=1e-12)


@MODERATE
@given(cases())
def test_a_layer_lies_between_its_longest_stage_and_their_sum(case: Case) -> None:
    step = case.predict()
    for group in step.groups:
        stages = [float(stage.seconds) for stage in group.layer.stages.values()]
        batches = 2 if case.deployment.schedule == "two-batch" and group.group.ffn == "moe" else 1
        assert batches * max(stages) * (1 - 1e-12) <= float(group.timeline.seconds)
        assert float(group.timeline.seconds) <= batches * sum(stages) * (1 + 1e-12)


@MODERATE
@given(cases(), st.data())
def test_a_scalar_is_the_matching_array_element(case: Case, data: st.DataObject) -> None:
    even = case.deployment.schedule == "two-batch"
    batches = sorted({int(case.deployment.batch), *data.draw(st.lists(st.integers(1, 500), max_size=3))})
    batches = [2 * batch if even else batch for batch in batches]
    ep = int(case.deployment.ep)
    fewest = ep if case.deployment.redundant else 1 + even  # fewer ranks may not hold as many copies of an expert
    sizes = sorted({ep, *data.draw(st.lists(st.integers(fewest, max(ep, 300)), max_size=3))})
    drafts = sorted({int(case.deployment.drafts), *(range(DRAFTS + 1) if case.model.mtp_layers else [0])})
    drafts = data.draw(st.sampled_from([drafts, drafts[-1:], drafts[-2:]]))
    grid = case.predictor.evaluate(
        replace(
            case.deployment,
            ep=np.array(sizes, dtype=float)[:, None, None],
            batch=np.array(batches, dtype=float)[None, :, None],
            drafts=np.array(drafts)[None, None, :],
        )
    )
    shape = (len(sizes), len(batches), len(drafts))
    index = tuple(data.draw(st.integers(0, length - 1)) for length in shape)
    one = case.predict(ep=sizes[index[0]], batch=batches[index[1]], drafts=drafts[index[2]])
    for together, alone in (
        (grid.seconds, one.seconds),
        (grid.drafting, one.drafting),
        (grid.tps_per_user, one.tps_per_user),
        (grid.tps_per_gpu, one.tps_per_gpu),
        (grid.memory.total, one.memory.total),
        (grid.memory.free, one.memory.free),
    ):
        assert np.broadcast_to(together, shape)[index] == pytest.approx(float(alone), rel=1e-12, abs=1e-15)
    assert np.broadcast_to(grid.fits, shape)[index] == one.fits


FASTER = ("memory", "compute", "vector_rate", "scale_up", "nic")


def faster(cluster: Cluster, what: str, factor: float) -> Cluster:
    """The cluster with one rate raised; names of files stay, so the same tables are read."""
    gpu = cluster.gpu
    if what == "memory":
        gpu = replace(gpu, memory=replace(gpu.memory, bandwidth=gpu.memory.bandwidth * factor))
    elif what == "compute":
        gpu = replace(gpu, compute={key: rate * factor for key, rate in gpu.compute.items()})
    elif what == "vector_rate":
        gpu = replace(gpu, vector_rate=gpu.vector_rate * factor)
    elif what == "scale_up" and gpu.scale_up is not None:
        link = replace(gpu.scale_up, bandwidth=gpu.scale_up.bandwidth * factor)
        gpu = replace(gpu, scale_up=link)
    nic = cluster.nic
    if what == "nic":
        nic = replace(nic, line_rate=nic.line_rate * factor, effective_rate=nic.effective_rate * factor)
    return replace(cluster, gpu=gpu, nic=nic)


@settings(max_examples=100, deadline=None)
@given(cases(), st.sampled_from(FASTER), st.floats(1.0, 8.0))
def test_a_faster_machine_is_never_slower(case: Case, what: str, factor: float) -> None:
    assume(case.sources is not ARTICLE)  # the article's factor for attention depends on the ratio of two rates
    quick = Predictor.of(case.model, faster(case.cluster, what, factor), CATALOG)
    before, after = case.predict(), quick.predict(case.deployment)
    assert float(after.seconds) <= float(before.seconds) * (1 + 1e-12)
    for old, new in zip(all_costs(before), all_costs(after), strict=True):
        assert float(new.seconds) <= float(old.seconds) * (1 + 1e-12), old.name


RATES = st.floats(1e9, 1e16)


@given(
    peak=RATES,
    bandwidth=RATES,
    compute=st.floats(0.01, 1.0),
    memory=st.floats(0.01, 1.0),
    floor=st.floats(0, 1e-3),
    flops=st.floats(0, 1e18),
    bytes_=st.floats(0, 1e15),
    more=st.tuples(st.floats(0, 1e18), st.floats(0, 1e15)),
)
@settings(max_examples=150, deadline=None)
def test_time_never_falls_when_work_grows(
    peak: float,
    bandwidth: float,
    compute: float,
    memory: float,
    floor: float,
    flops: float,
    bytes_: float,
    more: tuple[float, float],
) -> None:
    efficiency = Efficiency(compute=compute, memory=memory, floor=floor, origin=Origin.ASSUMED, source="this test")

    def seconds(flops: float, bytes_: float) -> float:
        work = Work(flops=flops, bytes_=bytes_)
        return float(roofline("x", work, peak=peak, bandwidth=bandwidth, efficiency=efficiency).seconds)

    base = seconds(flops, bytes_)
    assert seconds(flops + more[0], bytes_) >= base
    assert seconds(flops, bytes_ + more[1]) >= base
    assert base >= floor
    assert base >= flops / peak
    assert base >= bytes_ / bandwidth


@MODERATE
@given(cases(), st.integers(1, 100_000))
def test_a_longer_context_is_never_faster_nor_smaller(case: Case, extra: int) -> None:
    """With efficiencies that do not depend on the context: the article's, and grouped queries'."""
    case = replace(case, sources=ARTICLE)
    longer = min(case.deployment.context + extra, case.model.max_position or 10**6)
    short, long = case.predict(), case.predict(context=longer)
    assert float(long.seconds) >= float(short.seconds) * (1 - 1e-12)
    assert float(long.memory.kv_cache) >= float(short.memory.kv_cache)
    assert float(long.memory.total) >= float(short.memory.total)


@MODERATE
@given(cases())
def test_a_larger_batch_needs_no_less_memory_and_more_gpus_no_more(case: Case) -> None:
    step = case.predict()
    larger = case.predict(batch=2 * case.deployment.batch)
    assert float(larger.memory.total) >= float(step.memory.total)
    if case.model.is_moe and case.deployment.redundant is None:
        wider = case.predict(ep=2 * case.deployment.ep)
        assert float(wider.memory.expert_weights) <= float(step.memory.expert_weights)


@MODERATE
@given(cases())
def test_the_rows_of_all_ranks_are_the_tokens_of_the_group(case: Case) -> None:
    step = case.predict()
    if step.load is None or step.slots is None or case.model.experts is None:
        assert not case.model.is_moe
        return
    micro = 2 if case.deployment.schedule == "two-batch" else 1
    tokens = case.deployment.ep * case.deployment.batch * (1 + case.deployment.drafts) / micro
    assert float(step.load.mean_rows_per_slot * step.slots.total) == pytest.approx(
        float(tokens * case.model.experts.top_k)
    )
    assert float(step.load.rows) >= float(tokens * case.model.experts.top_k / case.deployment.ep) * (1 - 1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_hiding_communication_never_beats_having_none(schedule: str) -> None:
    """A layer takes at least the compute of its micro-batches, however well the all-to-alls hide."""
    case_model = cached_model("deepseek-v3")
    for ep in (16, 144, 320):
        step = cached_predictor(case_model.name, "h800", "cx7", 8, ALL).predict(
            Deployment(
                batch=128,
                ep=ep,
                context=5000,
                precision=Precision.of(case_model),
                acceptance=ACCEPTANCE,
                schedule=schedule,
            )
        )
        layer = step.groups[1]
        compute = sum(
            float(stage.seconds) for name, stage in layer.layer.stages.items() if name not in ("dispatch", "combine")
        )
        assert float(layer.timeline.seconds) >= compute * layer.timeline.micro_batches * (1 - 1e-12)
