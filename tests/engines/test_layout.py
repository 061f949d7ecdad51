"""Layout rules: every violated one at once, each with a fix that really helps; GPU counts in whole nodes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moeplan.engines.rules import EngineName
from moeplan.engines.rules.layout import Layout, check_layout, smallest_gpu_count, violations
from moeplan.errors import InputError
from moeplan.routing.slots import deal
from moeplan.specs.catalog import Catalog
from moeplan.specs.model import Gqa, ModelSpec

CATALOG = Catalog.standard()
ENGINES: tuple[EngineName, ...] = ("sglang", "vllm", "trtllm")
MODELS = {name: CATALOG.model(name) for name in ("deepseek-v3", "qwen3-235b-a22b", "mixtral-8x7b", "llama-3.1-70b")}


def paths(spec: ModelSpec, layout: Layout, engine: EngineName = "sglang") -> list[str]:
    return [fault.path for fault in violations(spec, layout, engine)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CATALOG.names("models"))
def test_one_gpu_is_always_expressible(name: str, engine: EngineName) -> None:
    assert violations(CATALOG.model(name), Layout(), engine) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gpus", [2, 8, 16, 64, 128, 256])
def test_attention_dp_with_whole_experts(gpus: int, engine: EngineName) -> None:
    layout = Layout(dp=gpus, moe_ep=gpus, moe_tp=1, nodes=max(gpus // 8, 1))
    assert violations(MODELS["deepseek-v3"], layout, engine) == []


@pytest.mark.parametrize(
    ("layout", "moe_tp", "moe_ep"),
    [
        (Layout(tp=4, moe_ep=4), 1, 4),
        (Layout(tp=2, dp=2), 4, 1),
        (Layout(tp=2, dp=4, moe_tp=2), 2, 4),
        (Layout(dp=8, moe_tp=1), 1, 8),
        (Layout(tp=2, dp=2, moe_ep=8), 1, 8),  # too many: inferred as 1, so that the rule sees it
    ],
)
def test_a_missing_expert_size_follows_from_the_product(layout: Layout, moe_tp: int, moe_ep: int) -> None:
    done = layout.completed()
    assert (done.moe_tp, done.moe_ep) == (moe_tp, moe_ep)
    assert done.completed() == done


def test_every_size_below_one_is_named_at_once() -> None:
    layout = Layout(tp=0, dp=-1, pp=0, moe_tp=0, moe_ep=-3, nodes=0)
    assert paths(MODELS["deepseek-v3"], layout) == ["tp", "dp", "pp", "moe_tp", "moe_ep", "nodes"]


def test_all_rules_at_once() -> None:
    layout = Layout(tp=3, dp=2, pp=100, moe_tp=3, moe_ep=3, nodes=4)
    found = paths(MODELS["qwen3-235b-a22b"], layout, "vllm")
    assert sorted(found) == ["moe_ep", "moe_ep", "moe_tp", "pp", "tp", "tp"]
    with pytest.raises(InputError) as caught:
        check_layout(MODELS["qwen3-235b-a22b"], layout, "vllm")
    assert len(caught.value.faults) == len(found)
    assert str(caught.value).startswith("layout for vllm: 6 faults")


def test_the_product_rule() -> None:
    assert paths(MODELS["deepseek-v3"], Layout(tp=8, moe_tp=1, moe_ep=4)) == ["moe_ep"]


@pytest.mark.parametrize(("tp", "allowed"), [(1, True), (2, True), (4, True), (8, True), (16, True), (64, True)])
def test_few_kv_heads_are_replicated_not_refused(tp: int, allowed: bool) -> None:
    assert (paths(MODELS["qwen3-235b-a22b"], Layout(tp=tp, moe_ep=tp, moe_tp=1)) == []) is allowed


def test_kv_heads_and_tp_must_divide_one_way() -> None:
    base = MODELS["llama-3.1-70b"]  # 64 heads, 8 KV heads
    assert isinstance(base.attention, Gqa)
    six = replace(base, attention=replace(base.attention, heads=48, kv_heads=6))
    assert paths(six, Layout(tp=3)) == []
    assert paths(six, Layout(tp=12)) == []
    assert paths(six, Layout(tp=4)) == ["tp"]


def test_a_dense_model_has_no_expert_rules() -> None:
    assert paths(MODELS["llama-3.1-70b"], Layout(tp=8, dp=1, redundant=5, moe_ep=3, moe_tp=7)) == []
    assert paths(MODELS["llama-3.1-70b"], Layout(tp=5)) == ["tp", "tp"]


def test_width_of_experts() -> None:
    mixtral = MODELS["mixtral-8x7b"]  # bf16 experts of 14,336
    assert paths(mixtral, Layout(tp=1, dp=7, moe_tp=7, moe_ep=1)) == []
    assert paths(mixtral, Layout(tp=1, dp=3, moe_tp=3, moe_ep=1)) == ["moe_tp"]
    block = replace(mixtral, formats=replace(mixtral.formats, experts="fp8_block"))
    assert paths(block, Layout(tp=1, dp=32, moe_tp=32, moe_ep=1)) == ["moe_tp"]  # 448 is 3.5 blocks of 128
    assert paths(block, Layout(tp=1, dp=16, moe_tp=16, moe_ep=1)) == []


@pytest.mark.parametrize(
    ("gpus", "nodes", "engine", "found"),
    [
        (20, 3, "sglang", ["nodes"]),  # check_server_args of SGLang 0.5.23: tp_size must be divisible by nnodes
        (20, 3, "vllm", []),
        (20, 4, "sglang", []),
        (10, 2, "sglang", []),
        (40, 5, "sglang", []),
    ],
)
def test_sglang_shares_gpus_evenly_over_nodes(gpus: int, nodes: int, engine: EngineName, found: list[str]) -> None:
    coder = CATALOG.model("qwen3-coder-480b-a35b")  # 160 experts
    assert paths(coder, Layout(dp=gpus, moe_ep=gpus, moe_tp=1, nodes=nodes), engine) == found


@given(
    gpus=st.integers(1, 600),
    redundant=st.integers(0, 64),
    name=st.sampled_from(["deepseek-v3", "qwen3-235b-a22b", "mixtral-8x7b"]),
)
def test_following_the_fix_removes_the_fault(gpus: int, redundant: int, name: str) -> None:
    spec = MODELS[name]
    layout = Layout(dp=gpus, moe_ep=gpus, moe_tp=1, redundant=redundant)
    found = violations(spec, layout, "sglang")
    assert spec.experts is not None
    assert (found == []) == ((spec.experts.count + redundant) % gpus == 0)
    if found:
        more = re.match(r"add (\d+) redundant experts? \((\d+) slots per rank\)", found[0].fix)
        assert more is not None
        repaired = replace(layout, redundant=redundant + int(more[1]))
        assert violations(spec, repaired, "sglang") == []
        slots = deal(spec.experts.count, gpus, repaired.redundant)
        assert float(slots.per_full_rank) == int(more[2])


@pytest.mark.parametrize(
    ("needed", "each", "node", "gpus"),
    [(1, 80, 8, 1), (80, 80, 8, 1), (81, 80, 8, 8), (640, 80, 8, 8), (641, 80, 8, 16), (700, 80, 1, 9), (1, 2, 4, 1)],
)
def test_gpus_fill_whole_nodes(needed: float, each: float, node: int, gpus: int) -> None:
    assert smallest_gpu_count(needed, each, gpus_per_node=node, power_of_two=False) == gpus


@given(
    needed=st.floats(1, 1e14),
    each=st.floats(1e9, 1e12),
    node=st.sampled_from([1, 4, 8]),
    power=st.booleans(),
)
def test_the_gpu_count_holds_the_bytes(needed: float, each: float, node: int, power: bool) -> None:
    gpus = smallest_gpu_count(needed, each, gpus_per_node=node, power_of_two=power)
    assert gpus * each >= needed * (1 - 1e-12)
    assert gpus == 1 or gpus % node == 0
    if power:
        assert gpus & (gpus - 1) == 0
    else:
        assert gpus <= node or (gpus - node) * each < needed


@pytest.mark.parametrize(("needed", "each"), [(0, 1), (1, 0), (-1, 1), (1, -1), (float("nan"), 1), (1, float("nan"))])
def test_the_gpu_count_needs_positive_figures(needed: float, each: float) -> None:
    with pytest.raises(InputError, match="give positive figures"):
        smallest_gpu_count(needed, each, gpus_per_node=8, power_of_two=False)
