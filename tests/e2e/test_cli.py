"""The command line as a user runs it: commands, tables and JSON, exit codes, suggestions, pipes."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typed import run

from moeplan.cli import _COMMANDS
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
GIB = 2**30
PREDICT = "predict deepseek-v3 --gpu h800 --ep 128 --batch 128 --context 4k"
PLAN = "plan deepseek-v3 --gpu h800,h20 --nic cx7 --gpus 16..128 --context 5k --min-tps 20"
DENSE = "plan llama-3.1-8b --gpu h100 --gpus 1 --context 4k --min-tps 30"


def no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def parsed(text: str) -> dict[str, Any]:
    """Parse standard output as the one JSON document that it must be; NaN and Infinity are none."""
    content = json.loads(text, parse_constant=no_constant)
    assert isinstance(content, dict)
    assert re.fullmatch(r"moeplan\.[a-z]+/1", content["schema"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", content["version"])
    return content


def spawn(arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moeplan", *shlex.split(arguments)]
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", env=variables, check=False, timeout=60
    )


@cache
def answer(arguments: str) -> tuple[int, str, str]:
    done = spawn(arguments)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


# --- help, version ------------------------------------------------------------------------------------------------


def test_help_lists_every_command() -> None:
    code, out, err = answer("--help")
    assert (code, err) == (0, "")
    for name in _COMMANDS:
        assert re.search(rf"^  {name} ", out, re.MULTILINE)
    assert answer("-h")[1] == out


@pytest.mark.parametrize("name", list(_COMMANDS))
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: moeplan {name} ")
    assert run(capsys, name, "-h") == (code, out, err)


def test_version() -> None:
    assert re.fullmatch(r"moeplan, version \d+\.\d+\.\d+\n", answer("--version")[1])


def test_without_a_command_it_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "Commands:" in err


# --- catalog ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpus", "nics", "models"])
def test_lists_as_table_and_as_json(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, kind)
    assert (code, err) == (0, "")
    first_words = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert set(CATALOG.names(kind)) <= first_words
    code, out, err = run(capsys, kind, "--json")
    assert (code, err) == (0, "")
    content = parsed(out)
    assert content["schema"] == f"moeplan.{kind}/1"
    assert len(content[kind]) == len(CATALOG.names(kind))


@pytest.mark.parametrize("kind", ["gpus", "nics", "models"])
def test_one_item_as_sheet_and_as_json(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name in CATALOG.names(kind):
        code, out, err = run(capsys, kind, name)
        assert (code, err) == (0, "")
        assert out.startswith("name: ")
        code, out, err = run(capsys, kind, name, "--json")
        assert (code, err) == (0, "")
        parsed(out)


def test_catalog_figures_are_in_si_units(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = parsed(run(capsys, "gpus", "h200", "--json")[1])["gpu"]
    assert gpu["memory"]["capacity"] == 141 * GIB
    assert gpu["memory"]["bandwidth"] == 4.8e12
    assert gpu["compute"]["fp8"] == 1978.9e12
    assert gpu["sources"]
    model = parsed(run(capsys, "models", "deepseek-v3", "--json")[1])["model"]
    assert model["parameters"]["total"] == pytest.approx(671.03e9, rel=1e-4)
    assert model["kv_bytes_per_token"]["bf16"] == 61 * 576 * 2
    nic = parsed(run(capsys, "nics", "cx7", "--json")[1])
    assert json.dumps(nic).count('"line_rate": 50000000000.0') == 1


# --- predict ------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_another_cut_of_attention_would_give(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "plan qwen3-30b-a3b --gpu h200 --gpus 32 --context 500 --max-batch 32 --min-tps 10 --schedule tbo --layout dep"
    )
    code, out, _ = run(capsys, *shlex.split(line))
    assert code == 0
    assert re.search(r"Attention cut before o_proj \(two-batch-best\) would give \+\d+\.\d%", out)
    found = parsed(run(capsys, *shlex.split(line), "--json")[1])
    cut, best = found["attention_cut"], found["best"][found["winner"]]
    assert cut["before"] == ["o_proj"]
    assert cut["tok_s_per_gpu"] == pytest.approx(best["metrics"]["tok_s_per_gpu"] * (1 + cut["gain"]))


@pytest.mark.parametrize("alias", ["sbo", "single-batch-overlap"])
def test_a_schedule_has_aliases(alias: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = parsed(run(capsys, *shlex.split(PREDICT), "--json", "--schedule", alias)[1])
    assert found["deployment"]["schedule"] == "single-batch"


@pytest.mark.parametrize("more", ["", " --mtp 1", " --schedule naive --kv fp8", " --explain", " --kernels article"])
def test_a_prediction_is_consistent_with_itself(more: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *shlex.split(f"{PREDICT}{more} --json"))
    assert (code, err) == (0, "")
    content = parsed(out)
    assert content["schema"] == "moeplan.predict/1"
    metrics, deployment = content["metrics"], content["deployment"]
    assert metrics["tpot_s"] == pytest.approx(metrics["step_s"] / metrics["tokens_per_step"])
    assert metrics["tok_s_per_user"] == pytest.approx(1 / metrics["tpot_s"])
    assert metrics["tok_s_per_gpu"] == pytest.approx(deployment["batch"] * metrics["tok_s_per_user"])
    assert deployment["global_batch"] == deployment["batch"] * deployment["gpus"] == 128 * 128
    assert deployment["q_len"] == deployment["mtp"] + 1
    assert 0.005 < metrics["step_s"] < 0.5
    layers = sum(group["count"] * group["layer_s"] for group in content["layers"])
    outside = sum(cost["seconds"] for cost in content["outside_layers"])
    assert metrics["step_s"] == pytest.approx(layers + outside + content["mtp_s"])
    for group in content["layers"]:
        assert group["layer_s"] == pytest.approx(sum(stage["exposed_s"] for stage in group["stages"]))
        assert group["share_of_step"] == pytest.approx(group["count"] * group["layer_s"] / metrics["step_s"])
        for stage in group["stages"]:
            busy = sum(cost["seconds_per_layer"] for cost in stage["operators"])
            assert stage["busy_s"] == pytest.approx(busy)
            assert 0 <= stage["exposed_s"] <= busy * (1 + 1e-9)
            assert all(("formula" in cost) == ("--explain" in more) for cost in stage["operators"])
    memory = content["memory"]
    uses = ("replicated_weights", "expert_weights", "kv_cache", "all_to_all_buffer", "reserve")
    assert memory["total"] == pytest.approx(sum(memory[use] for use in uses))
    assert memory["free"] == pytest.approx(memory["capacity"] - memory["total"])
    assert memory["fits"] is True


def test_the_table_says_what_the_json_says() -> None:
    code, out, err = answer(PREDICT)
    assert (code, err) == (0, "")
    metrics = parsed(answer(f"{PREDICT} --json")[1])["metrics"]
    assert f"step {metrics['step_s'] * 1e3:.2f} ms" in out
    assert f"TPOT {metrics['tpot_s'] * 1e3:.2f} ms" in out
    assert f"{metrics['tok_s_per_user']:.2f} tok/s/user" in out
    assert f"{metrics['tok_s_per_gpu']:,.1f} tok/s/GPU" in out
    assert f"least sure: {metrics['origin']}" in out


def test_explain_prints_a_formula_for_every_operator(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *shlex.split(f"{PREDICT} --explain"))
    assert code == 0
    formulas = out[out.index("Formulas") :]
    for name in ("q_a_kv_a_proj", "mla_core", "dispatch", "routed_gate_up", "combine", "lm_head"):
        assert f"  {name} = " in formulas


def test_a_correction_multiplies_and_is_called_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    def routed_gate_up(*more: str) -> dict[str, Any]:
        content = parsed(run(capsys, *shlex.split(PREDICT), "--json", "--schedule", "naive", *more)[1])
        costs = [cost for group in content["layers"] for stage in group["stages"] for cost in stage["operators"]]
        return next(cost for cost in costs if cost["operator"] == "routed_gate_up")

    plain, twice = routed_gate_up(), routed_gate_up("--correct", "routed_gate_up=2")
    assert twice["seconds"] == pytest.approx(2 * plain["seconds"])
    assert twice["origin"] == "assumed"
    assert "corrected by hand" in twice["source"]


@pytest.mark.parametrize("gpu", ["h800", "h20", "b200", "mi300x", "a100", "gb200"])
def test_every_built_in_model_is_predicted(gpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in CATALOG.names("models"):
        spec = CATALOG.model(name)
        code, out, err = run(
            capsys, "predict", name, "--gpu", gpu, "--ep", "16", "--batch", "8", "--context", "2k", "--json"
        )
        if spec.formats.experts == "nvfp4" and not CATALOG.gpu(gpu).supports("fp4"):
            assert code == 2
            assert "lacks" in err
            continue
        content = parsed(out)
        assert content["model"] == spec.name
        assert 1e-3 < content["metrics"]["step_s"] < 2
        assert content["metrics"]["tok_s_per_gpu"] > 0
        assert code == (0 if content["memory"]["fits"] else 1)
        assert ("does not fit" in err) == (not content["memory"]["fits"])


def test_what_does_not_fit_is_said_and_fails() -> None:
    code, out, err = answer("predict deepseek-v3 --gpu h100 --ep 8 --batch 1 --context 4k")
    assert code == 1
    assert "MISSING" in out
    assert re.search(r"does not fit: 10\d\.\d GiB per GPU needed, 80\.0 GiB available; .* more GPUs", err)
    code, _, err = answer("predict deepseek-v3 --gpu h200 --ep 32 --batch 640 --context 40k")
    assert code == 1
    assert "lower the batch or the context" in err


# --- plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_consistent_with_itself() -> None:
    code, out, err = answer(f"{PLAN} --json")
    assert (code, err) == (0, "")
    content = parsed(out)
    assert content["schema"] == "moeplan.plan/1"
    assert content["feasible"] is True
    assert content["infeasible"] == []
    asked = {"model": "DeepSeek-V3", "context": 5000, "min_tok_s_per_user": 20}
    assert content["question"].items() >= asked.items()
    best = content["best"]
    assert [row["gpu"] for row in best] == ["H800-SXM5-80GB", "H20-96GB"]
    throughput = [row["metrics"]["tok_s_per_gpu"] for row in best]
    assert throughput[content["winner"]] == max(throughput)
    for row in best:
        metrics, deployment = row["metrics"], row["deployment"]
        assert metrics["tok_s_per_user"] >= 20
        assert metrics["tok_s_per_gpu"] == pytest.approx(deployment["batch"] * metrics["tok_s_per_user"])
        assert row["memory"]["fits"] is True
        assert deployment["gpus"] in range(16, 129, 8)
        assert 0 < row["search"]["feasible"] <= row["search"]["tried"]
        flags = row["launch"]["flags"]
        assert flags["--ep-size"] == str(deployment["ep"])
        assert flags["--cuda-graph-max-bs-decode"] == str(deployment["batch"])
        assert row["launch"]["command"].count("python -m sglang.launch_server") == 1


def test_the_winner_is_what_predict_says() -> None:
    best = parsed(answer(f"{PLAN} --json")[1])["best"]
    for row, gpu in zip(best, ("h800", "h20"), strict=True):
        found, precision = row["deployment"], row["deployment"]["precision"]
        again = (
            f"predict deepseek-v3 --gpu {gpu} --ep {found['ep']} --batch {found['batch']} --context 5k "
            f"--mtp {found['mtp']} --schedule {found['schedule']} --kv {precision['kv']} "
            f"--attention {precision['attention']} --json"
        )
        metrics = parsed(answer(again)[1])["metrics"]
        for name in ("step_s", "tok_s_per_user", "tok_s_per_gpu"):
            assert metrics[name] == pytest.approx(row["metrics"][name])


def test_the_tables_of_a_plan() -> None:
    code, out, err = answer(PLAN)
    assert (code, err) == (0, "")
    content = parsed(answer(f"{PLAN} --json")[1])
    for row in content["best"]:
        assert f"{row['metrics']['tok_s_per_gpu']:,.0f}" in out
    assert content["best"][content["winner"]]["launch"]["command"] in out
    assert "Winner of" in out


def test_a_dense_model_is_planned_as_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *shlex.split(f"{DENSE} --json"))
    assert code == 0
    best = parsed(out)["best"][0]
    assert best["deployment"]["schedule"] == "naive"
    assert best["experts"] is None
    assert "--ep-size" not in best["launch"]["flags"]


def test_nothing_feasible_is_exit_1_with_what_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    question = "plan deepseek-v3 --gpu h20 --gpus 32 --context 64k --min-tps 60 --layout dep"
    code, out, _ = run(capsys, *shlex.split(question))
    assert code == 1
    assert "nothing feasible" in out
    assert "The smallest change that would do: --" in out
    assert "Launch command" not in out
    code, out, _ = run(capsys, *shlex.split(f"{question} --json"))
    content = parsed(out)
    assert code == 1
    assert content["feasible"] is False
    assert content["winner"] is None
    assert content["best"] == []
    missing = content["infeasible"][0]
    assert missing["constraint"] == "speed per user"
    assert missing["needed"] > missing["available"]


def test_every_remedy_really_does(capsys: pytest.CaptureFixture[str]) -> None:
    question = "plan deepseek-v3 --gpu h20 --gpus 32 --context 64k --min-tps 60 --layout dep --json"
    missing = parsed(run(capsys, *shlex.split(question))[1])["infeasible"][0]
    assert missing["remedies"]
    for remedy in missing["remedies"]:
        option, value = remedy["change"].split()
        changed = re.sub(rf"{option} \S+", f"{option} {value}", question)
        assert changed != question
        assert run(capsys, *shlex.split(changed))[0] == 0, remedy


# --- near names and contradictions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        ("gpus h80", "h800"),
        ("nics cx-7", "cx7"),
        ("models deepsek-v3", "deepseek-v3"),
        ("predict deepseek-v3 --gpu h20o --ep 8 --batch 8 --context 4k", "h200"),
        ("predct deepseek-v3", "predict"),
        ("predict deepseek-v3 --gpu h200 --ep 8 --batch 8 --contxt 4k", "--context"),
        (f"{PREDICT} --kv fp9", "fp8"),
        (f"{PREDICT} --correct dispach=2", "dispatch"),
        (f"{PLAN} --schedule two_batch", "two-batch"),
    ],
)
def test_a_slip_gets_the_near_name(arguments: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *shlex.split(arguments))
    assert (code, out) == (2, "")
    assert re.search(rf"[Dd]id you mean .*{near}", err)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (f"{PLAN} --isl 4000", ["--isl", "contradicts --context"]),
        (f"{PLAN} --isl 4000 --osl 1000 --ttft 2", ["--isl", "--osl", "--ttft"]),
        ("plan deepseek-v3 --gpu h200 --gpus 32 --isl 4000", ["--isl", "--context: is missing", "--min-tps"]),
        ("predict qwen3-30b-a3b --gpu h200 --ep 8 --batch 8 --context 4k --mtp 1", ["mtp", "Qwen3-30B-A3B"]),
        ("plan qwen3-30b-a3b --gpu h200 --gpus 8 --context 4k --min-tps 1 --mtp 1", ["--mtp", "Qwen3-30B-A3B"]),
        ("predict llama-3.1-8b --gpu h200 --ep 1 --batch 8 --context 4k --experts fp8", ["--experts", "--linear"]),
        ("predict llama-3.1-8b --gpu h200 --ep 1 --batch 8 --context 4k --schedule two-batch", ["schedule"]),
        ("predict deepseek-v3 --gpu h200 --ep 8 --batch 7 --context 4k --schedule two-batch", ["batch", "even"]),
        (f"{PREDICT} --mtp 3 --acceptance 0.9,0.8", ["acceptance", "give 3 rates"]),
        (f"{PREDICT} --acceptance 0.5,0.9", ["acceptance[1]", "above the one before"]),
        ("predict deepseek-v3 --gpu h200 --ep 300 --batch 8 --context 4k --redundant 0", ["redundant", "at least 44"]),
        ("predict deepseek-v3 --gpu h200 --ep 8 --batch 8 --context 200k", ["context", "163840"]),
        ("predict deepseek-v3.1-nvfp4 --gpu h200 --ep 8 --batch 8 --context 4k", ["fp4", "H200"]),
        ("plan deepseek-v3 --gpu h200 --gpus 3 --context 4k --min-tps 1", ["--gpus", "whole nodes of 8"]),
    ],
)
def test_contradictions_are_named(arguments: str, named: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *shlex.split(arguments))
    assert (code, out) == (2, "")
    for word in named:
        assert word in err
    code, out, _ = run(capsys, *shlex.split(arguments), "--json")
    content = parsed(out)
    assert code == 2
    assert content["schema"] == "moeplan.error/1"
    assert all(fault["problem"] for fault in content["faults"])


# --- the user's own data ------------------------------------------------------------------------------------------

GPU = """
name: Mine
vendor: me
architecture: Hopper
memory: {capacity: 200 GB, bandwidth: 5 TB/s}
compute: {bf16: 1000 TFLOP/s, fp8: 2000 TFLOP/s}
vector_rate: 4 Top/s
attention_overlap: two-stage
"""


def test_a_data_folder_adds_a_gpu_and_a_model(tmp_path: Path) -> None:
    for kind in ("gpus", "models"):
        (tmp_path / kind).mkdir()
    (tmp_path / "gpus" / "mine.yaml").write_text(GPU, encoding="utf-8")
    config = CATALOG.path("models", "qwen3-30b-a3b").read_text(encoding="utf-8")
    content = {key: value for key, value in json.loads(config).items() if not key.startswith("_name")}
    content.pop("_repository", None)
    (tmp_path / "models" / "my-model.json").write_text(json.dumps(content), encoding="utf-8")
    step = "predict my-model --gpu mine --ep 8 --batch 8 --context 4k --json"
    by_option = spawn(f"{step} --data {tmp_path}")
    assert by_option.returncode == 0
    found = parsed(by_option.stdout)
    assert (found["model"], found["gpu"]) == ("my-model", "Mine")
    assert spawn(step, MOEPLAN_DATA=str(tmp_path)).stdout == by_option.stdout
    without = spawn(step, MOEPLAN_DATA="")
    assert without.returncode == 2
    assert "unknown name 'my-model'" in without.stderr


def test_a_config_json_and_its_folder_name_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my checkpoint"
    folder.mkdir()
    content = json.loads(CATALOG.path("models", "qwen3-30b-a3b").read_text(encoding="utf-8"))
    bare = {key: value for key, value in content.items() if not key.startswith("_")}
    (folder / "config.json").write_text(json.dumps(bare), encoding="utf-8")
    question = ("--gpu", "h200", "--gpus", "8", "--context", "4k", "--min-tps", "20", "--json")
    for given in (folder, folder / "config.json"):
        code, out, _ = run(capsys, "plan", str(given), *question)
        assert code == 0
        best = parsed(out)["best"][0]
        assert best["model"] == "my checkpoint"
        assert best["launch"]["flags"]["--model-path"] == str(folder.resolve())


# --- pipes and terminals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["--help", "models", "models --json", PREDICT, f"{PREDICT} --json", PLAN])
def test_a_reader_that_has_gone_is_no_error(arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "moeplan", *shlex.split(arguments)]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", ["models", "gpus --json", "gpus nope --json"])
def test_a_full_disk_is_one_line_and_exit_2(arguments: str, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "moeplan", *shlex.split(arguments)],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "standard output" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "koi8-r"])
def test_a_terminal_without_the_signs_is_no_error(encoding: str) -> None:
    done = spawn(PREDICT, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("DeepSeek-V3 on 128 ")
    assert parsed(spawn("gpus h200 --json", PYTHONIOENCODING=encoding).stdout)["gpu"]["name"] == "H200-SXM-141GB"


def test_a_plan_says_whether_its_promise_is_kept_at_p90(capsys: pytest.CaptureFixture[str]) -> None:
    """A search keeps the promise by the prediction; the band says how surely, and what to ask for instead."""
    words = ("plan", "deepseek-v3", "--gpu", "h20", "--gpus", "32", "--context", "64k", "--max-batch", "64")
    _, out, _ = run(capsys, *words, "--min-tps", "60")
    found = re.search(r"At p90 of the step a user gets ([0-9.]+) tok/s, less than the 60 promised", out)
    assert found is not None
    assert float(found[1]) < 60
    metrics = json.loads(run(capsys, *words, "--min-tps", "60", "--json")[1])["best"][0]["metrics"]
    low, high = metrics["tok_s_per_user_p10_p90"]
    assert low == pytest.approx(float(found[1]), abs=0.06)
    assert low < 60 <= metrics["tok_s_per_user"] < high
    few = (*words[:-1], "4", "--min-tps", "2")
    assert "The promise is kept at p90 of the step, too" in run(capsys, *few)[1]
