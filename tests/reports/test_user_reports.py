"""What users asked of other tools, and the right answers: memory, layouts, all-to-alls, hardware files, kernels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.cli import main
from moeplan.cli.options import cluster_of
from moeplan.engines.emit.sglang import sglang_command
from moeplan.engines.rules.layout import Layout, smallest_gpu_count, violations
from moeplan.engines.rules.memory_rule import kv_budget, memory_rule
from moeplan.errors import InputError, UnknownName
from moeplan.memory import dispatch_tokens, low_latency_buffer
from moeplan.ops.gemm import gemm
from moeplan.ops.machine import Machine
from moeplan.predict import Prediction, Predictor
from moeplan.routing.slots import deal
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import ALL_GATHER, ALL_REDUCE, LOW_LATENCY, Acceptance, Deployment, Precision
from moeplan.specs.exchange import exchange, usual
from moeplan.specs.model import Experts, ModelSpec
from moeplan.specs.parameters import kv_bytes, kv_shard_factor, routed_bytes, weight_bytes
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
GIB, MB = 2**30, 1e6


def model(name: str) -> ModelSpec:
    return CATALOG.model(name)


def experts(name: str) -> Experts:
    found = model(name).experts
    assert found is not None
    return found


def step(name: str, gpu: str, ep: int, *, batch: int = 1, context: int = 4096, drafts: int = 0) -> Prediction:
    spec = model(name)
    deployment = Deployment(
        batch=batch,
        ep=ep,
        context=context,
        drafts=drafts,
        precision=Precision.of(spec),
        acceptance=Acceptance.geometric(0.85, max(drafts, 1), "assumed"),
    )
    return Predictor.of(spec, cluster_of(CATALOG, gpu, "cx7", None), CATALOG).predict(deployment)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    return stop.value.code, out, err


# --- memory -------------------------------------------------------------------------------------------------------


def test_16_a_requests_cache_lives_on_one_dp_rank() -> None:
    """ModelEngine-Group/unified-cache-management #1217; llm-d/llm-d-benchmark PR 359."""
    mla, gqa = model("deepseek-v3").attention, model("qwen3-235b-a22b").attention
    assert {kv_shard_factor(mla, tp=tp) for tp in (1, 2, 8)} == {1}
    assert kv_shard_factor(mla, tp=8, dcp=8) == 8
    assert kv_shard_factor(gqa, tp=8) == 4  # of its 4 KV heads each rank has at most one
    whole = float(kv_bytes(model("deepseek-v3"), 4160))
    for gpus in (8, 32, 320):  # more DP ranks hold fewer requests each, never a part of one
        assert float(step("deepseek-v3", "h200", gpus, batch=1).memory.kv_cache) == whole


def test_18_expert_bytes_shrink_with_the_ep_group() -> None:
    """inference-sim/inference-sim #1656: 2,552 GiB of Kimi-K3 need 21 H200 without EP; with EP32 they fit."""
    assert smallest_gpu_count((2551.98 + 8) * GIB, (126.9 - 0.6) * GIB, gpus_per_node=1, power_of_two=False) == 21
    whole = routed_bytes(model("kimi-k2"), mtp=False)
    for ep in (1, 2, 8, 16, 32, 128, 384):
        assert float(step("kimi-k2", "h200", ep).memory.expert_weights) == pytest.approx(whole / ep)
    assert not bool(step("kimi-k2", "h200", 1).fits)
    assert bool(step("kimi-k2", "h200", 32).fits)


def test_19_experts_spread_over_tp_times_dp_with_ep_off_and_on() -> None:
    """inference-sim/inference-sim #1666: at TP2 × DP2 a GPU holds R/4 in both modes."""
    off, on = Layout(tp=2, dp=2).completed(), Layout(tp=2, dp=2, moe_ep=4).completed()
    assert (off.moe_tp, off.moe_ep) == (4, 1)
    assert (on.moe_tp, on.moe_ep) == (1, 4)
    for layout in (off, on):
        assert violations(model("qwen3-235b-a22b"), layout, "vllm") == []
    spec = model("qwen3-235b-a22b")
    assert float(step("qwen3-235b-a22b", "h200", 4).memory.expert_weights) == routed_bytes(spec, mtp=False) / 4


