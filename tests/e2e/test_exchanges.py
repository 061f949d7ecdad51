"""All-to-alls named on the command line: priced, searched, shown, saved, refused with what would do."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typed
import yaml

PREDICT = "predict deepseek-v3 --gpu h200 --nic cx7 --gpus 16 --batch 64 --context 4k"
PLAN = "plan deepseek-v3 --gpu h200 --nic cx7 --gpus 8..16 --context 4k --min-tps 20 --max-batch 48 --mtp 0 --kv fp8"


def run(capsys: pytest.CaptureFixture[str], line: str, *more: str) -> tuple[Any, str, str]:
    return typed.run(capsys, *shlex.split(line), *more)


def document(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    return typed.document(capsys, *shlex.split(line), codes=(0, 1))


@pytest.mark.parametrize(
    ("cluster", "name"),
    [
        ("--gpu h200 --nic cx7", "deepep-low-latency"),
        ("--gpu h200 --nic efa", "uccl-low-latency"),
        ("--gpu mi300x --nic thor2", "mori-low-latency"),
        ("--gpu h200 --nic efa --kernels article", "deepep-low-latency"),
        ("--gpu h200 --nic efa --gpus 1", "deepep-low-latency"),
        ("--gpu h200 --nic efa --layout dep-ag", "all-gather"),
    ],
)
def test_auto_is_what_the_cluster_can_have(cluster: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = PREDICT.replace("--gpu h200 --nic cx7 ", "").replace("--batch 64", "--batch 8")
    assert document(capsys, f"{line} {cluster}")["deployment"]["exchange"] == name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--exchange deepep-nrmal", "unknown name 'deepep-nrmal' — did you mean deepep-normal"),
        ("--exchange deepep-ll --nic efa", "GPUs drive by ibgda, AWS-EFA.*use uccl-low-latency, or at most 8 GPUs"),
        ("--exchange nvlink-one-sided", "stays in one domain.*use deepep-low-latency, or at most 8 GPUs"),
        ("--exchange nvlink-one-sided --gpus 8", "no rows of trtllm-one-sided-dispatch.*use deepep-low-latency"),
        ("--exchange mori", "runs on GPUs of AMD, H200.*use deepep-low-latency"),
        ("--exchange deepep-normal --layout dep-ag", "dep-ag gathers all tokens.*take --layout dep"),
        ("--exchange deepep-normal --layout tep", "tep adds up outputs.*take --layout dep"),
        ("--exchange deepep-normal,pplx", "names several — predict takes one"),
        ("--exchange deepep-normal --kernels article", "the article's figures are of deepep-low-latency alone"),
    ],
)
def test_a_step_that_cannot_be_had_is_refused_with_what_can(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, f"{PREDICT} {options}")
    assert (code, out) == (2, "")
    assert re.search(said, " ".join(err.split())), err


def test_a_dense_model_sends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "predict llama-3.1-8b --gpu h200 --gpus 1 --batch 8 --context 4k --exchange deepep-normal",
        "plan llama-3.1-8b --gpu h200 --gpus 1 --context 4k --min-tps 20 --exchange deepep-normal",
    ):
        code, _, err = run(capsys, line)
        assert code == 2
        assert "has no experts to send tokens to" in err


def test_what_cannot_be_captured_in_a_graph_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{PREDICT} --exchange deepep-normal"
    (note,) = document(capsys, line)["notes"]
    assert note.startswith("deepep-normal cannot be captured in a CUDA graph")
    code, out, _ = run(capsys, line)
    assert code == 0
    assert "Note: deepep-normal cannot be captured" in " ".join(out.split())
    assert "EP16 = DP16 by deepep-normal" in out
    assert document(capsys, PREDICT)["notes"] == []


def test_the_token_limit_is_of_low_latency_kernels_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang's dispatcher asserts 1,024 tokens per rank in DeepEP's low-latency mode."""
    plan = "plan qwen3-30b-a3b --gpu h200 --nic cx7 --gpus 8 --context 100 --min-tps 1 --max-batch 1500 --kv bf16"
    plan += " --layout dep --schedule naive"
    low, normal = (document(capsys, f"{plan} --exchange {name}") for name in ("deepep-low-latency", "deepep-normal"))
    assert low["best"][0]["deployment"]["batch"] <= 1024 < normal["best"][0]["deployment"]["batch"]


