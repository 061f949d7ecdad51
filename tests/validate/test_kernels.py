"""Scores of kernel predictions: against a file, against the packaged tables with each row left out."""

import json
from pathlib import Path

import pytest

from moeplan.cli import main
from moeplan.errors import InputError
from moeplan.kernels.sources import read_sources
from moeplan.specs.catalog import Catalog
from moeplan.validate.kernels import score_file, score_tables
from moeplan.validate.score import score

CATALOG = Catalog.standard()
# Median and p90 of the errors with each row of the packaged tables left out, as of this release, rounded up: a form or
# an interpolation that gets worse by half a point fails.
BASELINE = {
    "h20, gemm_batched_bf16": (0.077, 0.190),
    "h20, gemm_fp8": (0.008, 0.034),
    "h20, gqa_decode_bf16": (0.019, 0.200),
    "h20, gqa_decode_fp8": (0.011, 0.030),
    "h20, grouped_gemm_contiguous_fp8": (0.023, 0.154),
    "h20, grouped_gemm_fp8": (0.002, 0.021),
    "h20, mla_decode_bf16": (0.028, 0.083),
    "h800, gemm_batched_bf16": (0.025, 0.132),
    "h800, gemm_fp8": (0.050, 0.104),
    "h800, gqa_decode_bf16": (0.012, 0.159),
    "h800, grouped_gemm_contiguous_fp8": (0.029, 0.048),
    "h800, grouped_gemm_fp8": (0.013, 0.089),
    "h800, mla_decode_bf16": (0.027, 0.069),
}


def test_no_interpolation_got_worse() -> None:
    found = score_tables(CATALOG)
    scores = {item.family: item for item in found.scores}
    assert set(scores) == set(BASELINE)
    worse = {
        family: (round(scores[family].median, 4), round(scores[family].p90, 4))
        for family, (median, p90) in BASELINE.items()
        if scores[family].median > median + 0.005 or scores[family].p90 > p90 + 0.005
    }
    assert worse == {}
    assert found.skipped == {"alone in its shape": 2}


def test_a_score_by_hand() -> None:
    (one,) = score({"x": [0.1, -0.2, 0.3, -0.4, 0.0]})
    assert (one.n, one.median, one.mean, one.bias) == pytest.approx((5, 0.2, 0.2, 0.0))
    assert one.p90 == pytest.approx(0.36)  # between 0.3 and 0.4, at 0.9 · 4 = 3.6
    assert score({"none": []}) == []


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


GEMM = "gpu,software,precision,layout,m,n,k,latency_us,trust\n"


def test_a_file_of_dense_products(tmp_path: Path) -> None:
    """The first row is DeepGEMM's published one (46.6 µs for o_proj on 128 rows), the others cannot be scored."""
    path = write(
        tmp_path / "gemm.csv",
        GEMM
        + "H800,x,fp8_e4m3,NT,128,7168,16384,46.6,high\n"
        + "H800,x,fp8_e4m3,NT,128,7168,16384,93.2,low\n"
        + "H800,x,fp4,NT,128,7168,16384,46.6,high\n"
        + "H800,x,fp8_e4m3,NT,128,7168,16384,,high\n"
        + "Z9000,x,fp8_e4m3,NT,128,7168,16384,46.6,high\n"
        + "H800,x,fp8_e4m3,NT,128,7168,16384,1.0,high\n"
        + "H800,x,bf16,batched b=128,128,512,128,11,high\n",
    )
    scores = score_file(CATALOG, path, trust="high", least_seconds=5e-6)
    dense, batched = sorted(scores.scores, key=lambda item: item.family, reverse=True)
    assert (dense.family, dense.n) == ("H800, dense gemm fp8", 1)
    assert dense.median < 0.002
    assert batched.family == "H800, batched gemm bf16"
    assert batched.median == pytest.approx(14.4 / 11 - 1, abs=0.01)  # the table was warm, a step is cold
    assert scores.skipped == {
        "trust is not high": 1,
        "precision fp4": 1,
        "no latency given": 1,
        "GPU 'Z9000' is not in the catalog": 1,
        "shorter than 5 µs": 1,
    }


def test_files_of_the_other_kinds(tmp_path: Path) -> None:
    grouped = write(
        tmp_path / "grouped.csv",
        "gpu,precision,layout,num_groups,m_per_group,n,k,op,latency_us\n"
        "H800,fp8_e4m3,masked,2,512,4096,7168,gate_up,58\nH800,fp8,fused MoE,2,512,4096,7168,,58\n",
    )
    scores = score_file(CATALOG, grouped)
    assert scores.scores[0].median < 0.01
    assert scores.skipped == {"grouped layout fused MoE": 1}
    attention = write(
        tmp_path / "attention.csv",
        "gpu,op,kv_dtype,batch,heads_q,heads_kv,head_dim_qk,s_q,s_kv,latency_us\n"
        "H800,dense MLA decode,bf16,64,128,1,576,2,5000,328\n"
        "H800,sparse MLA decode: top 2048,bf16,1,128,1,576,1,4096,1000\n"
        "H800,GQA prefill (non-causal),bf16,1,32,8,128,4096,4096,1000\n"
        "H800,elementwise,bf16,1,128,1,576,4096,4096,1000\n",
    )
    scores = score_file(CATALOG, attention)
    assert scores.scores[0].median < 0.01
    assert scores.skipped == {"sparse MLA decode": 1, "prefill that is not causal": 1, "elementwise": 1}
    wire = write(
        tmp_path / "wire.csv",
        "library,version,gpu,nic,op,mode,ep_ranks,tokens_per_rank,hidden,topk,precision,latency_us\n"
        "DeepEP,V1,H800,CX7,combine,low_latency,128,128,7168,8,bf16,369\n"
        "DeepEP,V1,Z9000,CX7,combine,normal,16,128,7168,8,bf16,369\n",
    )
    scores = score_file(CATALOG, wire)
    assert scores.scores[0].bias == pytest.approx(0.0, abs=1e-9)  # a packaged row
    assert scores.skipped == {"GPU 'z9000' is not in the catalog": 1}
    alone = score_file(CATALOG, wire, sources=read_sources("fitted,assumed"))
    assert abs(alone.scores[0].bias) < 0.08


def test_a_file_of_no_known_kind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="of no known collection"):
        score_file(CATALOG, write(tmp_path / "x.csv", "a,b\n1,2\n"))
    with pytest.raises(InputError, match="cannot be read"):
        score_file(CATALOG, tmp_path / "absent.csv")


def test_the_command_prints_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "gemm.csv", GEMM + "H800,x,fp8_e4m3,NT,128,7168,16384,46.6,high\n")
    with pytest.raises(SystemExit) as done:
        main(["validate", "kernels", str(path), "--json"])
    assert done.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "moeplan.validate-kernels/1"
    family = document["families"]["H800, dense gemm fp8"]
    assert set(family) == {"family", "n", "median", "mean", "p90", "bias"}
    assert family["n"] == 1