def test_20_a_gpu_holds_48_of_384_experts_at_ep8() -> None:
    """ai-dynamo/aiconfigurator PR 1390: the fallback counted every expert on every GPU, 8 times too many."""
    one, eight = step("kimi-k2", "h200", 1), step("kimi-k2", "h200", 8)
    assert eight.slots is not None
    assert float(eight.slots.per_full_rank) == 48
    assert float(eight.memory.expert_weights) == pytest.approx(float(one.memory.expert_weights) / 8)
    assert float(eight.memory.replicated_weights) == float(one.memory.replicated_weights)


def test_22_a_kv_fraction_means_another_thing_in_every_engine() -> None:
    """ai-dynamo/aiconfigurator #1159, PR 1423: 180 GiB device, 154 GiB of it taken, fraction 0.9."""
    assert kv_budget("trtllm", capacity=180, other=154, fraction=0.9) == pytest.approx(23.4)
    assert kv_budget("vllm", capacity=180, other=154, fraction=0.9) == pytest.approx(8.0)
    assert kv_budget("sglang", capacity=180, other=154, fraction=0.9) == pytest.approx(8.0)
    assert kv_budget("vllm", capacity=80, other=154, fraction=0.9) < 0  # does not fit, not a batch of zero


def test_23_no_latencies_for_a_model_that_cannot_be_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    """ai-dynamo/aiconfigurator PR 509: Llama-3.1-405B on one H100 printed 460 ms TPOT and no warning."""
    code, out, _ = run(capsys, *"plan llama-3.1-405b --gpu h100 --gpus 1 --context 4k --min-tps 1".split())
    assert code == 1
    assert re.search(r"memory per GPU: 76\d\.\d GiB wanted, 80\.0 GiB there is", out)
    assert "or a GPU with more memory" in out
    assert "Launch command" not in out
    code, _, err = run(capsys, *"predict llama-3.1-405b --gpu h100 --ep 1 --batch 1 --context 4k".split())
    assert code == 1
    assert re.search(r"does not fit: 76\d\.\d GiB per GPU needed, 80\.0 GiB available", err)
    assert smallest_gpu_count(405e9, 72e9, gpus_per_node=1, power_of_two=False) == 6
    assert smallest_gpu_count(405e9, 72e9, gpus_per_node=1, power_of_two=True) == 8
    with pytest.raises(InputError, match="memory: lacks"):
        sglang_command(step("llama-3.1-405b", "h100", 1))


def test_23_the_remedy_of_a_moe_model_is_the_smallest_instance_that_holds_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """ai-dynamo/aiconfigurator PR 509: the answer must name what would do, and it must really do."""
    question = "plan deepseek-v3 --gpu h100 --context 4k --min-tps 1 --json --gpus".split()
    code, out, _ = run(capsys, *question, "8")
    missing = json.loads(out)["infeasible"][0]
    assert code == 1
    assert missing["constraint"] == "memory per GPU"
    assert missing["unit"] == "B"
    assert missing["needed"] > missing["available"] == 80 * GIB
    assert missing["remedies"][0]["change"] == "--gpus 16"
    assert run(capsys, *question, "16")[0] == 0


def test_27_a_latent_is_never_sharded_by_tp() -> None:
    """tenstorrent/tt-xla #5861; vllm-project/tpu-inference #1847: memory over-committed by the TP factor."""
    mla, gqa = model("kimi-k2").attention, model("qwen3-8b").attention
    four_heads = model("qwen3-235b-a22b").attention
    assert kv_shard_factor(mla, tp=8) == 1
    assert kv_shard_factor(gqa, tp=8) == 8
    assert kv_shard_factor(four_heads, tp=8) == 4
    for tp in (1, 2, 8, 16):
        assert violations(model("kimi-k2"), Layout(tp=tp, moe_ep=tp, moe_tp=1), "sglang") == []


@pytest.mark.parametrize(
    ("slots", "revision", "size"),
    [(288, "2025-02", 2116.29), (256, "2025-06", 1880.099), (256, "current", 1908.410)],
)
def test_30_the_low_latency_buffer_by_revision(slots: int, revision: Any, size: float) -> None:
    """deepseek-ai/DeepEP #241, #183, #28: the sizes of DeepEP's own log lines, MB, at 128 tokens of 7168."""
    found = low_latency_buffer(experts=slots, tokens=128, hidden=7168, revision=revision)
    assert float(found) / MB == pytest.approx(size, abs=0.006)


