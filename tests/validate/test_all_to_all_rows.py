"""Published rows of all-to-alls: which kernel they mean, what a bandwidth counts, and why a row is refused."""

from __future__ import annotations

import pytest

from moeplan.validate.all_to_all_rows import question_of, stated_seconds
from moeplan.validate.not_modelled import NotModelledError

ROW = {
    "library": "DeepEP",
    "version": "V1",
    "gpu": "H800",
    "nic": "CX7 400Gb/s",
    "op": "dispatch",
    "mode": "normal",
    "ep_ranks": "32",
    "tokens_per_rank": "4096.0",
    "hidden": "7168.0",
    "topk": "8.0",
    "experts": "256.0",
    "precision": "fp8",
    "latency_us": "",
    "bw_gb_per_s": "58.0",
    "bw_kind": "RDMA bottleneck",
    "sm_count": "20.0",
    "measured_as": "bandwidth table",
    "trust": "high",
    "note": "",
}


def test_a_normal_bandwidth_counts_a_token_once_per_node_its_own_included() -> None:
    """DeepEP's README, EP32: 58 GB/s of 4,096 tokens that go to 3.6 of 4 nodes."""
    question = question_of(ROW)
    assert (question.form, question.backend, question.gpu, question.nic) == ("deepep_normal", "deepep", "h800", "cx7")
    assert question.wire == "fp8_block"
    nodes = 4 * (1 - (192 / 256) ** 8)
    seconds = stated_seconds(ROW, question)
    assert seconds == pytest.approx(4096 * nodes * 7168 * (1 + 4 / 128) / 58e9, rel=0.01)


def test_inside_a_node_it_counts_ranks() -> None:
    row = {**ROW, "ep_ranks": "8", "bw_gb_per_s": "153", "bw_kind": "NVLink bottleneck"}
    assert stated_seconds(row, question_of(row)) == pytest.approx(4096 * 5.30 * 7168 * 1.03125 / 153e9, rel=0.005)


def test_eight_nodes_are_limited_to_four() -> None:
    assert question_of({**ROW, "ep_ranks": "64"}).shape["top_groups"] == 4
    assert question_of({**ROW, "ep_ranks": "64", "library": "HybridEP"}).shape["top_groups"] == 1


def test_a_low_latency_bandwidth_counts_every_message() -> None:
    """DeepEP's README: 39 GB/s and 192 µs are the same row."""
    row = {
        **ROW,
        "mode": "low_latency",
        "ep_ranks": "128",
        "tokens_per_rank": "128",
        "bw_gb_per_s": "39",
        "bw_kind": "RDMA",
    }
    assert stated_seconds(row, question_of(row)) == pytest.approx(192e-6, rel=0.02)
    assert stated_seconds({**row, "latency_us": "192"}, question_of(row)) == pytest.approx(192e-6)
    assert stated_seconds({**row, "bw_gb_per_s": ""}, question_of(row)) is None


@pytest.mark.parametrize(
    ("changed", "backend", "per_node"),
    [
        ({"version": "V1 2025-02 pure RDMA"}, "deepep-rdma", 1),
        ({"library": "DeepEP (as quoted by pplx)"}, "deepep-rdma", 1),
        ({"library": "pplx-kernels", "version": "IBRC Dispatch"}, "pplx-ibrc", 8),
        ({"library": "UCCL-EP", "nic": "EFA"}, "uccl", 8),
        ({"library": "TensorRT-LLM NVLinkOneSided", "mode": "one-sided", "nic": "NVL72"}, "trtllm-one-sided", 72),
    ],
)
def test_backends_and_their_domains(changed: dict[str, str], backend: str, per_node: float) -> None:
    found = question_of({**ROW, **changed})
    assert (found.backend, found.shape["per_node"]) == (backend, per_node)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"library": "pplx-kernels", "version": "IBGDA NVSHMEM AtA", "op": "all-to-all"}, "padded buffers"),
        ({"op": "all-to-all"}, "no message size given"),
        ({"precision": "fp8/bf16"}, "together"),
        ({"library": "Carrier"}, "library Carrier"),
        ({"precision": ""}, "precision not given"),
        ({"tokens_per_rank": ""}, "no tokens_per_rank given"),
        ({"bw_kind": "logical"}, "unstated bytes"),
        ({"mode": "low_latency", "note": "though the LL test path is FP8"}, "bf16 by its text"),
    ],
)
def test_a_refusal_says_why(changed: dict[str, str], reason: str) -> None:
    row = {**ROW, **changed}
    with pytest.raises(NotModelledError, match=reason):
        stated_seconds(row, question_of(row))
