"""The ladder: it starts at the limit that FLOP, bytes and messages set, never goes down, and ends at the step."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.explain.ladder import Rung, ladder
from moeplan.kernels.sources import ALL, ARTICLE, KernelSources
from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster, Nic
from moeplan.specs.deployment import SCHEDULES, Acceptance, Deployment, Precision
from moeplan.specs.gpu import Gpu, Memory, ScaleUp
from moeplan.specs.model import Experts, Gqa, LayerGroup, ModelSpec, WeightFormats

CATALOG = Catalog.standard()
NAMES = [
    "one perfect kernel",
    "operators apart",
    "micro-batches",
    "fullest rank",
    "tile padding",
    "kernel efficiency",
    "floors and launches",
    "exposed communication",
    "MTP drafts",
    "step overhead",
]


class Case(NamedTuple):
    predictor: Predictor
    step: Prediction

    @property
    def rungs(self) -> list[Rung]:
        return ladder(self.predictor, self.step)

    def __repr__(self) -> str:
        return f"{self.step.model.name} on {self.step.cluster.gpu.name}, {self.step.deployment}"


@cache
def predictor(model: str, gpu: str, nic: str, sources: KernelSources) -> Predictor:
    return Predictor.of(CATALOG.model(model), cluster_of(CATALOG, gpu, nic, None), CATALOG, sources)


def deployment(model: ModelSpec, **changes: object) -> Deployment:
    plain = Deployment(
        batch=64, ep=1, context=4096, precision=Precision.of(model), acceptance=Acceptance.geometric(0.85, 3, "a test")
    )
    return replace(plain, **changes)


MODELS = ("deepseek-v3", "deepseek-v2-lite", "qwen3-30b-a3b-fp8", "qwen3-235b-a22b", "gpt-oss-120b", "llama-3.1-8b")
GPUS = ("h800", "h20", "b200", "a100", "mi300x", "l40s", "gb200")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(MODELS))
    target = predictor(
        name,
        draw(st.sampled_from(GPUS)),
        draw(st.sampled_from(("cx7", "cx8", "e810"))),
        draw(st.sampled_from((ALL, ARTICLE))),
    )
    model = target.model
    ep = draw(st.sampled_from((1, 2, 8, 16, 72, 128, 144, 320)))
    schedule = draw(st.sampled_from(SCHEDULES if model.is_moe and ep > 1 else ("naive",)))
    batch = draw(st.integers(1, 300)) * (2 if schedule == "two-batch" else 1)
    wanted = deployment(
        model,
        batch=batch,
        ep=ep,
        context=draw(st.integers(1, 30_000)),
        drafts=draw(st.integers(0, 3)) if model.mtp_layers else 0,
        schedule=schedule,
        load=draw(st.sampled_from(("sampled", "even"))),
        precision=Precision.of(model, kv=draw(st.sampled_from(("bf16", "fp8")))),
    )
    return Case(target, target.predict(wanted))


def seconds(rungs: list[Rung]) -> dict[str, float]:
    return {rung.name: rung.seconds for rung in rungs}


@given(cases())
@settings(max_examples=80, deadline=None)
def test_the_rungs_climb_from_the_limit_to_the_step(case: Case) -> None:
    rungs, step = case.rungs, case.step
    total = float(step.seconds)
    assert [rung.name for rung in rungs] == NAMES
    assert sum(rung.seconds for rung in rungs) == pytest.approx(total, rel=1e-9)
    assert rungs[0].seconds > 0
    assert all(rung.seconds >= -1e-9 * total for rung in rungs), seconds(rungs)
    lost = seconds(rungs)
    deployment = step.deployment
    assert lost["MTP drafts"] == pytest.approx(float(step.drafting), abs=1e-12)
    assert lost["step overhead"] == pytest.approx(case.predictor.machine.kernels.general.step_overhead)
    if deployment.schedule == "naive":
        assert lost["micro-batches"] == pytest.approx(0, abs=1e-9 * total)
    if deployment.load == "even" or not step.model.is_moe:
        assert lost["fullest rank"] == pytest.approx(0, abs=1e-9 * total)
    if float(deployment.ep) == 1 or not step.model.is_moe:
        assert lost["exposed communication"] == pytest.approx(0, abs=1e-9 * total)


def flops_and_bytes(step: Prediction) -> tuple[float, float]:
    """FLOP and bytes of a step's compute, as its operators state them; MTP drafts apart."""
    flops = sum(float(cost.flops) for cost in step.outside)
    traffic = sum(float(cost.bytes_) for cost in step.outside)
    for group in step.groups:
        copies = group.group.count * group.timeline.micro_batches
        for stage in group.layer.stages.values():
            flops += copies * sum(float(cost.flops) for cost in stage.costs)
            traffic += copies * sum(float(cost.bytes_) for cost in stage.costs if cost.lane == "compute")
    return flops, traffic


