"""`moeplan groups`: from sizes or a launch command to groups and rows, what they cost, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typed


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str, str]:
    return typed.run(capsys, "groups", *words)


def shapes(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out)["shapes"]
    return found


def test_bounds_beside_the_exact_expectation(capsys: pytest.CaptureFixture[str]) -> None:
    """E = 256, K = 8, EP8: at one request per rank 8 groups at most and 7.2 expected, 32·(1 − (1 − 8/256)^8)."""
    (found,) = shapes(capsys, "deepseek-v3", "--ep", "8", "--batch", "1,64")
    assert found["article"]["groups"] == [8, 32]
    assert found["active"] == pytest.approx([32 * (1 - (1 - 8 / 256) ** tokens) for tokens in (8, 512)])
    assert found["rows_per_slot"] == pytest.approx([0.25, 16])
    assert found["held"] == "batch per rank"


def test_a_global_batch_leaves_m_and_shrinks_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    found = shapes(capsys, "deepseek-v3", "--ep", "8,32", "--batch", "2048", "--global-batch")
    assert [np.ravel(one["rows_per_slot"])[0] for one in found] == pytest.approx([64, 64])
    assert [np.ravel(one["active"])[0] for one in found] == pytest.approx([32, 8], rel=1e-3)


def test_popularity_by_law_and_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (even,) = shapes(capsys, "deepseek-v3", "--ep", "32", "--batch", "64")
    (zipf,) = shapes(capsys, "deepseek-v3", "--ep", "32", "--batch", "64", "--popularity", "zipf:0.8")
    assert np.ravel(zipf["imbalance"])[0] > 1.5 * np.ravel(even["imbalance"])[0]
    np.save(tmp_path / "even.npy", np.ones(256))
    np.savetxt(tmp_path / "even.csv", np.ones(256))
    for name in ("even.npy", "even.csv"):
        (same,) = shapes(capsys, "deepseek-v3", "--ep", "32", "--batch", "64", "--popularity", str(tmp_path / name))
        assert same["rows_p99"] == even["rows_p99"]


def test_a_launch_command_says_the_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 16 --dp-size 16 "
        "--enable-dp-attention --ep-size 16 --nnodes 2 --moe-a2a-backend deepep"
    )
    code, out, err = run(
        capsys, "deepseek-v3", "--launch", command, "--engine-version", "0.5.23", "--batch", "64", "--json"
    )
    assert code == 0, err
    content = json.loads(out)
    assert (content["launch"]["ep"], content["launch"]["dp"], content["launch"]["q_len"]) == (16, 16, 1)
    assert np.ravel(content["shapes"][0]["ep"])[0] == 16
    assert run(capsys, "deepseek-v3", "--launch", command, "--engine-version", "0.5.23")[0] == 0


def test_concurrency_of_a_server_is_shared_by_its_attention_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    """TP8 with two attention ranks: 64 requests are 32 of each, whose tokens meet in the experts of 8 GPUs."""
    command = "python3 -m sglang.launch_server --model-path x --tp-size 8 --dp-size 2 --enable-dp-attention --ep-size 8"
    words = ("deepseek-v3", "--launch", command, "--engine-version", "0.5.10.post1", "--concurrency", "64")
    (found,) = shapes(capsys, *words)
    assert np.ravel(found["tokens"])[0] == 64
    assert np.ravel(found["ep"])[0] == 8
    code, _, err = run(capsys, "deepseek-v3", "--ep", "8", "--concurrency", "64")
    assert code == 2
    assert "--concurrency" in err


def test_tiles_and_a_what_if_on_top_k(capsys: pytest.CaptureFixture[str]) -> None:
    """At 8 rows per expert a tile of 64 does 8 times the FLOP at the mean, less under the law, which has larger m."""
    words = ("deepseek-v3", "--ep", "32", "--batch", "8")
    code, out, _ = run(capsys, *words, "--gpu", "h20", "--json")
    rows = {row["tile"]: row for row in json.loads(out)["tiles"]}
    assert code == 0
    assert rows[64]["waste_at_mean"] == pytest.approx(64 / (8 / (1 - (1 - 8 / 256) ** 256)), rel=1e-3)
    assert rows[8]["waste"] < rows[16]["waste"] < rows[64]["waste"] < rows[128]["waste"]
    assert rows[64]["critical_tile"] == pytest.approx(37, abs=0.5)  # FP8 on H20 (batch article)
    assert [rows[tile]["pad_rows_cost_time"] for tile in (16, 64)] == [False, True]
    (six,) = shapes(capsys, *words, "--set", "model.top_k=4")
    (eight,) = shapes(capsys, *words)
    assert np.ravel(six["rows_per_slot"])[0] == pytest.approx(np.ravel(eight["rows_per_slot"])[0] / 2)
    code, out, _ = run(capsys, *words)
    assert "masked at BM 16 (in a CUDA graph)" in out


def test_what_they_cost_and_the_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "groups.html"
    code, out, _ = run(capsys, "deepseek-v3", "--ep", "8", "--gpu", "h200,b200", "--chart", str(chart))
    assert code == 0
    assert chart.stat().st_size > 100_000
    assert out.count("Holds:") == 1
    assert out.count("Does not hold:") == 2
    assert "shortest at EP8" in out
    code, out, _ = run(capsys, "qwen3-235b-a22b", "--ep", "8", "--gpu", "h200")
    assert code == 0
    assert "hold" not in out.lower().replace("held", "")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["llama-3.1-8b", "--ep", "8"], ["no experts"]),
        (["deepseek-v3"], ["--ep"]),
        (["deepseek-v3", "--ep", "0", "--batch", "x", "--q-len", "0"], ["--ep", "--batch", "--q-len"]),
        (["deepseek-v3", "--ep", "512"], ["ep"]),
        (["deepseek-v3", "--ep", "8", "--popularity", "zipff:1"], ["popularity", "zipf"]),
        (["deepseek-v3", "--ep", "8", "--popularity", "missing.npy"], ["--popularity", "missing.npy"]),
        (["deepseek-v3", "--ep", "8", "--capacity", "-1"], ["capacity"]),
        (["deepseek-v3", "--ep", "8", "--launch", "vllm serve x"], ["--ep", "--launch"]),
        (["deepseek-v3", "--ep", "8", "--chart", "x.html"], ["--chart", "--gpu"]),
        (["deepseek-v3", "--ep", "8", "--gpu", "h100,h200,b200"], ["--gpu"]),
    ],
)
def test_what_is_refused(words: list[str], named: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert all(word in err for word in named), err


@pytest.mark.parametrize(
    ("weights", "problem"),
    [([1.0] * 255, "255"), ([0.0] * 256, "zero"), ([1.0] * 255 + [-1.0], "negative"), ([float("nan")] * 256, "nan")],
)
def test_bad_weights(weights: list[float], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "bad.npy", np.array(weights))
    code, _, err = run(capsys, "deepseek-v3", "--ep", "8", "--popularity", str(tmp_path / "bad.npy"))
    assert code == 2
    assert problem in err.lower()


def test_a_server_that_runs_few_requests_needs_no_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """The usual batches end where the server does; one that was given beyond it is a fault that names the flag."""
    command = (
        "python3 -m sglang.launch_server --model-path x --tp-size 8 --dp-size 8 --enable-dp-attention --ep-size 8 "
        "--max-running-requests 48"
    )
    (found,) = shapes(capsys, "deepseek-v3", "--launch", command)
    assert found["batch"] == [1, 6]
    code, _, err = run(capsys, "deepseek-v3", "--launch", command, "--batch", "4,8,32")
    assert code == 2
    assert "is 8, 32 per rank, the server runs at most 6 — raise --max-running-requests" in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--engine", "sglang"], "--engine: says nothing without --launch"),
        (["--nic", "cx7"], "--nic: says nothing without --gpu"),
        (["--q-len", ""], "--q-len: is empty"),
        (["--redundant", "1e9"], "give a whole number from 0 to 10000"),
        (["--batch", "1..5000"], "5,000 points"),
        (["--batch", "1000000", "--q-len", "64"], "512,000,000 tokens in an EP group"),
        (["--batch", "64", "--draws", "1000000"], "--draws: draws 4,096,000,000 rows"),
        (["--capacity", "1e20"], "at most 1e+06"),
    ],
)
def test_what_says_nothing_or_takes_too_long(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "deepseek-v3", "--ep", "8", *words)
    assert code == 2
    assert named in err


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.ones((128, 2)), "has the shape (128, 2)"),
        (np.array(["1"] * 256), "not numbers"),
        (np.ones(256, dtype=complex), "not numbers"),
        (np.array([object()] * 256, dtype=object), "it is no array of numbers"),
    ],
)
def test_arrays_that_are_no_weights(
    array: Any, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "w.npy", array)
    code, _, err = run(capsys, "deepseek-v3", "--ep", "8", "--popularity", str(tmp_path / "w.npy"))
    assert code == 2
    assert problem in err


@pytest.mark.filterwarnings("error")
def test_an_empty_file_of_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.csv").write_text("\n")
    code, _, err = run(capsys, "deepseek-v3", "--ep", "8", "--popularity", str(tmp_path / "w.csv"))
    assert code == 2
    assert "it is empty" in err
