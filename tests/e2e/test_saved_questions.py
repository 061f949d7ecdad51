"""Questions saved as YAML: run again to the same answer, changed by what is typed, compared, refused when broken."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typed import run

PLAN = "plan deepseek-v3 --gpu h800,h20 --gpus 32..64 --context 5k --min-tps 20 --max-batch 160"
PREDICT = "predict deepseek-v3 --gpu h800 --ep 32 --batch 64 --context 4k"


class Cli:
    """The command line in a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, line: str, *more: str) -> str:
        """Standard output of a command that must succeed."""
        code, out, err = run(self.capsys, *shlex.split(line), *more)
        assert (code, err) == (0, ""), line
        return out

    def json(self, line: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self(line, "--json"))
        return content

    def refused(self, line: str) -> str:
        """Standard error of a command that must be refused."""
        code, out, err = run(self.capsys, *shlex.split(line))
        assert (code, out) == (2, ""), line
        assert err.startswith("moeplan: ")
        return err

    def read(self, name: str) -> dict[str, Any]:
        content = yaml.safe_load((self.folder / name).read_text(encoding="utf-8"))
        assert isinstance(content, dict)
        return content

    def write(self, name: str, content: object) -> None:
        text = content if isinstance(content, str) else yaml.safe_dump(content, allow_unicode=True)
        (self.folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


# --- again ----------------------------------------------------------------------------------------------------------


def test_a_saved_plan_gives_the_same_answer(cli: Cli) -> None:
    first = cli.json(f"{PLAN} --save p.yaml")
    assert cli.json("plan p.yaml") == first
    assert cli("plan p.yaml") == cli(PLAN)


def test_a_saved_step_gives_the_same_answer(cli: Cli) -> None:
    first = cli.json(f"{PREDICT} --mtp 1 --kv fp8 --correct o_proj=1.2 --set gpu.tdp=1kW --save q.yaml")
    assert cli.json("predict q.yaml") == first
    assert cli("predict q.yaml --explain").count("o_proj") > 2


def test_the_file_says_what_was_typed_and_nothing_of_the_machine(cli: Cli) -> None:
    cli(f"{PREDICT} --set gpu.tdp=1kW --set nic.latency=5µs --save q.yaml --chart x.html")
    text = (cli.folder / "q.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    assert list(content) == ["moeplan", "predict"]
    question = content["predict"]
    assert (
        question.items() >= {"model": "deepseek-v3", "gpu": "h800", "ep": "32", "batch": "64", "context": "4k"}.items()
    )
    assert question["edits"] == ["gpu.tdp=1kW", "nic.latency=5µs"]
    assert not {"data", "save", "chart", "as_json", "explain", "front"} & set(question)
    assert None not in question.values()
    for trace in (str(cli.folder), os.path.expanduser("~"), "x.html", "q.yaml", os.sep):
        assert trace not in text.replace("tok/s", "")
    cli(f"{PLAN} --save p.yaml --data {cli.folder}")
    assert str(cli.folder) not in (cli.folder / "p.yaml").read_text(encoding="utf-8")


def test_a_file_of_loads_is_found_from_any_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named from beside the question, as is a config.json: both folders can move together."""
    (cli.folder / "loads").mkdir()
    row = ",".join(str(one % 7 + 1) for one in range(256))
    cli.write("loads/here.csv", ",".join(f"e{one}" for one in range(256)) + "\n" + row + "\n")
    cli.write("uniform", "a file that is named like a law")
    asked = "predict deepseek-v3 --gpu h800 --ep 32 --batch 64 --context 4k --redundant 32 --load"
    (cli.folder / "questions").mkdir()
    first = cli.json(f"{asked} loads/here.csv --save questions/q.yaml")
    assert cli.read("questions/q.yaml")["predict"]["load"] == "../loads/here.csv"
    assert cli.json("predict questions/q.yaml") == first
    cli(f"{asked} uniform --save u.yaml")
    assert cli.read("u.yaml")["predict"]["load"] == "uniform"
    cli("plan deepseek-v3 --gpu h800 --gpus 32 --context 4k --min-tps 20 --load loads/here.csv --save questions/p.yaml")
    assert cli.read("questions/p.yaml")["winner"]["load"] == "../loads/here.csv"
    monkeypatch.chdir(cli.folder / "loads")
    again = cli.json("predict ../questions/q.yaml")
    assert again["metrics"] == first["metrics"]
    cli("explain ../questions/p.yaml")
    (cli.folder / "loads" / "here.csv").rename(cli.folder / "loads" / "gone.csv")
    assert "../loads/here.csv" in cli.refused("predict ../questions/q.yaml")


def test_a_typed_path_is_kept_as_typed(cli: Cli) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "vocab_size": 32000}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192}
    (cli.folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    first = cli.json("predict ./config.json --gpu h800 --ep 1 --batch 8 --context 4k --save q.yaml")
    assert cli.read("q.yaml")["predict"]["model"] == "./config.json"
    assert cli.json("predict q.yaml") == first


def test_options_that_are_names_or_numbers_come_back(cli: Cli) -> None:
    line = f"{PLAN} --nics-per-node 4 --rank-by tok/s/$ --kernels article --acceptance 0.8 --mtp 0,1"
    first = cli.json(f"{line} --save p.yaml")
    assert cli.json("plan p.yaml") == first
    assert first["question"]["rank_by"] == "tok/s/$"


# --- what is typed wins ---------------------------------------------------------------------------------------------


def test_what_is_typed_wins(cli: Cli) -> None:
    cli(f"{PREDICT} --kv fp8 --save q.yaml")
    changed = cli.json("predict q.yaml --batch 32 --gpu h20 --schedule naive")
    assert changed == cli.json(
        "predict deepseek-v3 --gpu h20 --ep 32 --batch 32 --context 4k --kv fp8 --schedule naive"
    )
    back = cli.json("predict q.yaml --kv bf16")  # the default, but typed
    assert back["deployment"]["precision"]["kv"] == "bf16"
    cli(f"{PLAN} --save p.yaml")
    assert [row["gpu"] for row in cli.json("plan p.yaml --gpu h20")["best"]] == ["H20-96GB"]


def test_a_changed_question_can_be_saved_again(cli: Cli) -> None:
    cli(f"{PREDICT} --save q.yaml")
    cli("predict q.yaml --batch 32 --save q.yaml")
    assert cli.read("q.yaml")["predict"]["batch"] == "32"
    assert cli.read("q.yaml")["predict"]["model"] == "deepseek-v3"


def test_edits_add_to_those_of_the_file(cli: Cli) -> None:
    """A comparison with one more edit on both sides must not lose what makes the sides differ."""
    cli(f"{PREDICT} --set gpu.memory.bandwidth=9TB/s --correct o_proj=2 --save a.yaml")
    both = cli.json("predict a.yaml --set nic.latency=3µs --correct mla_core=3")
    edits = "--set gpu.memory.bandwidth=9TB/s --set nic.latency=3µs --correct o_proj=2 --correct mla_core=3"
    assert both == cli.json(f"{PREDICT} {edits}")
    again = cli.json("predict a.yaml --set gpu.memory.bandwidth=1TB/s --correct o_proj=3")
    assert again == cli.json(f"{PREDICT} --set gpu.memory.bandwidth=1TB/s --correct o_proj=3")
    cli(f"{PREDICT} --save b.yaml")
    compared = cli.json("compare a.yaml b.yaml --set nic.latency=3µs")
    second = cli.json(f"{PREDICT} --set nic.latency=3µs")
    first = cli.json(f"{PREDICT} --set gpu.memory.bandwidth=9TB/s --correct o_proj=2 --set nic.latency=3µs")
    assert compared["first"] == {key: first[key] for key in compared["first"]}
    assert compared["second"] == {key: second[key] for key in compared["second"]}


# --- a plan's winner ------------------------------------------------------------------------------------------------


def test_predict_explain_and_sensitivity_take_the_winner_of_a_plan(cli: Cli) -> None:
    plan = cli.json(f"{PLAN} --save p.yaml")
    winner = plan["best"][plan["winner"]]
    step = cli.json("predict p.yaml")
    for section in ("deployment", "metrics", "memory", "layers"):
        assert step[section] == winner[section]
    assert cli.json("explain p.yaml")["prediction"]["metrics"] == winner["metrics"]
    sensitivity = cli.json("sensitivity p.yaml")
    assert sensitivity["min_tok_s_per_user"] == 20
    assert sensitivity["prediction"]["metrics"] == winner["metrics"]
    assert cli.json("sensitivity p.yaml --min-tps 19")["min_tok_s_per_user"] == 19
    figures = cli.read("p.yaml")["figures"]
    assert figures["tok_s_per_gpu"] == pytest.approx(winner["metrics"]["tok_s_per_gpu"], abs=0.01)
    assert figures["binds"] == winner["search"]["binds"]


def test_a_step_of_its_own_keeps_its_own_speed(cli: Cli) -> None:
    cli(f"{PREDICT} --save q.yaml")
    found = cli.json("sensitivity q.yaml")
    assert found["min_tok_s_per_user"] == found["prediction"]["metrics"]["tok_s_per_user"]


def test_the_winner_keeps_the_edits(cli: Cli) -> None:
    plan = cli.json(f"{PLAN} --set gpu.memory.bandwidth=4.8TB/s --nics-per-node 4 --acceptance 0.7 --save p.yaml")
    assert cli.json("predict p.yaml")["metrics"] == plan["best"][plan["winner"]]["metrics"]


def test_a_plan_without_winner_has_none_to_predict(cli: Cli) -> None:
    code, _, _ = run(cli.capsys, *shlex.split(f"{PLAN} --min-tps 1000 --save p.yaml"))
    assert code == 1
    assert "winner" not in cli.read("p.yaml")
    assert "holds no such question" in cli.refused("predict p.yaml")
    assert run(cli.capsys, "plan", "p.yaml")[0] == 1


def test_compare_two_files(cli: Cli) -> None:
    cli(f"{PLAN} --save p.yaml")
    cli(f"{PREDICT} --save q.yaml")
    found = cli.json("compare p.yaml q.yaml")
    first, second = cli.json("predict p.yaml")["metrics"]["step_s"], cli.json("predict q.yaml")["metrics"]["step_s"]
    assert found["first"]["metrics"]["step_s"] == first
    assert sum(row["difference_s"] for row in found["operators"]) == pytest.approx(second - first)
    same = cli.json("compare q.yaml q.yaml")
    assert all(row["difference_s"] == 0 for row in same["operators"])


# --- broken files ---------------------------------------------------------------------------------------------------


def question() -> dict[str, Any]:
    return {"model": "deepseek-v3", "gpu": "h800", "ep": "32", "batch": "64", "context": "4k"}


def test_numbers_instead_of_text_are_read_as_typed(cli: Cli) -> None:
    cli.write(
        "q.yaml", {"predict": question() | {"ep": 32, "batch": 64, "context": 4000, "mtp": 0, "acceptance": 0.85}}
    )
    assert cli.json("predict q.yaml") == cli.json(PREDICT)
    plan = {"model": "deepseek-v3", "gpu": "h800", "gpus": 32, "context": 5000, "min_tps": 20, "max_batch": 160}
    cli.write("p.yaml", {"plan": plan})
    line = "plan deepseek-v3 --gpu h800 --gpus 32 --context 5k --min-tps 20 --max-batch 160"
    assert cli.json("plan p.yaml") == cli.json(line)


def test_empty_entries_are_those_left_out(cli: Cli) -> None:
    cli.write("q.yaml", {"predict": question() | {"kv": None, "experts": None, "edits": None, "correct": []}})
    assert cli.json("predict q.yaml") == cli.json(PREDICT)


BROKEN: dict[str, tuple[object, list[str]]] = {
    "unknown keys": (
        {"predict": question() | {"batches": "1", "gpuu": "x"}},
        ["batches", "gpuu", "did you mean batch"],
    ),
    "no section": ({"moeplan": "0.1.0"}, ["holds no such question", "predict or winner"]),
    "a section that is text": ({"predict": "deepseek-v3"}, ["holds no such question"]),
    "no model": ({"predict": {"gpu": "h800", "ep": 8, "batch": 1, "context": 100}}, ["predict.model", "is missing"]),
    "itself": ({"predict": question() | {"model": "q.yaml"}}, ["predict.model"]),
    "garbled": ("predict: {model: deepseek-v3, gpu: [", ["q.yaml", "is not valid YAML"]),
    "a key twice": ("predict:\n  model: a\n  model: b\n", ["appears twice"]),
    "a list": ("- predict\n", ["holds a list"]),
    "empty": ("", ["is empty"]),
    "a list where none may be": ({"predict": question() | {"batch": ["1", "2"]}}, ["predict.batch"]),
    "a mapping": ({"predict": question() | {"gpu": {"name": "h800"}}}, ["predict.gpu"]),
    "true": ({"predict": question() | {"kv": True}}, ["predict.kv"]),
    "a text where a list must be": ({"predict": question() | {"edits": "gpu.tdp=1W"}}, ["predict.edits", "list"]),
    "lists in a list": ({"predict": question() | {"edits": [["gpu.tdp=1W"]]}}, ["predict.edits"]),
    "no choice": ({"predict": question() | {"schedule": "fast", "strict": 7}}, ["schedule", "strict"]),
    "a wrong name": ({"predict": question() | {"gpu": "h80"}}, ["h80", "h800"]),
    "a wrong number": ({"predict": question() | {"batch": "-3"}}, ["--batch"]),
    "too little": ({"predict": {"model": "deepseek-v3", "gpu": "h800"}}, ["--ep", "--batch", "--context"]),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_file_is_one_clear_error(name: str, cli: Cli) -> None:
    content, named = BROKEN[name]
    cli.write("q.yaml", content)
    for command in ("predict", "explain", "sensitivity"):
        error = cli.refused(f"{command} q.yaml")
        assert error.count("moeplan: ") == 1
        for word in named:
            assert word in error
    code, out, _ = run(cli.capsys, "predict", "q.yaml", "--json")
    document = json.loads(out)
    assert code == 2
    assert document["schema"] == "moeplan.error/1"
    assert document["faults"]
    assert cli.refused("compare q.yaml q.yaml")


def test_a_file_of_the_other_kind(cli: Cli) -> None:
    cli(f"{PREDICT} --save q.yaml")
    error = cli.refused("plan q.yaml")
    assert "wanted plan" in error
    assert "cannot be read" in cli.refused("plan none.yaml")
    assert "cannot be read" in cli.refused("predict none.yml")


def test_compare_needs_two_sides(cli: Cli) -> None:
    cli(f"{PREDICT} --save q.yaml")
    assert "SECOND" in cli.refused("compare q.yaml")
    assert "SECOND" in cli.refused("compare q.yaml q.yaml --profile x.csv")
    assert "cannot be read" in cli.refused("compare q.yaml --profile x.csv")
    assert "--gpu" in cli.refused("compare deepseek-v3 q.yaml")


# --- writing --------------------------------------------------------------------------------------------------------


def test_a_failing_write_leaves_the_old_file(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli(f"{PREDICT} --save q.yaml")
    before = (cli.folder / "q.yaml").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in cli.refused("predict q.yaml --batch 2 --save q.yaml")
    assert (cli.folder / "q.yaml").read_bytes() == before
    assert os.listdir(cli.folder) == ["q.yaml"]


@pytest.mark.parametrize("line", [PLAN, PREDICT])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    line: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of a quarter of an hour must not end in «no such folder»."""

    def evaluate(*_: object) -> None:
        raise AssertionError("was computed")

    monkeypatch.setattr("moeplan.predict.Predictor.evaluate", evaluate)
    assert "none" in cli.refused(f"{line} --save none/x.yaml")
    assert "none" in cli.refused(f"{line} --chart none/x.html")
    assert "x.json" in cli.refused(f"{line} --save x.json")  # could not be run again: MODEL.json is a config
    assert "x.txt" in cli.refused(f"{line} --chart x.txt")
    assert os.listdir(cli.folder) == []
