"""Worked numbers of the three articles and of the systems that they describe, each with its source."""

from __future__ import annotations

import pytest

from moeplan.kernels.all_to_all import message_bytes
from moeplan.memory import BufferRevision, low_latency_buffer
from moeplan.routing.slots import deal, expert_load


@pytest.mark.parametrize(
    ("tokens", "deepseek", "qwen"),
    [(1, 0.0312, 0.0195), (8, 0.2243, 0.146), (32, 0.6379, 0.468), (64, 0.8689, 0.717), (128, 0.9828, 0.920)],
)
def test_coverage_of_experts_in_one_step(tokens: int, deepseek: float, qwen: float) -> None:
    """Batch article: C(B) = 1 − (1 − k/E)^B; 8 of 256, and 10 of 512."""
    for experts, top_k, published, digits in ((256, 8, deepseek, 4), (512, 10, qwen, 3)):
        load = expert_load(deal(experts, 1), tokens=tokens, top_k=top_k)
        assert float(load.active) / experts == pytest.approx(published, abs=0.51 * 10**-digits)


@pytest.mark.parametrize(("batch", "ranks", "rows"), [(32, 1, 32), (1, 32, 32), (128, 32, 128 * 32), (4, 144, 4 * 144)])
def test_rows_per_expert_of_the_grouped_gemm_article(batch: int, ranks: int, rows: int) -> None:
    """Grouped-GEMM article, eq. 5 and 7: E[m] = B·Q·K·D/E, which for 8 of 256 is B·Q·D/32."""
    load = expert_load(deal(256, ranks, redundant=max(ranks - 256, 0)), tokens=batch * ranks, top_k=8)
    assert load.mean_rows_per_slot == rows / 32


@pytest.mark.parametrize("hidden", [2048, 4096, 5120, 7168])
def test_bytes_of_a_message(hidden: int) -> None:
    """DeepEP low-latency: d + d/128·4 + 16 in FP8, 2·d + 16 in BF16; results come back as 2·d."""
    assert message_bytes("dispatch", hidden, dispatch="fp8") == hidden + hidden // 128 * 4 + 16
    assert message_bytes("dispatch", hidden, dispatch="bf16") == 2 * hidden + 16
    assert message_bytes("combine", hidden, dispatch="fp8") == 2 * hidden
    assert message_bytes("combine", hidden, dispatch="bf16") == 2 * hidden


def test_a_dispatch_message_of_deepseek_v3() -> None:
    assert message_bytes("dispatch", 7168, dispatch="fp8") == 7408
    assert message_bytes("combine", 7168, dispatch="fp8") == 14336


@pytest.mark.parametrize(
    ("revision", "experts", "megabytes"),
    [("2025-06", 256, 1880.099), ("2025-02", 288, 2116.291), ("current", 256, 1908.410)],
)
def test_the_low_latency_buffer(revision: BufferRevision, experts: int, megabytes: float) -> None:
    """DeepEP's log lines of 1,880 and 2,116 MB: 128 tokens of 7168."""
    found = low_latency_buffer(experts=experts, tokens=128, hidden=7168, revision=revision)
    assert float(found) / 1e6 == pytest.approx(megabytes, abs=0.001)


def test_the_buffer_grows_with_experts_and_tokens_not_with_ranks() -> None:
    one = low_latency_buffer(experts=256, tokens=128, hidden=7168)
    assert low_latency_buffer(experts=512, tokens=128, hidden=7168) == 2 * one
    signalling = 8 * 256
    assert low_latency_buffer(experts=256, tokens=256, hidden=7168) - signalling == 2 * (one - signalling)
