"""Decode attention: work counted by hand, and how softmax hides."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from moeplan.kernels.sources import ARTICLE
from moeplan.ops.attention import gqa_decode, mla_decode
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import AttentionOverlap
from moeplan.specs.model import Gqa, Mla
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
CLUSTER = CATALOG.cluster("h800-cx7")
BF16, FP8 = weight_format("bf16"), weight_format("fp8")
DEEPSEEK = Mla(heads=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
QWEN = Gqa(heads=64, kv_heads=4, head_dim=128)
CORE_MFU = 510 / 989  # FlashMLA at 128 rows, the article's figure


def machine(overlap: AttentionOverlap = "two-stage", vector_rate: float = 3.865e12) -> Machine:
    gpu = replace(CLUSTER.gpu, attention_overlap=overlap, vector_rate=vector_rate)
    return Machine.of(replace(CLUSTER, gpu=gpu), CATALOG, ARTICLE)


def mla(target: Machine, *, batch: float = 64, q_len: float = 1, context: float = 5000, cache: str = "bf16") -> Cost:
    kv = weight_format(cache)
    return mla_decode("core", target, DEEPSEEK, batch=batch, q_len=q_len, context=context, core=BF16, cache=kv)


def gqa(*, batch: float = 64, q_len: float = 1, context: float = 5000, cache: str = "bf16") -> Cost:
    kv = weight_format(cache)
    return gqa_decode("core", machine(), QWEN, batch=batch, q_len=q_len, context=context, core=BF16, cache=kv)


def test_work_of_absorbed_mla() -> None:
    """128 heads on a latent of 576: 2·128·(576 + 512) FLOP per cached token; 576 elements read once."""
    cost = mla(machine())
    tokens = 64 * 5000
    assert cost.flops == tokens * 2 * 128 * (576 + 512)
    assert cost.bytes_ == tokens * 576 * 2
    assert cost.terms["vector"][0] == tokens * 128 * 3


def test_drafts_share_the_cache_read() -> None:
    one, three = mla(machine()), mla(machine(), q_len=3)
    assert three.bytes_ == one.bytes_
    assert three.flops == 3 * one.flops


@pytest.mark.parametrize("vector_rate", [3.865e12, 0.2e12])
def test_how_softmax_hides(vector_rate: float) -> None:
    """Throughput article, FlashMLA: score + max(vector, value); max(vector, score + value); or all three in a row."""
    tokens, peak = 64 * 5000, 989.4e12 * CORE_MFU
    score, value = tokens * 2 * 128 * 576 / peak, tokens * 2 * 128 * 512 / peak
    vector = tokens * 128 * 3 / vector_rate
    assert mla(machine("none", vector_rate)).seconds == pytest.approx(score + value + vector)
    assert mla(machine("two-stage", vector_rate)).seconds == pytest.approx(score + max(vector, value))
    assert mla(machine("three-stage", vector_rate)).seconds == pytest.approx(max(vector, score + value))


def test_work_of_grouped_queries() -> None:
    """64 query heads, 4 pairs of K and V of 128: the cache is read once for 16 query heads."""
    cost = gqa()
    tokens = 64 * 5000
    assert cost.flops == tokens * 2 * 64 * (128 + 128)
    assert cost.bytes_ == tokens * 2 * 4 * 128 * 2
    assert cost.bound_by == "memory"
    assert cost.seconds == pytest.approx(8.8e-6 + cost.bytes_ / (3.35e12 * 0.88))


def test_an_fp8_cache_halves_the_read() -> None:
    assert gqa(cache="fp8").bytes_ == gqa().bytes_ / 2
    assert mla(machine(), cache="fp8").bytes_ == mla(machine()).bytes_ / 2
    assert gqa(cache="fp8").seconds < gqa().seconds


def test_time_grows_with_context_and_batch() -> None:
    """At a fixed efficiency: the published factor depends on heads and drafts only."""
    for q_len in (1, 2):
        times = [float(mla(machine(), context=context, q_len=q_len).seconds) for context in (1, 100, 5000, 100_000)]
        assert times == sorted(times)
        assert times[3] / times[2] == pytest.approx(20)
    slow = [float(gqa(context=context).seconds) for context in (1, 100, 5000, 100_000)]
    assert slow == sorted(slow)
    assert float(mla(machine(), batch=128).seconds) == pytest.approx(2 * float(mla(machine()).seconds))
