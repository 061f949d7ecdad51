"""Counts of parameters and bytes: an independent reference table, and reports of users of other tools."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moeplan.errors import InputError, UnknownName
from moeplan.specs import hf_config
from moeplan.specs.hf_config import model_from_config
from moeplan.specs.model import ModelSpec
from moeplan.specs.parameters import (
    cache_elements,
    kv_bytes,
    kv_bytes_per_token,
    kv_shard_factor,
    parameters,
    routed_bytes,
    tokens_that_fit,
    weight_bytes,
)
from moeplan.specs.precision import bytes_per_weight

MODELS = Path(hf_config.__file__).parents[1] / "data" / "models"
GIB, MIB = 2**30, 2**20
with Path(__file__).with_name("models_reference.csv").open(encoding="utf-8") as file:
    REFERENCE = list(csv.DictReader(file))


def config(slug: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((MODELS / f"{slug}.json").read_text(encoding="utf-8"))
    return content


def model(slug: str, **changes: Any) -> ModelSpec:
    return model_from_config({**config(slug), **changes}, name=slug)


def window_bytes(spec: ModelSpec) -> float:
    """Bytes of the windowed layers once full: what a long request holds beyond the part that grows."""
    tokens = 1_000_000
    return float(kv_bytes(spec, tokens)) - tokens * kv_bytes_per_token(spec)


@pytest.mark.parametrize("row", REFERENCE, ids=lambda row: row["model"])
def test_reference_table(row: dict[str, str]) -> None:
    spec = model(row["model"])
    count = parameters(spec)
    found = {
        "total_params": count.total,
        "active_incl_embed_head": count.active,
        "active_excl_input_embed": count.active_without_embedding,
        "active_excl_embed_head": count.active_without_embedding_and_head,
        "mtp_params_unique": count.total_with_mtp - count.total,
        "weight_bytes_main": weight_bytes(spec),
        "weight_bytes_main_plus_mtp": weight_bytes(spec, mtp=True),
        "kv_bytes_per_token_bf16": kv_bytes_per_token(spec),
        "const_state_bytes_per_seq": window_bytes(spec),
    }
    near = row["within_0.1_percent"].split()
    assert bool(near) == bool(row["reason"])
    for column, value in found.items():
        wanted = float(row[column])
        assert value == (pytest.approx(wanted, rel=1e-3) if column in near else wanted), column


def test_every_built_in_model_is_in_the_reference_table_or_equals_one_that_is() -> None:
    twins = {"qwen3-30b-a3b-fp8": "qwen3-30b-a3b", "deepseek-v3.1-nvfp4": "deepseek-v3"}
    assert {path.stem for path in MODELS.glob("*.json")} - {row["model"] for row in REFERENCE} == set(twins)
    for slug, twin in twins.items():
        assert parameters(model(slug)) == parameters(model(twin))


def test_block_scales_and_excluded_modules_are_counted() -> None:
    """FP8 of Qwen3-30B-A3B: matrices with one fp32 per 128 x 128, the rest in bf16."""
    count, spec = parameters(model("qwen3-30b-a3b")), model("qwen3-30b-a3b-fp8")
    matrices = count.attention.matrices + count.routed.matrices
    assert weight_bytes(spec) == matrices * (1 + 4 / 128**2) + (count.total - matrices) * 2


def test_nvfp4_checkpoint_keeps_attention_inputs_and_mtp_in_bf16() -> None:
    """nvidia/DeepSeek-V3.1-NVFP4 excludes q_a, q_b, kv_a, kv_b of every layer and all of layer 61, but not o_proj."""
    spec = model("deepseek-v3.1-nvfp4")
    count = parameters(spec)
    output = 61 * 128 * 128 * 7168
    packed = output + count.dense.matrices + count.shared.matrices + count.routed.matrices
    in_fp32 = 58 * 256
    assert weight_bytes(spec) == packed * 9 / 16 + (count.total - packed - in_fp32) * 2 + in_fp32 * 4
    assert weight_bytes(spec, mtp=True) - weight_bytes(spec) == 2 * (count.total_with_mtp - count.total) + 2 * 256


# --- reports of users of other tools -----------------------------------------------------------------------------


def test_lmcache_issue_2248_head_size_of_glm_4_5() -> None:
    """LMCache issue 2248: 96 heads do not divide hidden 5120; the explicit head_dim counts."""
    spec = model("glm-4.5")
    assert kv_bytes_per_token(spec) == 2 * 92 * 8 * 128 * 2 == 376_832
    assert kv_bytes(spec, 1) == 376_832
    truncated = config("glm-4.5")
    del truncated["head_dim"]
    with pytest.raises(InputError, match="head_dim: is missing"):
        model_from_config(truncated, name="GLM-4.5")


def test_gguf_parser_go_issue_8_latent_cache_of_deepseek_v3() -> None:
    """gguf-parser-go issue 8: 64K tokens, latent or expanded, 16 and 4 bit."""
    spec, tokens = model("deepseek-v3"), 65_536
    assert float(kv_bytes(spec, tokens)) / GIB == pytest.approx(4.289, abs=1e-3)
    assert cache_elements(spec.attention) * spec.layer_count * tokens * 0.5 / MIB == 1098
    assert float(kv_bytes(spec, tokens, layout="expanded")) / GIB == pytest.approx(305.0, abs=1e-9)


def test_aiconfigurator_pr_391_four_bit_formats_have_scales() -> None:
    """aiconfigurator PR 391, inference-sim PR 1563, whichllm PR 99: FP4 is not half a byte, and never 16 bits."""
    assert bytes_per_weight("nvfp4") == 0.5625
    assert bytes_per_weight("mxfp4") == 0.53125
    with pytest.raises(UnknownName, match="fp3"):
        bytes_per_weight("fp3")
    spec = model("deepseek-v3")
    for weights, gigabytes in (("nvfp4", 367.8), ("mxfp4", 347.4)):
        packed = replace(spec, formats=replace(spec.formats, experts=weights))
        assert routed_bytes(packed, mtp=False) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_inference_sim_issue_624_weights_of_deepseek_v3() -> None:
    """inference-sim issue 624, PR 1153: FP8 read from the config, three dense layers."""
    spec = model("deepseek-v3")
    assert parameters(spec).total == pytest.approx(671.03e9, rel=1e-3)
    assert 626 <= weight_bytes(spec) / GIB <= 628
    all_sparse = model("deepseek-v3", first_k_dense_replace=0)
    assert parameters(all_sparse).total == pytest.approx(703.8e9, rel=1e-3)
    assert weight_bytes(all_sparse) / GIB == pytest.approx(656, abs=2)  # the 656 of the report


def test_deepseek_v3_issue_19_the_mtp_module_is_a_62nd_layer() -> None:
    """DeepSeek-V3 issue 19, PR 549: 671 billion, 682.6 with MTP, 684.5 with its copies of embedding and head."""
    spec = model("deepseek-v3")
    count = parameters(spec)
    assert (spec.layer_count, spec.moe_layer_count, spec.mtp_layers) == (61, 58, 1)
    assert count.total == pytest.approx(671.03e9, rel=1e-5)
    assert count.total_with_mtp == pytest.approx(682.6e9, rel=1e-4)
    assert count.total_with_mtp + count.embedding.total + count.head.total == pytest.approx(684.5e9, rel=1e-4)
    assert kv_bytes_per_token(spec, mtp=True) == kv_bytes(spec, 1, mtp=True) == 71_424


def test_deepseek_v3_repository_is_688_6_gigabytes() -> None:
    """The safetensors files of deepseek-ai/DeepSeek-V3 hold 688,586,727,753 B, headers of 12 MB among them."""
    spec = model("deepseek-v3")
    copies = parameters(spec).embedding.bytes_in("bf16") + parameters(spec).head.bytes_in("bf16")
    assert weight_bytes(spec, mtp=True) + copies == pytest.approx(688_586_727_753, rel=3e-5)


def test_inference_sim_issue_1527_head_dim_of_an_mla_config_is_not_its_cache() -> None:
    """inference-sim issue 1527: 78 MLA layers cache 89,856 B per token whatever head_dim says; 75 are sparse."""
    spec = model("deepseek-v3", num_hidden_layers=78, num_attention_heads=64, head_dim=192, num_key_value_heads=64)
    assert kv_bytes_per_token(spec) == 89_856
    assert spec.moe_layer_count == 75


@pytest.mark.parametrize("slug", ["gpt-oss-120b", "gpt-oss-20b"])
@pytest.mark.parametrize("budget", [0, 1e6, 5e6, 1e8, 7.3e9])
def test_aiconfigurator_pr_1201_capacity_inverts_the_true_curve(slug: str, budget: float) -> None:
    """aiconfigurator PR 1201: tokens that fit are not budget / kv(1) when layers have a window."""
    spec = model(slug)
    fit = tokens_that_fit(spec, budget)
    assert float(kv_bytes(spec, fit)) <= budget < float(kv_bytes(spec, fit + 1))
    if budget > 2 * window_bytes(spec):
        assert fit > budget / float(kv_bytes(spec, 1))


def test_unified_cache_management_issue_1217_and_llm_d_benchmark_pr_359_who_splits_a_cache() -> None:
    """UCM 1217, llm-d-benchmark PR 359: a latent is replicated on TP ranks, KV heads are dealt out."""
    latent, heads = model("deepseek-v3").attention, model("qwen3-30b-a3b").attention
    assert [kv_shard_factor(latent, tp=tp) for tp in (1, 2, 8)] == [1, 1, 1]
    assert kv_shard_factor(latent, tp=8, dcp=8) == 8
    assert [kv_shard_factor(heads, tp=tp) for tp in (1, 2, 4, 8)] == [1, 2, 4, 4]


# --- laws ----------------------------------------------------------------------------------------------------------


@given(slug=st.sampled_from(["deepseek-v3", "gpt-oss-20b", "qwen3-8b"]), tokens=st.lists(st.integers(0, 10**7)))
def test_cache_of_an_array_is_that_of_its_elements_and_never_falls(slug: str, tokens: list[int]) -> None:
    spec, ordered = model(slug), sorted(tokens)
    together = np.asarray(kv_bytes(spec, np.array(ordered, dtype=float)))
    assert together.tolist() == [float(kv_bytes(spec, count)) for count in ordered]
    assert (np.diff(together) >= 0).all()


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.json")), ids=lambda path: path.stem)
def test_parts_sum_to_the_whole(path: Path) -> None:
    count = parameters(model(path.stem))
    assert count.total == count.replicated.total + count.routed.total
    assert count.active <= count.total <= count.total_with_mtp
    assert count.active_without_embedding_and_head < count.active_without_embedding <= count.active