def test_a_plan_compares_those_named_and_says_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{PLAN} --exchange deepep-ll,deepep-normal,mori,nvlink-one-sided"
    plan = document(capsys, line)
    (best,) = plan["best"]
    assert best["deployment"]["exchange"] == "deepep-low-latency"
    assert {point["exchange"] for point in best["front"]} >= {"deepep-low-latency"}
    others = {other["choice"]: other for other in plan["alternatives"]}
    assert others["deepep-normal"]["exchange"] == "deepep-normal"
    assert others["deepep-normal"]["tok_s_per_gpu"] < best["metrics"]["tok_s_per_gpu"]
    assert "mori-low-latency" not in others
    reasons = " ".join(item["reason"] for item in plan["left_out"])
    assert "mori-low-latency: runs on GPUs of AMD" in reasons
    assert "nvlink-one-sided: no rows" in reasons
    _, out, _ = run(capsys, line, "--front")
    assert "Left out on H200" in out
    assert "tokens by" in out
    assert "with deepep-normal" in out


def test_a_cluster_that_can_have_none_is_an_error_or_left_out_of_a_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(capsys, f"{PLAN} --exchange mori,mori-normal")
    assert code == 2
    assert "mori-low-latency: runs on GPUs of AMD" in err
    assert "mori-normal: runs on GPUs of AMD" in err
    both = document(capsys, f"{PLAN.replace('--gpu h200', '--gpu h200,mi300x')} --exchange mori")
    assert [item["gpu"] for item in both["unsupported"]] == ["H200-SXM-141GB"]
    assert both["best"][0]["deployment"]["exchange"] == "mori-low-latency"
    code, _, err = run(capsys, f"{PLAN} --exchange deepep-normal --layout dep-ag,tep")
    assert code == 2
    assert "add dep to --layout" in err


def test_each_size_of_a_cluster_takes_what_reaches_it(capsys: pytest.CaptureFixture[str]) -> None:
    """EFA: NVLink inside a node needs no card, beyond it the CPU must post the messages."""
    plan = document(capsys, f"{PLAN.replace('--nic cx7', '--nic efa')} --layout dep")
    assert plan["left_out"] == []
    (best,) = plan["best"]
    sent = {(best["deployment"]["gpus"], best["deployment"]["exchange"])}
    sent |= {(point["count"], point["exchange"]) for point in best["front"]}
    assert sent <= {(8, "deepep-low-latency"), (16, "uccl-low-latency")}
    named = document(capsys, f"{PLAN.replace('--nic cx7', '--nic efa')} --layout dep --exchange deepep-low-latency")
    assert named["best"][0]["deployment"]["gpus"] == 8
    assert "16 ranks are more than the 8 of one domain" in named["left_out"][0]["reason"]


def test_the_choice_is_saved_with_the_question_and_the_winner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "plan.yaml")
    plan = document(capsys, f"{PLAN} --layout dep --exchange deepep-normal --save {saved}")
    content = yaml.safe_load(Path(saved).read_text(encoding="utf-8"))
    assert content["plan"]["exchange"] == content["winner"]["exchange"] == "deepep-normal"
    again = document(capsys, f"plan {saved}")
    assert again["best"][0]["metrics"] == plan["best"][0]["metrics"]
    step = document(capsys, f"predict {saved}")
    assert step["deployment"]["exchange"] == "deepep-normal"
    assert step["metrics"]["tok_s_per_gpu"] == plan["best"][0]["metrics"]["tok_s_per_gpu"]
    other = document(capsys, f"predict {saved} --exchange deepep-low-latency")
    assert other["metrics"]["step_s"] < step["metrics"]["step_s"]


def test_a_winner_without_an_all_to_all_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = str(tmp_path / "plan.yaml")
    document(capsys, f"{PLAN} --layout tep --save {saved}")
    assert "exchange" not in yaml.safe_load(Path(saved).read_text(encoding="utf-8"))["winner"]
    assert document(capsys, f"predict {saved}")["deployment"]["exchange"] == "all-reduce"


def test_no_remedy_beyond_the_ranks_that_an_all_to_all_connects(capsys: pytest.CaptureFixture[str]) -> None:
    line = "plan deepseek-v3 --gpu h200 --nic efa --gpus 8..32 --layout dep --context 100k --min-tps 90"
    plan = document(capsys, f"{line} --exchange deepep-low-latency")
    (missed,) = plan["infeasible"]
    assert missed["remedies"]
    assert not any("--gpus" in remedy["change"] for remedy in missed["remedies"])


