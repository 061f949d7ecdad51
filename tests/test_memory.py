"""What fills a GPU: the uses add up, page sizes round up, MTP brings its own, arrays equal scalars."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moeplan.engines.rules.memory_rule import memory_rule
from moeplan.memory import MemoryUse, dispatch_tokens, low_latency_buffer, memory_use, normal_buffer
from moeplan.routing.slots import deal
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision
from moeplan.specs.model import ModelSpec
from moeplan.specs.parameters import kv_bytes, replicated_bytes, routed_bytes, weight_bytes

CATALOG = Catalog.standard()
RULE = memory_rule(CATALOG, "sglang")
GIB = 2**30
H200 = 141 * GIB
V3, QWEN, OSS, LLAMA = (CATALOG.model(n) for n in ("deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b", "llama-3.1-8b"))


def deployment(spec: ModelSpec, **changes: object) -> Deployment:
    base = Deployment(
        batch=64,
        ep=32,
        context=4096,
        precision=Precision.of(spec),
        acceptance=Acceptance.geometric(0.85, 8, "assumed"),
    )
    return replace(base, **changes)


def use(spec: ModelSpec, *, capacity: float = H200, **changes: object) -> MemoryUse:
    wanted = deployment(spec, **changes)
    slots = None if spec.experts is None else deal(spec.experts.count, wanted.ep, wanted.redundant)
    return memory_use(wanted.precision.applied_to(spec), wanted, slots, capacity=capacity, rule=RULE)


def test_the_uses_add_up_to_the_capacity() -> None:
    memory = use(V3)
    parts = [getattr(memory, name) for name in memory.__struct_fields__ if name != "capacity"]
    assert float(memory.total) == pytest.approx(sum(float(part) for part in parts))
    assert float(memory.total + memory.free) == pytest.approx(memory.capacity)
    pool = float(memory.replicated_weights + memory.expert_weights + memory.kv_cache)
    assert float(memory.static_fraction) * H200 == pytest.approx(pool + float(memory.free))


def test_on_one_gpu_the_weights_are_those_of_the_checkpoint() -> None:
    for spec in (V3, QWEN, OSS, LLAMA):
        memory = use(spec, ep=1)
        assert float(memory.replicated_weights + memory.expert_weights) == pytest.approx(weight_bytes(spec))
        assert float(memory.all_to_all_buffer) == 0


def test_experts_are_dealt_the_rest_is_replicated() -> None:
    for ep in (8, 32, 256):
        memory = use(V3, ep=ep)
        assert float(memory.replicated_weights) == replicated_bytes(V3, mtp=False)
        assert float(memory.expert_weights) == pytest.approx(routed_bytes(V3, mtp=False) / ep)


def test_redundant_experts_take_their_slots() -> None:
    """ROCm/ATOM PR 1210: 64 extra slots over 8 GPUs are 8 per GPU and layer."""
    plain, extra = use(V3, ep=8, redundant=0), use(V3, ep=8, redundant=64)
    one = routed_bytes(V3, mtp=False) / 256
    assert float(extra.expert_weights - plain.expert_weights) == pytest.approx(8 * one)
    assert float(extra.all_to_all_buffer) / float(plain.all_to_all_buffer) == pytest.approx(320 / 256)


def test_mtp_brings_weights_a_layer_of_experts_and_a_layer_of_cache() -> None:
    plain, mtp = use(V3, ep=32), use(V3, ep=32, drafts=1)
    assert float(mtp.replicated_weights) == replicated_bytes(V3, mtp=True)
    assert float(mtp.expert_weights) == pytest.approx(routed_bytes(V3, mtp=True) / 32)
    assert float(mtp.kv_cache) / float(plain.kv_cache) == pytest.approx(62 / 61)
    four = use(V3, ep=32, drafts=4)  # the module is reused: only the tokens of the step grow
    assert float(four.expert_weights) == float(mtp.expert_weights)


@pytest.mark.parametrize(
    ("context", "drafts", "kept"),
    [(1, 0, 64), (63, 0, 64), (64, 0, 128), (4095, 0, 4096), (4096, 0, 4160), (4092, 3, 4096), (4092, 4, 4160)],
)
def test_cached_tokens_fill_whole_pages_with_room_for_the_step(context: int, drafts: int, kept: int) -> None:
    found = float(use(V3, context=context, drafts=drafts).kv_cache)
    assert found == 64 * float(kv_bytes(V3, kept, mtp=drafts > 0))


def test_an_fp8_cache_takes_half() -> None:
    half = use(V3, precision=Precision.of(V3, kv="fp8"))
    assert float(half.kv_cache) == float(use(V3).kv_cache) / 2


def test_a_window_bounds_the_cache_of_its_layers() -> None:
    short, long = use(OSS, context=1000), use(OSS, context=100_000)
    assert float(long.kv_cache) < 100 * float(short.kv_cache)
    assert float(long.kv_cache) > 50 * float(short.kv_cache)


def test_dense_models_have_no_expert_uses() -> None:
    memory = use(LLAMA, ep=8)
    assert float(memory.expert_weights) == float(memory.all_to_all_buffer) == 0
    assert float(memory.replicated_weights) == weight_bytes(LLAMA)


@pytest.mark.parametrize(("batch", "drafts", "tokens"), [(1, 0, 128), (128, 0, 128), (129, 0, 129), (64, 3, 256)])
def test_the_buffer_holds_the_steps_tokens_and_no_less_than_the_default(batch: int, drafts: int, tokens: int) -> None:
    wanted = deployment(V3, batch=batch, drafts=drafts)
    assert float(dispatch_tokens(wanted, RULE)) == tokens
    buffer = float(use(V3, batch=batch, drafts=drafts).all_to_all_buffer)
    assert buffer == float(low_latency_buffer(experts=256, tokens=tokens, hidden=7168))


def test_the_buffer_follows_the_padded_slots() -> None:
    memory = use(V3, ep=144)  # 288 slots
    assert float(memory.all_to_all_buffer) == float(low_latency_buffer(experts=288, tokens=128, hidden=7168))
    assert float(memory.expert_weights) == pytest.approx(routed_bytes(V3, mtp=False) / 256 * 2)


def test_too_little_memory_is_negative_not_clipped() -> None:
    memory = use(V3, capacity=1e9)
    assert float(memory.free) < 0
    assert float(memory.free) == pytest.approx(1e9 - float(memory.total))


@given(
    batch=st.integers(1, 2000),
    ep=st.sampled_from([1, 8, 9, 72, 320]),
    context=st.integers(1, 160_000),
    drafts=st.integers(0, 5),
)
def test_no_use_is_negative_and_none_falls_when_the_work_grows(batch: int, ep: int, context: int, drafts: int) -> None:
    here = use(V3, batch=batch, ep=ep, context=context, drafts=drafts)
    for grown in (
        use(V3, batch=batch + 1, ep=ep, context=context, drafts=drafts),
        use(V3, batch=batch, ep=ep, context=context + 64, drafts=drafts),
        use(V3, batch=batch, ep=ep, context=context, drafts=drafts + 1),
    ):
        for name in here.__struct_fields__:
            assert 0 <= float(getattr(here, name)) <= float(getattr(grown, name))


@pytest.mark.parametrize("spec", [V3, QWEN, OSS], ids=lambda spec: spec.name)
def test_arrays_on_open_axes_equal_scalars(spec: ModelSpec) -> None:
    batches, counts = np.array([1.0, 64, 129, 512]), np.array([1.0, 8, 9, 72, 320])
    drafts = np.array([0, 1, 3]) if spec.mtp_layers else np.array([0])
    grid = use(spec, batch=batches[None, :, None], ep=counts[:, None, None], drafts=drafts[None, None, :])
    shape = (counts.size, batches.size, drafts.size)
    for name in grid.__struct_fields__:
        found = np.broadcast_to(getattr(grid, name), shape)
        for (i, j, k), value in np.ndenumerate(found):
            one = use(spec, batch=int(batches[j]), ep=int(counts[i]), drafts=int(drafts[k]))
            assert float(getattr(one, name)) == pytest.approx(float(value))


@pytest.mark.parametrize(
    ("ep", "size"),
    [
        (8, 10 * 8 * 256 * 16392),
        (16, 10 * (8 * 288 * 16392 + 2 * 140 * 16408 * 2) + 2**20),
        (144, 10 * (8 * 720 * 16392 + 18 * 140 * 16408 * 2) + 2**20),
    ],
)
def test_normal_buffers_by_deepeps_size_hints(ep: int, size: float) -> None:
    """csrc/config.hpp, for hidden 7168: (14336 + 8 + 128·16) bytes a slot, ten channels of 20 SMs."""
    assert float(normal_buffer(ep=ep, hidden=7168)) == size
    assert size < float(low_latency_buffer(experts=288, tokens=128, hidden=7168))


def test_each_all_to_all_reserves_by_its_own_rule() -> None:
    slots = deal(256, np.array([1, 8, 64]))

    def buffer(exchange: str) -> list[float]:
        one = replace(deployment(V3, batch=256), ep=np.array([1, 8, 64]), exchange=exchange)
        found = memory_use(V3, one, slots, capacity=H200, rule=RULE).all_to_all_buffer
        return [float(size) for size in np.broadcast_to(np.asarray(found), (3,))]

    assert buffer("deepep-low-latency") == buffer("uccl-low-latency") == buffer("pplx")
    assert buffer("nvlink-one-sided") == [0.0, 8 * 256 * 4 * 7168, 64 * 256 * 4 * 7168]
    assert buffer("deepep-normal") == [0.0, *(float(normal_buffer(ep=ep, hidden=7168)) for ep in (8, 64))]
    assert all(size == 0 for size in buffer("all-gather"))
    assert buffer("deepep-normal")[1] < buffer("deepep-low-latency")[1]
