"""moeplan budget as a user runs it: the tables, JSON, chart, exit codes, and every fault at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typed

from moeplan.cli import _COMMANDS

ASKED = "budget deepseek-v3 --gpu h800 --nic cx7 --ep {ep} --context 5k --min-tps 20"


@pytest.fixture(autouse=True)
def _listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_COMMANDS, "budget", "Show what binds over the batch.")


def run(capsys: pytest.CaptureFixture[str], text: str, *more: str) -> tuple[Any, str, str]:
    return typed.run(capsys, *text.split(), *more)


def document(capsys: pytest.CaptureFixture[str], text: str, *more: str) -> dict[str, Any]:
    return typed.document(capsys, *text.split(), *more, codes=(0, 1))


def test_the_tables_say_what_binds(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, ASKED.format(ep=128))
    assert (code, err) == (0, "")
    found = document(capsys, ASKED.format(ep=128))
    assert found["binds"] == "B*"
    best = found["best_by_model"]
    assert "NOT the best batch" in out
    assert f"batch {found['operating_point']['batch']} per GPU" in out
    assert f"batch {best['batch']} per GPU" in out
    assert re.search(r"B\* +42 +1.00× +binds", out)
    for change in ("EP256", "KV fp8", "one MTP draft more", "10 % more memory"):
        assert change in out
    assert "Without CUDA graphs" in out
    assert "assumed" in out
    assert all(len(line) <= 160 for line in out.splitlines())


def test_the_document_holds_every_batch_asked(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, ASKED.format(ep=32), "--batches", "1,8,64..66")
    assert found["schema"] == "moeplan.budget/1"
    chains = found["chains"]
    assert chains["batch"] == [1, 8, 64, 65, 66]
    assert {len(column) for column in chains.values()} == {5}
    assert found["limits"]["B_SLA"] == found["best_by_model"]["batch"] == 78
    assert found["binds"] == "B_SLA"
    assert chains["hiding_gains_at_most"][2] == pytest.approx(1 / (1 - chains["wire_share"][2]))
    assert chains["coverage"][0] == pytest.approx(1 - (1 - 8 / 256) ** 32)
    few = document(capsys, ASKED.format(ep=32), "--batches", "4")  # what is shown does not move the limits
    assert (few["limits"], few["moves"]) == (found["limits"], found["moves"])


def test_nothing_feasible_is_exit_1_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, ASKED.format(ep=8))
    assert code == 1
    assert "No operating point: B_max_mem" in out
    assert "does not fit" in err
    code, _, err = run(capsys, ASKED.format(ep=32).replace("--min-tps 20", "--min-tps 500 --batches 1"))
    assert code == 1
    assert "nothing keeps 500 tok/s" in err


def test_a_dense_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "budget llama-3.1-8b --gpu h100 --ep 1 --context 4k --min-tps 20")
    assert found["chains"]["rows"][0] is None
    reasons = {move["change"]: move["reason"] for move in found["moves"]}
    assert "ships no multi-token-prediction module" in reasons["one MTP draft more"]


def test_the_chart_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "chains.html"
    code, _, _ = run(capsys, ASKED.format(ep=32), "--batches", "1,8,64", "--chart", str(path))
    assert code == 0
    assert "What binds over the batch" in path.read_text(encoding="utf-8")


def test_everything_missing_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "budget")
    assert (code, out) == (2, "")
    for name in ("MODEL", "--gpu", "--ep", "--context", "--min-tps"):
        assert f"{name}: is missing" in err


def test_everything_wrong_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "budget nope --gpu hx --ep 0 --context -1 --min-tps x --batches 0 --mtp 99 --acceptance 2 --redundant 1.5"
    code, out, err = run(capsys, wrong)
    assert (code, out) == (2, "")
    named = ("'nope'", "'hx'", "--ep", "--context", "--min-tps", "--batches", "--mtp", "acceptance", "--redundant")
    for name in named:
        assert name in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("--kv fp9", "--kv"),
        ("--context 999999", "at most 163840 tokens"),
        ("--batches 3 --schedule two-batch", "--batches"),
        ("--batches 1..70000", "--batches"),
        ("--mtp 2 --acceptance 0.9,0.8 --batches 3..1", "--batches"),
        ("--ep 20000", "--ep"),
        ("--chart x.pdf", "x.pdf"),
        ("--kernels table", "no source answers"),
        ("--article", "contradicts --article"),
        ("--set gpu.memory.bandwith=1TB/s", "bandwith"),
        ("--min-tps 0", "--min-tps"),
        ("--redundant 0 --ep 512", "redundant"),
    ],
)
def test_one_clear_error(capsys: pytest.CaptureFixture[str], more: str, named: str) -> None:
    code, out, err = run(capsys, f"{ASKED.format(ep=32)} {more}")
    assert (code, out) == (2, ""), err
    assert named in err
    assert "Traceback" not in err


def test_a_cluster_of_fixed_size_has_no_more_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    text = "budget deepseek-v3 --cluster gb200-nvl72 --ep {} --context 5k --min-tps 20"
    code, _, err = run(capsys, text.format(144))
    assert code == 2
    assert "the cluster has 72 GPUs" in err
    code, out, _ = run(capsys, text.format(72))
    assert code == 0
    assert "Not asked: EP144: the cluster has 72 GPUs" in out


def test_the_article_on_its_own_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "budget --article")
    assert code == 0
    for said in (
        "of the sampled batches 64 meets it (22.6 ms) and 128 does not (30.9 ms)",
        "«10 ms needs 16 cards and MTP» is false: 8 cards without drafts keep it up to batch 8",
        "3.1 times the floor",
        "may not be split by subtraction",
        "Not used: 3.64 tokens per step on random tokens",
        "not modelled by this version",
    ):
        assert said in " ".join(out.split())
    assert out.count("Put right") == 3
    found = document(capsys, "budget --article")
    assert found["host_s_per_operator"] == pytest.approx(0.1435 / 1024)
    for figure in found["figures"]:
        if figure["published"] != 2.54:  # the article's own formula gives 2.10
            assert figure["computed"] == pytest.approx(figure["published"], rel=0.035)


def test_tokens_travel_by_what_the_cluster_has(capsys: pytest.CaptureFixture[str]) -> None:
    """On EFA, UCCL across nodes as in `predict`: one request a GPU runs at the same speed in both."""
    asked = ASKED.format(ep=32).replace("h800 --nic cx7", "h200 --nic efa-p5en")
    found = document(capsys, asked, "--batches", "1")
    step = document(
        capsys, "predict deepseek-v3 --gpu h200 --nic efa-p5en --ep 32 --context 5k --batch 1 --schedule naive"
    )
    assert step["deployment"]["exchange"] == "uccl-low-latency"
    assert found["fastest_tok_s_per_user"] == pytest.approx(step["metrics"]["tok_s_per_user"], rel=1e-9)
