"""`moeplan balance`: from loads to a placement file and back, what is printed, and what is refused."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typed

LOADS = str(files("moeplan.data") / "observations" / "expert_load_dsv3_decode.csv")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str, str]:
    return typed.run(capsys, "balance", *words)


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return typed.document(capsys, "balance", *words)


def test_a_placement_for_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """61 rows: DeepSeek-V3's dense layers 0 to 2 in order, then the 58 of the loads."""
    out = tmp_path / "placement.json"
    words = (LOADS, "--ranks", "72", "--redundant", "32", "--model", "deepseek-v3", "--gpu", "h800", "--out", str(out))
    found = document(capsys, *words)
    assert np.mean(found["max_over_mean_before"]) == pytest.approx(2.51, abs=0.02)
    assert np.mean(found["max_over_mean"]) < 1.005
    assert found["layers"] == list(range(3, 61))
    assert found["expert_bytes"] == pytest.approx(44.05e6, rel=1e-3)  # 3 · 7168 · 2048 in FP8, its scales
    assert found["bytes"] == pytest.approx(sum(found["moves"]) * found["expert_bytes"])
    assert 0 < found["move_s"] < 1
    assert 0 < found["planning_s"] < 20
    whole = json.loads(out.read_text())["physical_to_logical_map"]
    assert np.shape(whole) == (61, 288)
    assert whole[3:] == found["physical_to_logical_map"]
    assert whole[0][:256] == list(range(256))
    again = document(capsys, *words[:7], "--from", str(out))
    assert sum(again["moves"]) == 0
    assert again["start"] == str(out)


def test_fewest_moves_from_the_placement_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.json"
    heat = np.random.default_rng(1).lognormal(0, 0.8, (3, 64))
    np.save(tmp_path / "now.npy", heat * np.random.default_rng(2).lognormal(0, 0.2, heat.shape))
    np.save(tmp_path / "then.npy", heat)
    sizes = ("--ranks", "16", "--redundant", "16")
    document(capsys, str(tmp_path / "then.npy"), *sizes, "--out", str(old))
    fresh = document(capsys, str(tmp_path / "now.npy"), *sizes, "--from", str(old))
    few = document(capsys, str(tmp_path / "now.npy"), *sizes, "--from", str(old), "--bound", "1.1")
    assert max(few["max_over_mean"]) <= 1.1 * (1 + 1e-9)
    assert sum(few["moves"]) < 0.5 * sum(fresh["moves"])
    code, out, _ = run(capsys, str(tmp_path / "now.npy"), *sizes, "--from", str(old), "--bound", "1.0001")
    assert code == 0
    assert "cannot be brought to 1.0001" in out


def test_the_table_the_worth_and_the_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "balance.html"
    rng = np.random.default_rng(0)
    np.save(tmp_path / "w.npy", rng.lognormal(0, 0.8, (1, 4, 64)) * rng.lognormal(0, 0.1, (6, 4, 64)))
    words = [str(tmp_path / "w.npy"), "--ranks", "16", "--redundant", "16", "--worth", "--chart", str(chart)]
    code, out, err = run(capsys, *words, "--window-seconds", "60", "--pause", "1")
    assert code == 0, err
    for part in ("mean of 4", "S0 = ", "worth having", "rearranging alone", "windows later", "Rebalancing every"):
        assert part in out
    assert "--init-expert-location" in out
    assert "vLLM loads no placement" in out
    assert chart.stat().st_size > 100_000
    walk = np.cumprod(rng.lognormal(0, 0.3, (6, 4, 64)), axis=0)
    np.save(tmp_path / "walk.npy", walk)
    sizes = ("--ranks", "16", "--redundant", "16", "--worth", "--window-seconds", "600", "--pause", "0.1")
    assert "Rebalancing every window (600 s) costs least: a step" in run(capsys, str(tmp_path / "walk.npy"), *sizes)[1]
    assert "the longest that the record shows" in run(capsys, *words, "--window-seconds", "1", "--pause", "60")[1]
    assert "How often to rebalance: say how long a window is" in run(capsys, *words)[1]
    found = document(capsys, *words[:-2])
    assert found["replica_curve"][0]["redundant"] == 0
    assert found["gains"][0]["batch"] is None
    assert len(found["drift"]["lags"]) == 6


def test_laws_and_groups(capsys: pytest.CaptureFixture[str]) -> None:
    law = ("--load", "zipf:0.8", "--model", "deepseek-v3", "--ranks", "32", "--redundant", "32")
    found = document(capsys, *law, "--nodes", "4", "--layers", "2")
    on_node = np.array(found["physical_to_logical_map"]).reshape(2, 4, -1) // 32
    assert all(len(np.unique(node)) == 2 for layer in on_node for node in layer)
    assert found["method"] == "groups of experts kept on 4 nodes"
    assert (np.array(found["replicas"]).sum(axis=1) == 288).all()
    fewest = document(capsys, "--load", "uniform", "--experts", "256", "--layers", "1", "--ranks", "72")
    assert fewest["redundant"] == 32


