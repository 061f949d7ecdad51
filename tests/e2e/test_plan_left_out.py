"""What a plan was asked for and does not try is refused or named, never passed over in silence."""

from __future__ import annotations

import pytest
import typed

PLAN = "plan deepseek-v3 --gpu h200 --nic cx7 --gpus 16 --context 2k --min-tps 20 --max-batch 64 --kv bf16 --mtp 0"


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[object, str, str]:
    code, out, err = typed.run(capsys, *line.split())
    return code, " ".join(out.split()), " ".join(err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--layout tep,tp --tp 4", "--tp: is 4, tep and tp take all GPUs"),
        ("--layout tep --tp 1..16", "--tp: is 1..16, tep takes all GPUs"),
    ],
)
def test_a_size_of_attention_ranks_that_no_layout_can_have_is_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, f"{PLAN} {words}")
    assert code == 2
    assert said in err
    assert "add a layout by requests" in err


def test_layouts_refuses_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    line = "layouts deepseek-v3 --gpu h200 --gpus 8 --context 2k --requests 8 --layout tep --tp 2"
    code, _, err = run(capsys, line)
    assert code == 2
    assert "--tp: is 2, tep takes all GPUs" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--layout dep,tep --tp 1..4", "--tp 3: divides no heads or no instance size"),
        ("--layout dep,tep --schedule two-batch", "--layout tep: no --schedule named suits it"),
        ("--layout dep,tp --gpus 24", "--layout tp: the model cannot be spread so"),
    ],
)
def test_what_is_not_tried_is_named(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"{PLAN} {words}")
    assert code == 0
    assert f"Left out on H200-SXM-141GB with ConnectX-7-400G: {said}" in out


def test_who_names_nothing_is_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Left out" not in run(capsys, f"{PLAN} --gpus 24")[1]


def test_overlap_without_an_all_to_all_is_refused_unless_the_plain_order_is_named_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dense = "plan llama-3.1-8b --gpu h200 --gpus 8 --context 2k --min-tps 20 --max-batch 8"
    code, _, err = run(capsys, f"{dense} --schedule two-batch")
    assert code == 2
    assert "Llama-3.1-8B, which has no experts, has none — add naive" in err
    assert run(capsys, f"{dense} --schedule naive,two-batch")[0] == 0