@given(cases())
@settings(max_examples=40, deadline=None)
def test_the_limit_is_no_less_than_work_over_peaks(case: Case) -> None:
    """At the fastest of the chip's precisions; the limit counts each operator at its own."""
    gpu = case.step.cluster.gpu
    naive = case.predictor.predict(replace(case.step.deployment, schedule="naive", load="even"))
    flops, traffic = flops_and_bytes(naive)
    limit = case.rungs[0].seconds
    assert limit >= flops / max(gpu.compute.values()) * (1 - 1e-9)
    assert limit >= traffic / gpu.memory.bandwidth * (1 - 1e-9)


# --- by hand, on a chip and models small enough to add up -----------------------------------------------------------

PEAK, BANDWIDTH, LINE = 1e14, 1e12, 5e10


def chip(**changes: object) -> Gpu:
    """One precision, no scale-up link, a vector unit so fast that softmax costs nothing."""
    plain = Gpu(
        name="toy",
        vendor="this test",
        architecture="toy",
        memory=Memory(capacity=1e12, bandwidth=BANDWIDTH),
        compute={"bf16": PEAK},
        vector_rate=1e22,
        attention_overlap="three-stage",
    )
    return replace(plain, **changes)


def cluster(gpu: Gpu, line: float = LINE) -> Cluster:
    nic = Nic(name="toy", line_rate=line, effective_rate=line / 2, latency=1e-5)
    return Cluster(gpu=gpu, nic=nic, gpus_per_node=8, nics_per_node=8)


DENSE = ModelSpec(
    name="small",
    family="this test",
    repository="none",
    hidden=1024,
    vocab=32_000,
    layers=(LayerGroup(count=3, ffn="dense"),),
    attention=Gqa(heads=16, kv_heads=4, head_dim=64),
    dense_width=4096,
    experts=None,
    formats=WeightFormats(),
)
SPARSE = replace(
    DENSE,
    name="sparse",
    layers=(LayerGroup(count=2, ffn="moe"),),
    experts=Experts(count=8, top_k=2, width=512),
)


def attention_by_hand(batch: int, context: int) -> tuple[float, float]:
    """FLOP and bytes of the attention half of a layer: h 1024, 16 heads over 4 of 64, bf16."""
    h, q, kv = 1024, 16 * 64, 4 * 64
    width = q + 2 * kv
    flops = 2 * batch * h * width + 2 * 2 * batch * q * context + 2 * batch * q * h
    norm = 4 * h * 2 * batch  # residual and input in, residual and output out
    qkv = 2 * (batch * h + h * width + batch * width)
    rope = 2 * 2 * width * batch
    cache = batch * context * 2 * kv * 2
    out = 2 * (batch * q + q * h + batch * h)
    return flops, norm + qkv + rope + cache + out


def head_by_hand(batch: int) -> tuple[float, float]:
    """FLOP and bytes of embedding, final norm, head of 32,000 and sampling over fp32 logits in and out."""
    h, vocab = 1024, 32_000
    return 2 * batch * h * vocab, 2 * (4 * h) * batch + 2 * (batch * h + h * vocab + batch * vocab) + 8 * vocab * batch


@pytest.mark.parametrize(
    ("batch", "context", "binds"), [(1, 128, "memory"), (64, 20_000, "memory"), (4096, 128, "compute")]
)
def test_the_limit_of_a_small_dense_model_by_hand(batch: int, context: int, binds: str) -> None:
    target = Predictor.of(DENSE, cluster(chip()), CATALOG)
    step = target.predict(deployment(DENSE, batch=batch, context=context))
    h, wide = 1024, 4096
    attention_flops, attention_bytes = attention_by_hand(batch, context)
    head_flops, head_bytes = head_by_hand(batch)
    ffn_flops = 2 * batch * h * 2 * wide + 2 * batch * wide * h
    gate_up = 2 * (batch * h + h * 2 * wide + batch * 2 * wide)
    silu = 3 * wide * 2 * batch
    down = 2 * (batch * wide + wide * h + batch * h)
    flops = 3 * (attention_flops + ffn_flops) + head_flops
    traffic = 3 * (attention_bytes + 4 * h * 2 * batch + gate_up + silu + down) + head_bytes
    found = seconds(ladder(target, step))
    assert (flops / PEAK > traffic / BANDWIDTH) == (binds == "compute")
    assert found["one perfect kernel"] == pytest.approx(max(flops / PEAK, traffic / BANDWIDTH), rel=1e-9)
    for none in ("micro-batches", "fullest rank", "tile padding", "exposed communication", "MTP drafts"):
        assert found[none] == pytest.approx(0, abs=1e-12)