def test_30_the_buffer_grows_with_tokens_and_slots() -> None:
    """deepseek-ai/DeepEP #241, #259: 8.0 GiB per GPU at 512 tokens and 288 slots."""
    one = float(low_latency_buffer(experts=288, tokens=128, hidden=7168))
    four = float(low_latency_buffer(experts=288, tokens=512, hidden=7168))
    assert four / GIB == pytest.approx(8.0, abs=0.01)
    assert four / one == pytest.approx(4, rel=1e-5)
    assert float(low_latency_buffer(experts=144, tokens=128, hidden=7168)) == one / 2


@pytest.mark.parametrize(("tokens", "size"), [(128, 2.67), (256, 5.33), (512, 10.66), (1024, 21.3)])
def test_31_the_buffer_comes_before_the_kv_cache(tokens: int, size: float) -> None:
    """uccl-project/uccl #924: 384 experts of 7168; DeepEP's current layout gives the sizes of the report."""
    found = float(low_latency_buffer(experts=384, tokens=tokens, hidden=7168, revision="current"))
    assert found / GIB == pytest.approx(size, rel=0.002)
    left = kv_budget("vllm", capacity=141 * GIB, other=71.34 * GIB + found, fraction=0.70)
    if tokens == 1024:
        assert left <= 6.1 * GIB


def test_31_memory_lists_every_use() -> None:
    """uccl-project/uccl #924: weights, buffer, reserve and cache are separate lines, and they add up."""
    memory = step("kimi-k2", "h200", 16, batch=512).memory
    uses = (memory.replicated_weights, memory.expert_weights, memory.kv_cache, memory.all_to_all_buffer, memory.reserve)
    assert all(float(use) > 0 for use in uses)
    assert float(memory.total) == pytest.approx(sum(float(use) for use in uses))
    assert float(memory.all_to_all_buffer) / GIB == pytest.approx(10.66, rel=0.002)
    assert float(memory.free) == pytest.approx(memory.capacity - float(memory.total))


