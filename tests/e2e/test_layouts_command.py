"""`moeplan layouts`: tables, crossings, JSON, charts, what is refused with its reason, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typed

from moeplan.cli import main

ASKED = ("deepseek-v3", "--gpu", "h200", "--gpus", "8", "--context", "2k")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str, str]:
    return typed.run(capsys, "layouts", *words)


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return typed.document(capsys, "layouts", *words)


def test_the_table_says_where_the_lines_cross(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *ASKED, "--requests", "1,64,1024")
    assert code == 0
    assert "8 GPUs, context 2,000" in out
    assert "By heads (tep) is fastest up to" in out
    assert "undecided from" in out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["1"], ["64"], ["1,024"])]
    assert [row[6] for row in rows] == ["tp", "tep", "dep"]
    assert rows[2][4:6] == ["-", "-"]  # by heads does not fit


def test_the_document_agrees_with_predict(capsys: pytest.CaptureFixture[str]) -> None:
    (panel,) = document(capsys, *ASKED, "--requests", "64")["panels"]
    points = {layout["layout"]: layout["points"][0] for layout in panel["layouts"]}
    assert set(points) == {"dep", "dep-ag", "dtp-ag", "tep", "tp"}
    for layout, point in points.items():
        batch = "64" if layout in ("tep", "tp") else "8"
        words = ["--gpus", "8", "--context", "2k", "--layout", layout, "--batch", batch]
        with pytest.raises(SystemExit):
            main(["predict", "deepseek-v3", "--gpu", "h200", *words, "--schedule", point["schedule"], "--json"])
        metrics = json.loads(capsys.readouterr().out)["metrics"]
        assert point["step_s"] == pytest.approx(metrics["step_s"])
        assert point["tok_s_per_gpu"] == pytest.approx(metrics["tok_s_per_gpu"])
        assert point["step_s_p10_p90"] == pytest.approx(metrics["step_s_p10_p90"])
    crossing = panel["crossing"]
    assert crossing["upto"] < crossing["start"]
    assert crossing["undecided"][0] <= crossing["upto"] <= crossing["undecided"][1]


def test_several_sizes_and_contexts_and_a_routers_group_limit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("deepseek-v3", "--gpu", "h200", "--gpus", "8,12,16", "--context", "2k,64k", "--requests", "16")
    found = document(capsys, *words)
    assert [(panel["gpus"], panel["context"]) for panel in found["panels"]] == [
        (8, 2000),
        (8, 64000),
        (16, 2000),
        (16, 64000),
    ]
    assert [item["gpus"] for item in found["refused_sizes"]] == [12]
    (effect,) = found["group_limit"]
    assert (effect["gpus"], effect["nodes"]) == (16, 2)
    assert effect["limited"]["nodes"] < effect["free"]["nodes"]
    _, out, _ = run(capsys, *words)
    assert "Not 12 GPUs: fills no whole nodes of 8 GPUs" in out
    assert "Node-limited routing, 16 GPUs on 2 nodes: 4 of 8 groups" in out


def test_a_size_that_no_limit_can_be_compared_at_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("deepseek-v3", "--gpu", "gb200", "--gpus", "96", "--context", "2k", "--requests", "96", "--layout", "dep")
    found = document(capsys, *words, "--max-batch", "8")
    assert not found["group_limit"]
    (unanswered,) = found["group_limit_unanswered"]
    assert unanswered["gpus"] == 96
    assert "no whole scale-up domains of 72" in unanswered["why"]
    _, out, _ = run(capsys, *words, "--max-batch", "8")
    assert "Node-limited routing, 96 GPUs: not compared: gpus: 96 fill no whole scale-up domains" in out
    assert "Not 96 GPUs" not in out


def test_tokens_go_by_the_all_to_all_that_predict_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """Low-latency DeepEP runs on no AMD GPU: the usual one of the cluster is taken."""
    words = ("--gpu", "mi300x", "--nic", "pollara-400", "--gpus", "16", "--context", "4k")
    (panel,) = document(capsys, "deepseek-v3", *words, "--layout", "dep", "--requests", "512")["panels"]
    (point,) = panel["layouts"][0]["points"]
    with pytest.raises(SystemExit):
        main(["predict", "deepseek-v3", *words, "--batch", "32", "--schedule", point["schedule"], "--json"])
    step = json.loads(capsys.readouterr().out)
    assert step["deployment"]["exchange"] == "mori-low-latency"
    assert point["step_s"] == pytest.approx(step["metrics"]["step_s"])


def test_what_a_model_refuses_is_listed_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "deepseek-v3", "--gpu", "h200", "--gpus", "32", "--context", "2k", "--requests", "32")
    assert {item["layout"] for item in found["panels"][0]["refused"]} == {"dtp-ag", "tp"}
    _, out, _ = run(capsys, "llama-3.1-8b", "--gpu", "h100", "--gpus", "1,8", "--context", "2k", "--requests", "8")
    assert "Not tep: Llama-3.1-8B has no experts to place." in out
    assert "Not tp: one GPU: the same as dep." in out
    assert "Node-limited" not in out


def test_nothing_fits_is_exit_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "deepseek-v3", "--gpu", "h100", "--gpus", "8", "--context", "2k")
    assert code == 1
    assert "no layout fits" in out


def test_attention_ranks_of_several_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--layout", "dep,tep", "--tp", "1,2", "--requests", "32")
    (panel,) = document(capsys, "qwen3-30b-a3b", "--gpu", "h100", "--gpus", "8", "--context", "4k", *words)["panels"]
    assert [layout["layout"] for layout in panel["layouts"]] == ["dep", "dep tp2", "tep"]
    assert [layout["points"][0]["batch"] for layout in panel["layouts"]] == [4, 8, 32]


def test_the_chart_is_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "layouts.html"
    code, _, _ = run(capsys, *ASKED, "--requests", "8", "--layout", "dep,tep", "--chart", str(page))
    assert code == 0
    text = page.read_text(encoding="utf-8")
    assert "Decode step by layout" in text
    assert "Throughput against speed, by layout" in text


def test_every_bad_option_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpu", "h99", "--gpus", "x", "--context", "4z,-1", "--requests", "0", "--layout", "foo", "--mtp", "1.5")
    code, out, err = run(capsys, "deepseek-v3", *words)
    assert (code, out) == (2, "")
    for named in ("h99", "--gpus: is 'x'", "'4z'", "-1", "--requests: is 0", "unknown 'foo'", "--mtp: is 1.5"):
        assert named in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("deepseek-v3",), ("--gpus: is missing", "--context: is missing", "--gpu: is missing")),
        (("deepseek-v3", "--gpu", "h200", "--gpus", "12", "--context", "2k"), ("--gpus: 12", "whole nodes of 8")),
        (("deepseek-v3", "--gpu", "h200", "--gpus", "8", "--context", "2k,9M"), ("--context: is 9,000,000",)),
        (("qwen3-30b-a3b", "--gpu", "h100", "--gpus", "8", "--context", "2k", "--mtp", "1"), ("--mtp", "no multi")),
        ((*ASKED, "--experts", "nvfp4"), ("lacks",)),
        ((*ASKED, "--chart", "x.pdf"), ("x.pdf",)),
        (("deepseek-v3", "--gpu", "h200", "--gpus", "8..800", "--context", "2k"), ("span", "narrow")),
        (("deepseek-v3", "--gpu", "h200,h20", "--gpus", "8", "--context", "2k"), ("names several",)),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, ""), out
    for part in named:
        assert part in err