def test_published_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--published")
    assert code == 0
    assert "needs S0/S1 = 3.49" in out
    assert "digitised" in out
    found = document(capsys, "--published")
    assert len(found["published"]) == 18  # 17 rows, and one of them by the step model as well
    assert found["scenarios"][0]["gain"] == pytest.approx(1.1027, abs=1e-3)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], ["FILE or --load", "--ranks"]),
        (["x.npy", "--load", "uniform", "--ranks", "8"], ["given twice"]),
        (["x.npy", "--ranks", "8"], ["x.npy: cannot be read"]),
        (["--load", "uniform", "--ranks", "8"], ["--experts or --model"]),
        (["--load", "zip:1", "--experts", "8", "--ranks", "8"], ["did you mean zipf"]),
        ([LOADS, "--ranks", "72", "--redundant", "0"], ["give 32 redundant"]),
        ([LOADS, "--ranks", "72", "--nodes", "9", "--groups", "8"], ["8 groups do not divide over 9 nodes"]),
        ([LOADS, "--ranks", "72", "--model", "qwen3-235b-a22b"], ["has 128"]),
        ([LOADS, "--ranks", "72", "--model", "llama-3.1-8b"], ["has no experts"]),
        ([LOADS, "--ranks", "72", "--bound", "1.05", "--share", "2", "--gpu", "h800"], ["--bound", "--share", "--gpu"]),
        ([LOADS, "--ranks", "72", "--out", "x.yaml"], ["end it in .json"]),
        ([LOADS, "--ranks", "72", "--from", "none.json"], ["none.json: cannot be read"]),
        (["--published", "--ranks", "8"], ["--published"]),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], named: list[str]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    for part in named:
        assert part in err, err


ODD_CSV = {
    "twice.csv": ("layer,e0,e0\n0,1,2\n", "names an expert twice"),
    "gap.csv": ("layer,e0,e99999999999\n0,1,2\n", "lacks the column e1"),
    "number.csv": ("layer,e0,e1\n99999999999,1,2\n", "number the layers, up to 100000"),
    "square.csv": ("layer,e0,e1\n²,1,2\n", "is '²'"),
    "long.csv": (f"layer,e0,e1\n0,{'1' * 200_000},2\n", "cannot be read"),
}
ODD_JSON = {
    "text.json": ('[[1, "2"]]', "no array of numbers"),
    "truth.json": ("[[true, false]]", "no array of numbers"),
    "letters.json": ('{"0": "12"}', "no array of numbers"),
    "names.json": ('{"a": {"b": 1}}', "has the layer 'a'"),
    "gap.json": ('{"3": {"0": 1, "2": 1}}', "has the expert '2'"),
    "huge.json": (f"[[{'9' * 400}, 1]]", "no array of numbers"),
    "large.json": ("[[1e308, 1e308]]", "from 0 to 1e30"),
    "deep.json": ("[" * 3000 + "]" * 3000, "cannot be read"),
}


@pytest.mark.parametrize(("name", "content"), [(name, one) for name, one in (ODD_CSV | ODD_JSON).items()])
def test_an_odd_file_is_refused_in_one_error(
    name: str, content: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content[0], encoding="utf-8")
    code, out, err = run(capsys, str(tmp_path / name), "--ranks", "2")
    assert (code, out) == (2, "")
    assert "1 fault" in err
    assert content[1] in err


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"hello"])
def test_a_broken_npy_is_refused(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NumPy raises EOFError for an empty one, which click would take for an interrupt."""
    (tmp_path / "loads.npy").write_bytes(content)
    code, _, err = run(capsys, str(tmp_path / "loads.npy"), "--ranks", "2")
    assert code == 2
    assert "loads.npy: " in err


def test_a_csv_of_another_encoding_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loads.csv").write_bytes(b"\xff\xfe\x00\x01")
    code, _, err = run(capsys, str(tmp_path / "loads.csv"), "--ranks", "2")
    assert code == 2
    assert "cannot be read" in err


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ("[[0, 1, 2, 99]]", "no expert 99 among 4"),
        ("[[0, 0, 1, 2]]", "expert 3 has no slot"),
        ("[[0, 1, 2, 2.5]]", "float64, no whole numbers"),
        ('"abc"', "no whole numbers"),
        ("[[0, 1], [2]]", "no table of whole numbers"),
    ],
)
def test_a_wrong_placement_at_hand_is_named_with_its_file(
    rows: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.json").write_text(f'{{"physical_to_logical_map": {rows}}}')
    law = ("--load", "uniform", "--experts", "4", "--layers", "1", "--ranks", "2")
    code, _, err = run(capsys, *law, "--from", str(tmp_path / "old.json"))
    assert code == 2
    assert "old.json" in err
    assert named in err


def test_more_copies_than_ranks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    law = ("--load", "uniform", "--experts", "8", "--layers", "1", "--ranks", "4", "--redundant")
    code, _, err = run(capsys, *law, "1000")
    assert code == 2
    assert "give at most 24: every rank then holds every expert" in err
    assert document(capsys, *law, "24")["max_over_mean"] == [pytest.approx(1.0)]


def test_another_number_of_slots_than_the_placement_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.json"
    law = ("--load", "lognormal:1", "--experts", "64", "--layers", "2", "--ranks", "16")
    document(capsys, *law, "--redundant", "16", "--out", str(old))
    code, _, err = run(capsys, *law, "--redundant", "32", "--from", str(old))
    assert code == 2
    assert "give --redundant 16" in err


def test_published_names_every_option_that_it_would_pass_over(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--published", "--redundant", "3", "--model", "deepseek-v3", "--out", "x.json", "--worth")
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "drop --redundant, --model, --out, --worth" in err


def test_edits_of_what_was_not_named_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    law = ("--load", "uniform", "--experts", "64", "--layers", "1", "--ranks", "4")
    code, _, err = run(capsys, *law, "--set", "cluster.leaf_nodes=2", "--set", "model.top_k=3")
    assert code == 2
    assert "--set cluster.leaf_nodes=2: says nothing without --gpu" in err
    assert "--set model.top_k=3: says nothing without --model" in err