@pytest.mark.parametrize("words", ["auto,deepep-normal", "auto,auto"])
def test_auto_stands_alone(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        f"{PLAN} --exchange {words}",
        f"predict deepseek-v3 --gpu h200 --gpus 16 --batch 8 --context 2k --exchange {words}",
    ):
        code, _, err = run(capsys, line)
        assert code == 2
        assert "auto takes one for each size and stands alone" in err


@pytest.mark.parametrize("gpu", ["gb300", "b300", "b200"])
@pytest.mark.parametrize("name", ["nvlink-one-sided", "nvlink-two-sided"])
def test_one_domain_of_nvlink_5_is_carried_over(gpu: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured on GB200 alone; the same link, so a guess, and it says so."""
    line = PREDICT.replace("h200", gpu).replace("--gpus 16", "--gpus 8")
    code, out, _ = run(capsys, f"{line} --exchange {name} --schedule naive")
    assert code == 0
    sent = [row for row in out.splitlines() if row.startswith(("dispatch", "combine"))]
    assert len(sent) == 2
    assert all("assumed: TensorRT-LLM's" in row and "carried over from gb200" in row for row in sent)


@pytest.mark.parametrize(
    ("cluster", "name"),
    [
        ("--gpu h200 --nic cx7", "deepep-normal"),
        ("--gpu h200 --nic efa", "uccl-normal"),
        ("--gpu mi300x --nic thor2", "mori-normal"),
        ("--gpu h200 --nic cx7 --exchange deepep-ll", "deepep-low-latency"),
        ("--gpu h200 --nic cx7 --kernels article", "deepep-low-latency"),
    ],
)
def test_the_order_of_prefill_runs_on_normal_kernels(
    cluster: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """DeepSeek's prefill does, and SMs are set aside for them."""
    line = PREDICT.replace("--gpu h200 --nic cx7 ", "").replace("--batch 64", "--batch 8")
    found = document(capsys, f"{line} {cluster} --schedule two-batch-prefill")
    assert found["deployment"]["exchange"] == name


def test_a_plan_wants_the_kernels_of_prefill_named(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{PLAN} --schedule naive,two-batch-prefill"
    code, _, err = run(capsys, line)
    assert code == 2
    assert "two-batch-prefill (normal) was made for" in err
    found = document(capsys, f"{line} --exchange deepep-ll,deepep-normal")
    assert "two-batch-prefill" in {other["choice"] for other in found["alternatives"]}


def test_the_order_of_prefill_is_refused_where_no_normal_kernel_is(capsys: pytest.CaptureFixture[str]) -> None:
    line = PREDICT.replace("h200", "ascend-910c")
    code, _, err = run(capsys, f"{line} --schedule two-batch-prefill")
    assert code == 2
    assert "made for an all-to-all in normal mode" in err
    assert "--exchange ascend-fuseep" in err
    assert run(capsys, f"{line} --schedule two-batch-prefill --exchange ascend-fuseep")[0] in (0, 1)


@pytest.mark.parametrize(
    ("machine", "name"),
    [("h200", "deepep-low-latency"), ("mi300x", "mori-low-latency"), ("ascend-910c", "ascend-fuseep")],
)
def test_groups_price_what_the_cluster_has(machine: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, f"groups deepseek-v3 --ep 8 --gpu {machine}")
    assert f"Tokens by {name}." in " ".join(out.split())


def test_groups_beyond_a_node_of_a_fabric_that_gpus_do_not_drive(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "groups deepseek-v3 --ep 8 --gpu h200 --nic efa")
    assert "Tokens by deepep-low-latency or uccl-low-latency." in " ".join(out.split())


def test_a_bench_expects_what_the_cluster_has(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "bench all-to-all --dry-run --gpu mi300x")
    assert "mori's low-latency dispatch" in out
    assert "DeepEP" not in out
    assert "DeepEP's low-latency dispatch" in run(capsys, "bench all-to-all --dry-run --gpu h200")[1]


def test_a_budget_says_what_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    line = "budget deepseek-v3 --gpu h200 --ep 16 --min-tps 10 --context 2k"
    low, normal = (
        " ".join(run(capsys, f"{line} --schedule {name}")[1].split()) for name in ("two-batch", "two-batch-prefill")
    )
    assert "send all 8 messages, and these are the bytes counted (deepep-low-latency)" in low
    assert "send one to each rank, and these are the bytes counted (deepep-normal)" in normal