@pytest.mark.parametrize(
    ("batch", "drafts", "cap"), [(32, 0, 128), (128, 0, 128), (128, 4, 640), (128, 5, 768), (170, 5, 1020)]
)
def test_32_the_dispatch_cap_covers_the_batch_times_the_verify_width(batch: int, drafts: int, cap: int) -> None:
    """sgl-project/sglang #29942, PR 28985, PR 28994, #6017; deepseek-ai/DeepEP #165: 128 requests x 6 need 768."""
    found = step("deepseek-v3", "h200", 32, batch=batch, drafts=drafts)
    command = sglang_command(found)
    assert dict(command.environment) == {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": str(cap)}
    assert cap >= batch * (1 + drafts)
    buffer = low_latency_buffer(experts=256, tokens=cap, hidden=7168)
    assert float(found.memory.all_to_all_buffer) == float(buffer)


def test_32_a_cap_beyond_the_kernels_limit_is_refused() -> None:
    """deepseek-ai/DeepEP #165: SGLang 0.5.23 asserts a cap of at most 1,024 (token_dispatcher/deepep.py)."""
    with pytest.raises(InputError, match=r"batch: 1536 tokens per rank.*1024"):
        sglang_command(step("deepseek-v3", "h200", 32, batch=256, context=1024, drafts=5))


def test_33_graph_memory_is_kept_out_of_the_static_pool() -> None:
    """sgl-project/sglang PR 5893, #23769, PR 5634: H200, graphs to 256: 13 GB fail, 18 GB (0.872) are the fix."""
    found = step("deepseek-v3", "h200", 8, batch=256, context=1024)
    outside = float(found.memory.capacity - found.memory.static_fraction * found.memory.capacity)
    assert outside >= 18e9
    assert bool(found.fits)
    flags = dict(sglang_command(found).flags)
    assert float(str(flags["--mem-fraction-static"])) <= 0.872
    assert flags["--cuda-graph-max-bs-decode"] == "256"
    rule = memory_rule(CATALOG, "sglang")
    more = float(rule.reserve(141e9, 256)) - float(rule.reserve(141e9, 160))
    assert more == pytest.approx(3e9, rel=0.25)  # «about 3 GB more than graphs to 160»


def test_35_qwen3_235b_on_four_cards_of_96_gb() -> None:
    """vllm-project/vllm #17327: bf16 never fits on four H20; fp8 does on four, bf16 on eight."""
    assert weight_bytes(model("qwen3-235b-a22b")) == pytest.approx(470e9, rel=0.005)
    assert weight_bytes(model("qwen3-235b-a22b")) > 4 * 96e9
    assert weight_bytes(model("qwen3-235b-a22b")) / 4 / GIB == pytest.approx(109.5, abs=0.1)
    assert not bool(step("qwen3-235b-a22b", "h20", 4).fits)
    assert bool(step("qwen3-235b-a22b-fp8", "h20", 4).fits)
    assert bool(step("qwen3-235b-a22b", "h20", 8).fits)


@pytest.mark.parametrize(
    ("name", "capacity", "gpus"),
    [
        ("deepseek-v3", 80e9, 16),
        ("deepseek-v3", 96e9, 8),
        ("deepseek-v3", 141e9, 8),
        ("deepseek-v3", 48e9, 16),  # 8 x 48 GB do not even hold the weights
        ("kimi-k2", 141 * GIB, 8),  # 119.8 GiB of weights each under attention-TP: little cache is left
    ],
)
def test_36_smallest_set_of_gpus_for_a_671b_or_1t_model(name: str, capacity: float, gpus: int) -> None:
    """InternLM/lmdeploy #2960; deepseek-ai/DeepSeek-V3 #855, V2 #83; MoonshotAI/Kimi-K2 #76: weights under 0.9."""
    found = smallest_gpu_count(weight_bytes(model(name)), 0.9 * capacity, gpus_per_node=8, power_of_two=True)
    assert found == gpus


def test_36_the_same_under_attention_dp() -> None:
    """deepseek-ai/DeepSeek-V3 #855: each GPU also holds 17.8 GiB of replicated weights; 8 x 80 GB is out of memory."""
    for gpu, gpus, fits in (("h100", 8, False), ("h100", 16, True), ("l40s", 8, False), ("h200", 8, True)):
        found = step("deepseek-v3", gpu, gpus)
        assert bool(found.fits) is fits
    weights = step("kimi-k2", "h200", 8).memory
    assert float(weights.replicated_weights + weights.expert_weights) / GIB == pytest.approx(131.4, abs=0.5)


def test_93_the_dispatch_cap_follows_batch_and_drafts() -> None:
    """NVIDIA/TensorRT-LLM #3058, #3486, PR 7358, PR 5684: a batch of 32 with 3 drafts dispatches 128 tokens."""
    rule = replace(memory_rule(CATALOG, "sglang"), dispatch_tokens_default=1)
    assert float(dispatch_tokens(step("deepseek-v3", "h200", 32, batch=32, drafts=3).deployment, rule)) == 128


# --- layouts ------------------------------------------------------------------------------------------------------


def with_experts(name: str, *, count: int | None = None, width: int | None = None) -> ModelSpec:
    given = experts(name)
    changed = replace(given, count=count or given.count, width=width or given.width)
    return replace(model(name), experts=changed)


def test_41_a_width_of_320_in_blocks_of_128_is_only_sharded_by_whole_experts() -> None:
    """vllm-project/vllm #54178: 160, 80 and 40 per rank are no multiples of 128."""
    spec = with_experts("qwen3-30b-a3b-fp8", width=320)
    for tp in (2, 4, 8):
        found = violations(spec, Layout(tp=1, dp=tp, moe_tp=tp, moe_ep=1), "vllm")
        assert [fault.path for fault in found] == ["moe_tp"]
        assert found[0].fix == f"use moe_tp 1 and moe_ep {tp}"
    assert violations(spec, Layout(tp=1, dp=8, moe_tp=1, moe_ep=8), "vllm") == []
    assert violations(with_experts("qwen3-30b-a3b-fp8", width=512), Layout(dp=4, moe_tp=4), "vllm") == []


def test_42_three_gpus_break_two_rules_and_hear_of_both_at_once() -> None:
    """vllm-project/vllm #52435: 256 experts, 64 heads; TP3 never, DP3 × EP3 with two redundant experts does."""
    base = model("deepseek-v3")
    spec = replace(base, attention=replace(base.attention, heads=64))
    found = violations(spec, Layout(tp=3, moe_ep=3, moe_tp=1), "vllm")
    assert {fault.path for fault in found} == {"tp", "moe_ep"}
    assert any("64 attention heads" in fault.problem for fault in found)
    assert any("add 2 redundant experts (86 slots per rank)" in fault.fix for fault in found)
    assert violations(spec, Layout(dp=3, moe_ep=3, moe_tp=1, redundant=2), "vllm") == []
    slots = deal(256, 3, 2)
    assert (float(slots.total), float(slots.per_full_rank), float(slots.full_ranks)) == (258, 86, 3)


def test_44_uneven_experts_reserve_the_fullest_rank_everywhere() -> None:
    """vllm-project/vllm-ascend PR 16384: 128 experts on 6 ranks are 22, 22, 21, 21, 21, 21; 22 are allocated."""
    slots = deal(128, 6, 0)
    assert (float(slots.per_full_rank), float(slots.full_ranks)) == (22, 2)
    assert 2 * 22 + 4 * 21 == 128
    assert float(slots.imbalance) == pytest.approx(22 / (128 / 6))
    padded = deal(128, 6)
    assert float(padded.total) == 132
    assert float(padded.total) / 128 - 1 == pytest.approx(0.031, abs=0.001)
    memory = step("qwen3-235b-a22b", "h200", 6).memory
    assert float(memory.expert_weights) == pytest.approx(routed_bytes(model("qwen3-235b-a22b"), mtp=False) / 128 * 22)


def test_45_deepseek_v3_on_14_gpus() -> None:
    """sgl-project/sglang #2591: TP14 divides neither heads nor experts; TP2 × PP7 does, TP8 lacks the memory."""
    spec, needed = model("deepseek-v3"), weight_bytes(model("deepseek-v3"))
    assert needed < 14 * 80e9
    assert {fault.path for fault in violations(spec, Layout(tp=14, moe_ep=14, moe_tp=1), "sglang")} == {"tp", "moe_ep"}
    assert violations(spec, Layout(tp=2, pp=7, moe_ep=2, moe_tp=1), "vllm") == []
    assert needed / 14 == pytest.approx(48e9, rel=0.01)
    assert violations(spec, Layout(tp=8, moe_ep=8, moe_tp=1), "sglang") == []
    assert needed > 8 * 80e9
    assert smallest_gpu_count(needed, 80e9, gpus_per_node=1, power_of_two=True) == 16


def test_46_only_shapes_that_the_engine_can_express() -> None:
    """ai-dynamo/aiconfigurator PR 705, PR 647, PR 1129, PR 1074; ai-dynamo/dynamo #8273."""
    spec = model("qwen3-235b-a22b")
    allowed = {
        (moe_tp, moe_ep)
        for moe_tp in (1, 2, 4, 8)
        for moe_ep in (1, 2, 4, 8)
        if not violations(spec, Layout(tp=2, dp=2, moe_tp=moe_tp, moe_ep=moe_ep), "vllm")
    }
    assert allowed == {(4, 1), (1, 4)}
    assert [f.path for f in violations(spec, Layout(tp=2, dp=2, moe_tp=2, moe_ep=1), "vllm")] == ["moe_ep"]
    assert Layout(tp=4, moe_ep=4).completed().moe_tp == 1
    assert Layout(tp=2, dp=4, moe_tp=2).completed().moe_ep == 4
    wide = with_experts("qwen3-235b-a22b", count=512)
    assert violations(wide, Layout(dp=512, moe_ep=512, moe_tp=1), "vllm") == []
    assert violations(wide, Layout(dp=1024, moe_ep=1024, moe_tp=1), "vllm") != []


def test_47_the_ep_size_is_always_given_and_divides_over_the_nodes() -> None:
    """sgl-project/sglang #8253: TP16 over two nodes with 16 redundant experts needs EP16, 17 slots per rank."""
    spec = model("deepseek-v3")
    left_out = violations(spec, Layout(tp=16, moe_ep=1, moe_tp=16, redundant=16, nodes=2), "sglang")
    assert [fault.path for fault in left_out] == ["moe_ep"]
    assert "such as 16" in left_out[0].fix
    assert violations(spec, Layout(tp=16, moe_ep=16, moe_tp=1, redundant=16, nodes=2), "sglang") == []
    assert float(deal(256, 16, 16).per_full_rank) == 17
    for gpus in (2, 4, 8, 16, 72, 144, 320):
        flags = dict(sglang_command(step("qwen3-30b-a3b", "h200", gpus)).flags)
        assert flags["--ep-size"] == flags["--tp-size"] == str(gpus)


def test_49_gpus_in_whole_trays_and_powers_of_two() -> None:
    """vllm-project/recipes #934, #698, PR 688: 1,680 GB on 192 GB GPUs are 9, 12 in trays of four, 16 for TP."""
    assert smallest_gpu_count(1680e9, 192e9, gpus_per_node=1, power_of_two=False) == 9
    assert smallest_gpu_count(1680e9, 192e9, gpus_per_node=4, power_of_two=False) == 12
    assert smallest_gpu_count(1680e9, 192e9, gpus_per_node=4, power_of_two=True) == 16
    assert smallest_gpu_count(3384e9, 141e9, gpus_per_node=8, power_of_two=False) == 24
    assert 8 * 192e9 < 1680e9


# --- the all-to-all -----------------------------------------------------------------------------------------------


def milliseconds(gpu: str, nic: str, gpus: int, way: str, requests: int) -> float:
    """A decode step of DeepSeek-V3 over so many requests in all, by heads where outputs are added up."""
    spec = model("deepseek-v3")
    tp = gpus if way == ALL_REDUCE else 1
    deployment = Deployment(
        batch=requests * tp // gpus,
        ep=gpus,
        tp=tp,
        context=2048,
        exchange=way,
        precision=Precision.of(spec),
        acceptance=Acceptance.geometric(0.85, 1, "assumed"),
    )
    return 1e3 * float(Predictor.of(spec, cluster_of(CATALOG, gpu, nic, None), CATALOG).predict(deployment).seconds)


def wire(gpu: str, way: str, batch: int) -> float:
    """Seconds that a layer's tokens travel, there and back, over the eight GPUs of a node."""
    spec = model("deepseek-v3")
    deployment = Deployment(
        batch=batch,
        ep=8,
        context=2048,
        exchange=way,
        precision=Precision.of(spec),
        acceptance=Acceptance.geometric(0.85, 1, "assumed"),
    )
    step = Predictor.of(spec, cluster_of(CATALOG, gpu, "cx7", None), CATALOG).predict(deployment)
    stages = next(group for group in step.groups if group.group.ffn == "moe").layer.stages.values()
    return sum(float(cost.seconds) for stage in stages for cost in stage.costs if cost.lane == "network")


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_54_in_a_node_collectives_win_where_few_requests_run(gpu: str) -> None:
    """NVIDIA/Megatron-LM #1456, deepseek-ai/DeepEP #59: for EP <= 8 all-gather or all-to-all, not DeepEP.

    The figures agree for few requests: up to 64 in all, outputs added up over NVLink give the shorter step, and one
    request per GPU is gathered in about the time in which DeepEP sends it. They do not agree for many: from 256 on
    DeepEP's low-latency kernels win, and by far. The advice comes from training runs with other DeepEP kernels.
    """
    for requests in (8, 16, 32, 64):
        added = milliseconds(gpu, "cx7", 8, ALL_REDUCE, requests)
        assert added < milliseconds(gpu, "cx7", 8, LOW_LATENCY, requests)
    for requests in (256, 512, 1024):
        sent = milliseconds(gpu, "cx7", 8, LOW_LATENCY, requests)
        assert sent < milliseconds(gpu, "cx7", 8, ALL_REDUCE, requests)
        assert sent < milliseconds(gpu, "cx7", 8, ALL_GATHER, requests)
    assert wire(gpu, ALL_GATHER, 1) < 1.15 * wire(gpu, LOW_LATENCY, 1)
    assert wire(gpu, ALL_GATHER, 128) > 1.4 * wire(gpu, LOW_LATENCY, 128)


def test_54_normal_kernels_are_the_slower_ones_in_a_node() -> None:
    """The kernels of those training runs: slower than gathering where tokens are few, as reported."""
    for gpu in ("h100", "h200", "b200"):
        assert wire(gpu, "deepep-normal", 1) > 2 * wire(gpu, ALL_GATHER, 1)
        assert wire(gpu, "deepep-normal", 32) > wire(gpu, ALL_GATHER, 32)


def test_54_across_nodes_the_fabric_decides() -> None:
    """awslabs/awsome-distributed-ai PR 1144: without GPU-initiated RDMA +7 to +187 %; gathering wins on few nodes.

    With it the low-latency kernels beat gathering at every size; on EFA they cannot run, what stands in for them takes
    far longer, and gathering is faster for few requests.
    """
    efa, ib = (cluster_of(CATALOG, "h200", nic, None) for nic in ("efa", "cx7"))
    assert efa.nic.latency > ib.nic.latency
    assert (efa.nic.gpu_initiated, usual(ib, 32)) == ((), LOW_LATENCY)
    other = usual(efa, 32)
    assert other == "uccl-low-latency"
    assert list(exchange(LOW_LATENCY).faults(efa, 16))
    for gpus in (16, 32):
        for batch in (1, 8, 32, 128):
            sent = milliseconds("h200", "cx7", gpus, LOW_LATENCY, batch * gpus)
            assert sent < milliseconds("h200", "cx7", gpus, ALL_GATHER, batch * gpus)
            assert milliseconds("h200", "efa", gpus, other, batch * gpus) > 1.07 * sent
        few = milliseconds("h200", "efa", gpus, ALL_GATHER, gpus)
        assert few < milliseconds("h200", "efa", gpus, other, gpus)


# --- hardware files -----------------------------------------------------------------------------------------------

CUSTOM = """
name: Custom-1
vendor: me
architecture: Hopper
memory: {capacity: 96 GB, bandwidth: 4 TB/s}
compute: {bf16: 900 TFLOP/s, fp8: 1800 TFLOP/s}
vector_rate: 3.8 Top/s
attention_overlap: two-stage
scale_up: {bandwidth: 450 GB/s, domain: 8}
"""


def test_84_a_part_is_added_without_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """inference-sim/inference-sim PR 1710 (#1709): a data-only file makes a part usable."""
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "custom-1.yaml").write_text(CUSTOM, encoding="utf-8")
    step_of = ("predict", "deepseek-v3", "--ep", "32", "--batch", "32", "--context", "4k", "--json")
    code, out, _ = run(capsys, *step_of, "--gpu", "custom-1", "--data", str(tmp_path))
    assert code == 0
    assert json.loads(out)["gpu"] == "Custom-1"


