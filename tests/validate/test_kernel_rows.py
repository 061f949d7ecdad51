"""Rows of public collections as the shapes that forms read, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.origin import Origin
from moeplan.specs.catalog import Catalog
from moeplan.validate.dealt_rows import dealt
from moeplan.validate.kernel_rows import COLUMNS, Kind, Predicted, RowReader, kind_of

CATALOG = Catalog.standard()
FP8, BF16 = {"weights": "fp8_block"}, {"core": "bf16", "cache": "bf16"}


def predict(kind: Kind, **row: str) -> Predicted:
    return RowReader(CATALOG, kind).predict(dict.fromkeys(COLUMNS[kind], "") | row)


def timed(gpu: str, form: str, formats: dict[str, str], **asked: Any) -> float:
    """A benchmark's time of a shape: the library's, with what fits left in the last cache."""
    library = replace(KernelLibrary.of(CATALOG.gpu(gpu), CATALOG), cold=False)
    engine, facts = asked.pop("engine", ""), asked.pop("facts", None)
    found = library.timed(form, formats, asked, engine=engine, facts=facts)
    assert found is not None
    return float(found.seconds)


@pytest.mark.parametrize(
    ("m", "tile", "chance", "mean", "whole"),
    [
        (1, 64, 0.5, 1.0, 64.0),  # u below 1 leaves none
        (10, 64, 1.0, 9.5, 64.0),  # 7 to 12, each as likely
        (10, 4, 1.0, 9.5, (8 + 8 + 12 * 4) / 6),  # 7, 8 -> 8; 9 to 12 -> 12
        (100, 64, 1.0, 99.5, 128 + 64 / 60),  # 70 to 129, the last alone in a third tile
        (0.5, 64, 0.0, 0.0, 0.0),  # 0.65 of a row at most
        (2, 128, 1.0, 4 / 3, 128.0),  # 1 below u = 1, 2 from there to 1.3
    ],
)
def test_rows_dealt_to_a_group_of_m(m: float, tile: int, chance: float, mean: float, whole: float) -> None:
    if m == 2:
        mean = (0.3 * 1 + 0.3 * 2) / 0.6
    assert dealt(m, tile) == pytest.approx((chance, mean, whole), rel=1e-3)


def grouped(**row: str) -> Predicted:
    given = {"gpu": "H20", "precision": "fp8", "layout": "masked", "num_groups": "8", "n": "4096", "k": "7168"}
    return predict("grouped gemm", **given | row)


def test_a_masked_row_of_infersim_has_idle_groups() -> None:
    """m = 1: half of the eight groups get one row, half none; each row fills one tile of 64."""
    found = grouped(m_per_group="1", software="InferSim")
    shape = {"groups": 4.0, "m": 1.0, "idle": 4.0, "blocks": 4.0, "n": 4096.0, "k": 7168.0}
    assert found.seconds == pytest.approx(timed("h20", "grouped_gemm", FP8, **shape), rel=1e-3)
    assert found.family == "grouped gemm masked fp8"
    as_printed = grouped(m_per_group="1", software="DeepGEMM README")
    assert as_printed.seconds == pytest.approx(
        timed("h20", "grouped_gemm", FP8, groups=8.0, m=1.0, n=4096.0, k=7168.0), rel=1e-12
    )
    assert found.seconds < 0.8 * as_printed.seconds  # half of the weights


def test_a_masked_row_of_infersim_of_many_rows_is_a_few_tiles_more() -> None:
    """m = 100: 99.5 rows in 128 + 64/60 rows of tiles, so 2.017 tiles of 64 each."""
    found = grouped(m_per_group="100", software="InferSim")
    shape = {"groups": 8.0, "m": 99.5, "idle": 0.0, "blocks": 8 * (128 + 64 / 60) / 64, "n": 4096.0, "k": 7168.0}
    assert found.seconds == pytest.approx(timed("h20", "grouped_gemm", FP8, **shape), rel=1e-3)


def test_a_contiguous_row_counts_the_rows_of_whole_tiles() -> None:
    found = grouped(m_per_group="1", software="InferSim", layout="contiguous")
    shape = {"groups": 4.0, "m": 128.0, "n": 4096.0, "k": 7168.0, "engine": "deepgemm-contiguous"}
    assert found.seconds == pytest.approx(timed("h20", "grouped_gemm", FP8, **shape), rel=1e-3)
    assert found.family == "grouped gemm contiguous fp8"
    plain = grouped(m_per_group="512", layout="contiguous")
    shape |= {"groups": 8.0, "m": 512.0}
    assert plain.seconds == pytest.approx(timed("h20", "grouped_gemm", FP8, **shape), rel=1e-12)


@pytest.mark.parametrize(
    ("gpu", "precision", "weights", "software", "engine"),
    [
        ("H200", "fp8_e4m3", "fp8_block", "TensorRT-LLM 1.0, CUTLASS", "trtllm-cutlass"),
        ("B200", "NVFP4", "nvfp4", "FlashInfer TRTLLM-Gen", "vllm-trtllm-gen"),
    ],
)
def test_a_fused_layer_of_deepseek_r1(gpu: str, precision: str, weights: str, software: str, engine: str) -> None:
    """64 tokens to 8 of 256 experts each: 512 rows; an expert is missed by all with (1 - 8/256)^64 = 0.1311."""
    config = "DeepSeek-R1 MoE, TP8, num_tokens=64"
    given = {"gpu": gpu, "precision": precision, "layout": "fused MoE module", "software": software}
    found = predict("grouped gemm", **given, config=config)
    shape = {
        "tokens": 64.0, "hidden": 7168.0, "inter": 2048.0, "top_k": 8.0, "experts": 256.0, "tp": 8.0, "ep": 1.0,
        "gated": 2.0, "rows": 512.0, "active": 256 * (1 - 0.1311),
    }  # fmt: skip
    assert found.seconds == pytest.approx(
        timed(gpu.lower(), "moe", {"weights": weights}, engine=engine, **shape), rel=1e-4
    )
    assert found.family == f"fused MoE {weights}"
    # by hand: an eighth of the active experts' three matrices, at no more than the bandwidth
    size = {"fp8_block": 1.0, "nvfp4": 0.5625}[weights]
    least = 3 * 7168 * 2048 / 8 * size * 222.4 / CATALOG.gpu(gpu).memory.bandwidth
    assert least < found.seconds < 4 * least


@pytest.mark.parametrize(
    ("config", "software", "problem"),
    [
        ("DeepSeek-R1 MoE, TP8, num_tokens=64", "Triton", "fused MoE of Triton"),
        ("Mixtral, TP8", "CUTLASS", "of an unstated shape"),
        ("", "", "an unknown engine"),
    ],
)
def test_a_fused_layer_of_unknown_make_is_not_modelled(config: str, software: str, problem: str) -> None:
    row = {"gpu": "H200", "precision": "fp8", "layout": "fused MoE module", "software": software, "config": config}
    with pytest.raises(match=problem):
        predict("grouped gemm", **row)


def attention(**row: str) -> Predicted:
    given = {"kv_dtype": "bf16", "batch": "1", "heads_q": "32", "heads_kv": "8", "head_dim_qk": "128", "s_q": "1"}
    return predict("attention", **given | row)


def test_prefill_of_grouped_queries() -> None:
    found = attention(gpu="H20", op="GQA prefill (causal)", s_q="4096", s_kv="4096")
    shape = {"batch": 1.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "q_len": 4096.0, "context": 4096.0}
    assert found.seconds == pytest.approx(timed("h20", "gqa_prefill", BF16, **shape), rel=1e-12)
    assert found.family == "GQA prefill"
    # by hand: keys and values, 2 FLOP each, half of the square, at 148 TFLOP/s
    least = 2 * 2 * 32 * 128 * 4096 * 4096 / 2 / 148e12
    assert least < found.seconds < 1.5 * least


def test_prefill_of_latent_attention_is_absorbed_or_expanded() -> None:
    """With the cache absorbed a head works on 576 + 512 columns, expanded on 192 + 128."""
    row = {"heads_q": "128", "heads_kv": "1", "head_dim_qk": "576", "s_q": "4096", "s_kv": "4096"}
    absorbed = attention(gpu="H200", op="MLA prefill", **row)
    expanded = attention(gpu="H200", op="MLA prefill, MHA form", **row)
    shape = {"batch": 1.0, "heads": 128.0, "q_len": 4096.0, "context": 4096.0}
    assert absorbed.seconds == pytest.approx(timed("h200", "mla_prefill", BF16, **shape), rel=1e-12)
    assert expanded.seconds == pytest.approx(timed("h200", "mla_prefill", BF16, engine="trtllm", **shape), rel=1e-12)
    assert absorbed.family == expanded.family == "MLA prefill"
    for found, columns in ((absorbed, 576 + 512), (expanded, 192 + 128)):
        least = 2 * 128 * columns * 4096 * 4096 / 2 / CATALOG.gpu("h200").compute["bf16"]
        assert least < found.seconds < 2.5 * least


def test_decode_of_infersim_is_flashinfers() -> None:
    row = {"gpu": "H800", "op": "GQA decode", "batch": "64", "s_kv": "4096"}
    theirs, today = attention(**row, software="InferSim"), attention(**row)
    assert (theirs.origin <= Origin.EXTRAPOLATED, today.origin) == (True, Origin.FITTED)
    assert "FlashAttention" in today.source


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"op": "GQA prefill, non-causal"}, "prefill that is not causal"),
        ({"op": "GQA prefill", "head_dim_v": "64"}, "keys and values of different widths"),
        ({"op": "sparse MLA prefill"}, "sparse MLA prefill"),
        ({"op": "RoPE"}, "RoPE"),
        ({"op": "GQA decode", "heads_kv": ""}, "no heads_kv given"),
        ({"op": "GQA decode", "batch": "0"}, "batch is 0"),
    ],
)
def test_what_is_not_modelled_says_why(row: dict[str, str], problem: str) -> None:
    with pytest.raises(match=problem):
        attention(**{"gpu": "H20", "s_kv": "4096"} | row)


def test_a_batched_row_of_the_old_tables_is_theirs() -> None:
    row = {"precision": "bf16", "layout": "batched b=128", "m": "128", "n": "512", "k": "128"}
    old, new = (predict("gemm", gpu=gpu, **row) for gpu in ("H800", "H200"))
    assert "cuBLAS batched bf16 on H800" in old.source
    assert "SGLang" in new.source


def test_collections_are_told_by_their_columns() -> None:
    for kind, columns in COLUMNS.items():
        assert kind_of(["id", *columns]) == kind
    assert kind_of(["m", "n", "k"]) is None