def wire_by_hand(batch: int, ep: int, line: float) -> float:
    """Seconds of both all-to-alls of two layers: bf16 to the expert with 16 bytes of header, bf16 back."""
    payload = batch * 2 * ((2 * 1024 + 16) + 2 * 1024)
    return 2 * payload * (ep - 1) / ep / line


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_limit_of_a_small_sparse_model_is_its_messages_on_a_slow_network(schedule: str) -> None:
    batch, ep, line = 256, 4, 1e8
    target = Predictor.of(SPARSE, cluster(chip(), line), CATALOG)
    step = target.predict(deployment(SPARSE, batch=batch, ep=ep, context=128, schedule=schedule))
    found = seconds(ladder(target, step))
    wire = wire_by_hand(batch, ep, line)
    assert found["one perfect kernel"] == pytest.approx(wire, rel=1e-9)
    for nothing in ("operators apart", "micro-batches", "fullest rank", "tile padding", "kernel efficiency"):
        assert found[nothing] == pytest.approx(0, abs=1e-12)  # all of it runs beside the wire
    assert 0.05 * wire < found["exposed communication"] < 0.3 * wire  # no card reaches all of its line


def test_the_limit_inside_a_node_is_the_links_rate() -> None:
    """Messages that never leave the scale-up link are held against its rate, not the NIC's share of its line."""
    slow = chip(scale_up=ScaleUp(bandwidth=1e8, domain=8))
    target = Predictor.of(SPARSE, cluster(slow), CATALOG)
    batch, ep = 256, 4
    step = target.predict(deployment(SPARSE, batch=batch, ep=ep, context=128))
    limit = seconds(ladder(target, step))["one perfect kernel"]
    assert limit == pytest.approx(wire_by_hand(batch, ep, 1e8), rel=1e-9)


def test_uneven_experts_by_hand() -> None:
    """On a chip bound by arithmetic, what the fullest rank has above the mean is the rung."""
    gpu = chip(memory=Memory(capacity=1e12, bandwidth=1e18))
    target = Predictor.of(SPARSE, cluster(gpu, 1e15), CATALOG)
    batch, ep = 512, 8
    step = target.predict(deployment(SPARSE, batch=batch, ep=ep, context=128))
    assert step.load is not None
    more = float(step.load.rows) - batch * 2  # 8 experts on 8 ranks: each gets batch x top_k rows on average
    assert more > 0
    assert seconds(ladder(target, step))["fullest rank"] == pytest.approx(
        2 * 3 * 2 * more * 1024 * 512 / PEAK, rel=1e-6
    )


def test_micro_batches_read_the_weights_twice() -> None:
    """On a chip bound by memory the rung is one more reading of every weight of the sparse layers."""
    gpu = chip(compute={"bf16": 1e20})
    target = Predictor.of(SPARSE, cluster(gpu, 1e15), CATALOG)
    step = target.predict(deployment(SPARSE, batch=2048, ep=8, context=128, schedule="two-batch", load="even"))
    h, q, kv, width = 1024, 16 * 64, 4 * 64, 512
    weights = h * (q + 2 * kv) + q * h + 8 * h + 3 * h * width  # qkv, out, router, one expert per rank
    assert seconds(ladder(target, step))["micro-batches"] == pytest.approx(2 * 2 * weights / BANDWIDTH, rel=1e-6)


@pytest.mark.parametrize("batch", [60, 70, 129])
def test_whole_tiles(batch: int) -> None:
    """On H20, bound by arithmetic, what the products of padded rows take more than those of the rows asked for."""
    target = predictor("deepseek-v3", "h20", "cx7", ALL)
    gpu = target.machine.cluster.gpu
    step = target.predict(deployment(target.model, ep=32, batch=batch))
    costs = [(cost, 1) for cost in step.outside]
    for group in step.groups:
        costs += [(cost, group.group.count) for stage in group.layer.stages.values() for cost in stage.costs]
    more = 0.0
    for cost, copies in costs:
        if "padding" in cost.terms:
            padding, peak = (float(cost.terms[name][0]) for name in ("padding", "peak"))
            asked, traffic = float(cost.flops) / peak, float(cost.bytes_) / gpu.memory.bandwidth
            more += copies * (max(asked * padding, traffic) - max(asked, traffic))
    assert more > 0
    assert seconds(ladder(target, step))["tile padding"] == pytest.approx(more, rel=1e-9)


def test_a_correction_by_hand_leaves_the_limit_alone() -> None:
    target = predictor("deepseek-v3", "h800", "cx7", ALL)
    wanted = deployment(target.model, ep=128, batch=128, schedule="two-batch")
    plain = target.predict(wanted)
    slower = target.predict(replace(wanted, corrections={"mla_core": 2.0, "dispatch": 3.0, "o_proj": 1.5}))
    before, after = seconds(ladder(target, plain)), seconds(ladder(target, slower))
    for name in NAMES[:5]:
        assert after[name] == pytest.approx(before[name], rel=1e-12)
    assert after["kernel efficiency"] > before["kernel efficiency"]
    assert sum(after.values()) == pytest.approx(float(slower.seconds), rel=1e-9)


def test_every_rung_says_what_it_is() -> None:
    target = predictor("deepseek-v3", "h20", "cx7", ALL)
    rungs = ladder(target, target.predict(deployment(target.model, ep=16)))
    assert all(rung.meaning for rung in rungs)
    assert "H20" in rungs[0].meaning