def test_84_an_unknown_part_is_an_error_with_near_names() -> None:
    """inference-sim/inference-sim PR 1710 (#1709): a missing H200 was silently an H100, 1.75x too little memory."""
    with pytest.raises(UnknownName, match=r"did you mean .*h200"):
        CATALOG.gpu("h-200")
    h200, h100 = CATALOG.gpu("h200"), CATALOG.gpu("h100")
    assert h200.memory.capacity / h100.memory.capacity == pytest.approx(1.7625, rel=0.001)
    assert h200.memory.bandwidth / h100.memory.bandwidth == pytest.approx(1.433, rel=0.001)
    assert h200.compute == h100.compute
    assert h200.scale_up is not None
    assert h200.scale_up.bandwidth == 450e9
    assert np.isclose(CATALOG.nic("cx7").line_rate, 50e9)


# --- measurements -------------------------------------------------------------------------------------------------


def test_86_below_64_rows_a_product_gets_no_faster() -> None:
    """deepseek-ai/DeepGEMM #60, #114: m = 64, n = 7168, k = 2048 moves 15.7 MB in 7.2 µs; m = 1 took 11.1 µs."""
    machine = Machine.of(cluster_of(CATALOG, "h800", "cx7", None), CATALOG)
    one, tile = (gemm("x", machine, m=m, n=7168, k=2048, weights=weight_format("fp8_block")) for m in (1, 64))
    assert float(tile.bytes_) == pytest.approx(7168 * 2048 + 64 * 2048 + 2 * 64 * 7168, rel=0.005)  # scales apart
    assert float(tile.bytes_) / 7.2e-6 == pytest.approx(2184e9, rel=0.01)
    assert float(one.seconds) >= 0.9 * float(tile.seconds)
    assert float(tile.seconds) >= 4.4e-6


def test_82_every_operator_says_where_its_time_comes_from() -> None:
    """microsoft/vidur #75, aliyun/SimAI #262: no model fails for a missing file, and what is not measured says so."""
    for name in ("deepseek-v3", "kimi-k2", "glm-4.5", "qwen3-235b-a22b", "gpt-oss-120b"):
        for gpu in ("h200", "mi300x"):
            found = step(name, gpu, 16)
            costs = [cost for group in found.groups for stage in group.layer.stages.values() for cost in stage.costs]
            assert all(cost.source for cost in (*costs, *found.outside))
            products = {str(cost.origin) for cost in costs if cost.measurable and cost.lane == "compute"}
            assert "measured" not in products  # both chips have no table of their own here
            assert products <= ({"fitted", "assumed"} if gpu == "h200" else {"assumed"})
