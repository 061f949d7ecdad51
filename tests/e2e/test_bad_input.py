"""Wrong input of every kind: one clear error that names the field, exit 2, nothing on standard output, no traceback."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typed import run

from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
DIGITS = "1" + "0" * 400
LONG = "x" * 5000

PREDICT = {"MODEL": "deepseek-v3", "--gpu": "h200", "--ep": "32", "--batch": "64", "--context": "4k"}
PLAN = {"MODEL": "deepseek-v3", "--gpu": "h200", "--gpus": "32", "--context": "4k", "--min-tps": "20"}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, named: str) -> str:
    """Assert the whole contract, in text and as JSON; return the message."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, ""), err
    assert err.startswith("moeplan: ")
    assert named.lower() in err.lower()
    assert "Traceback" not in err
    code, out, again = run(capsys, *arguments, "--json")
    assert (code, again) == (2, err)
    content = json.loads(out)
    assert content["schema"] == "moeplan.error/1"
    assert content["message"] == err.removeprefix("moeplan: ").rstrip("\n")
    assert set(content) == {"schema", "version", "error", "message", "faults"}
    return err


def arguments(command: str, base: dict[str, str], option: str, value: str | None) -> list[str]:
    """Return the command line with one option set to a value, or left out."""
    given = {**base, option: value}
    words = [f"{name}={text}" for name, text in given.items() if name != "MODEL" and text is not None]
    model = given.get("MODEL")
    return [command, *([model] if model is not None else []), *words]


NO_NUMBER = ("", " ", "abc", "é", "nan", "inf", "-inf", "1e", "0x10", "5 GB", "--", LONG)
NO_COUNT = (*NO_NUMBER, "-1", "1.5", "1e30", DIGITS, "3,35")
NO_NAME = ("", " ", "nope", "é", "-1", "1e30", DIGITS, LONG, "../h200", "/", "h200.yaml", "a\tb", "index")
NO_FORMAT = ("", "fp9", "FP8 ", "16", "é", "nan", LONG, "bf16,")
WRONG: dict[str, tuple[str, ...]] = {
    "--ep": (*NO_COUNT, "0"),
    "--batch": (*NO_COUNT, "0"),
    "--context": (*NO_COUNT, "0", "163841"),
    "--mtp": (*NO_COUNT, "1000"),
    "--redundant": NO_COUNT,
    "--nics-per-node": (*NO_COUNT, "0"),
    "--acceptance": ("", "abc", "nan", "inf", "-0.1", "1.5", "1e30", DIGITS, "0.5,0.9", ",", "0.9;0.8", LONG),
    "--experts": NO_FORMAT,
    "--linear": NO_FORMAT,
    "--kv": NO_FORMAT,
    "--attention": NO_FORMAT,
    "--schedule": ("", "naiv", "two_batch", "é", LONG),
    "--kernels": ("", "measurd", "é", "table,article", "silicon=x", "table=sglang"),
    "--correct": tuple(f"o_proj={factor}" for factor in ("", "x", "nan", "inf", "0", "-1", "1e7", DIGITS, LONG)),
    "--data": ("", "nowhere", "é", LONG, "/dev/null"),
    "--gpu": NO_NAME,
    "--nic": NO_NAME,
    "MODEL": ("", "nope", "é", DIGITS, LONG, "..", "/", "missing.json", "./config.json", "~/x", "index"),
}
NAMED = {"--redundant": "redundant", "--correct": "correct", "--acceptance": "acceptance", "MODEL": "model"}
NAMED |= {"--gpu": "gpu", "--nic": "nic", "--ep": "ep", "--context": "context"}


@pytest.mark.parametrize("option", list(WRONG))
def test_wrong_values_of_predict(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in WRONG[option]:
        refused(capsys, *arguments("predict", PREDICT, option, value), named=NAMED.get(option, option))


PLAN_WRONG = {
    **{name: WRONG[name] for name in ("--nics-per-node", "--experts", "--linear", "--kv", "--attention", "--data")},
    **{name: WRONG[name] for name in ("--context", "--kernels", "MODEL", "--gpu", "--nic")},
    "--gpus": (*NO_COUNT, "0", "16..8", "8..", "..8", "8..16..24", "16,,32", "3", "1..100001"),
    "--min-tps": (*NO_NUMBER, "-1", "0", "20 tok/s", DIGITS, "1e400"),
    "--mtp": (*NO_COUNT, "1..0", "..", "0..100000", "2-3"),
    "--schedule": ("", "naiv", "two_batch", "é", LONG, ","),
    "--max-batch": (*NO_COUNT, "0", "1e6"),
    "--acceptance": ("", "abc", "nan", "-0.1", "1.5", "0.5,0.9"),
}
PLAN_NAMED = {"MODEL": "model", "--gpu": "gpu", "--nic": "nic", "--acceptance": "acceptance", "--context": "context"}


@pytest.mark.parametrize("option", list(PLAN_WRONG))
def test_wrong_values_of_plan(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in PLAN_WRONG[option]:
        refused(capsys, *arguments("plan", PLAN, option, value), named=PLAN_NAMED.get(option, option))


@pytest.mark.parametrize(("command", "base"), [("predict", PREDICT), ("plan", PLAN)])
def test_each_required_option_is_asked_for(
    command: str, base: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for option in base:
        refused(capsys, *arguments(command, base, option, None), named=option)


def test_what_is_no_correction(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("", "o_proj", "=2", "o_prj=2", "lm_haed=2", "é=1", LONG, f"{LONG}=2"):
        refused(capsys, *arguments("predict", PREDICT, "--correct", text), named="correct")


@pytest.mark.parametrize("command", ["predict", "plan", "gpus", "nics", "models"])
def test_misspelt_options_and_extra_words(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = {"predict": PREDICT, "plan": PLAN}.get(command, {})
    whole = arguments(command, base, "MODEL", base.get("MODEL")) if base else [command, "first"]
    for extra in (["--contxt=4k"], ["--dta=."], ["-x"], ["--"], ["surplus"], ["--é"]):
        if extra != ["--"]:
            refused(capsys, *whole, *extra, named=extra[0].split("=")[0])


@pytest.mark.parametrize("kind", ["gpus", "nics", "models"])
def test_unknown_names_in_the_catalog(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nope", "é", DIGITS, LONG, "index", "../gpus/h200", "/"):
        refused(capsys, kind, name, named=kind.rstrip("s"))


WRONG_EDITS = {
    "--set": (
        "",
        "gpu",
        "gpu=1",
        "gpu.=1",
        "gpu.memory.bandwidth",
        "gpu.memory.bandwidth=",
        "rack.nodes=1",
        "é=1",
        LONG,
    ),
    "bandwidth": tuple(
        f"gpu.memory.bandwidth={value}"
        for value in ("4.8", "4.8 TB", "-1 TB/s", "0 TB/s", "nan TB/s", "1e400 TB/s", "x", "[1]", f"{DIGITS} TB/s")
    ),
    "bandwith": ("gpu.memory.bandwith=5 TB/s",),
    "fp9": ("gpu.compute.fp9=1 TFLOP/s",),
    "gpus_per_node": (
        "gpu.gpus_per_node=1e9",
        "gpu.gpus_per_node=1000000000",
        "gpu.gpus_per_node=0",
        "gpu.gpus_per_node=1.5",
    ),
    "effective_rate": ("nic.effective_rate=1 PB/s", "nic.effective_rate=5"),
    "top_k": tuple(
        f"model.top_k={value}" for value in ("0", "-1", "300", "x", "1.5", "6=7", "true", DIGITS, "9" * 5000)
    ),
    "hidden": ("model.hidden=0", "model.hidden=-1", "model.hidden=many", f"model.hidden={LONG}"),
    "heads": ("model.attention.heads=0",),
    "__class__": ("gpu.__class__=x",),
}


@pytest.mark.parametrize("named", list(WRONG_EDITS))
def test_wrong_edits(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    for edit in WRONG_EDITS[named]:
        for command, base in (("predict", PREDICT), ("plan", PLAN)):
            refused(capsys, *arguments(command, base, "--set", edit), named=named)


@pytest.mark.parametrize(("command", "base"), [("predict", PREDICT), ("plan", PLAN)])
def test_each_entry_of_a_saved_question_in_turn(
    command: str, base: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.yaml"
    assert run(capsys, *arguments(command, base, "--save", str(saved)))[0] == 0
    assert run(capsys, command, str(saved))[0] == 0
    content = yaml.safe_load(saved.read_text(encoding="utf-8"))
    changed_file = tmp_path / "changed.yaml"
    for key in content[command]:
        for value in ([1], {"a": 1}, True, "", "é", LONG, -1, 10**400, float("nan")):
            changed_file.write_text(yaml.safe_dump(changed(content, (command, key), value)), encoding="utf-8")
            refused(capsys, command, str(changed_file), named=key.split("_")[0] if isinstance(value, str) else "")
        misspelt = changed(content, (command, f"{key}x"), "1")
        changed_file.write_text(yaml.safe_dump(misspelt), encoding="utf-8")
        refused(capsys, command, str(changed_file), named=f"{key}x")


@pytest.mark.parametrize(
    "content", [*(b"", b"[1]", b"{", b"\xff\xfe", b"plan", b"other: {}", b"predict: 5", b"predict: {}")]
)
def test_broken_saved_questions(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "saved.yaml"
    path.write_bytes(content)
    for command in ("predict", "plan", "explain", "sensitivity"):
        refused(capsys, command, str(path), named="saved.yaml")
        refused(capsys, command, str(tmp_path / "missing.yaml"), named="missing.yaml")


@pytest.mark.parametrize("option", ["--save", "--chart"])
def test_a_file_that_cannot_be_written(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)  # stands for a device: a rename onto it would replace it
    (tmp_path / "folder.html").mkdir()
    for path in (pipe, tmp_path / "folder.html", tmp_path / "missing" / "x.html", tmp_path / f"{LONG}.html"):
        code, out, err = run(capsys, *arguments("predict", PREDICT, option, str(path)))
        assert (code, out) == (2, "")
        assert str(path.name) in err or "missing" in err
    assert pipe.is_fifo()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder.html", "pipe.html"]


# --- config.json --------------------------------------------------------------------------------------------------

CONFIG = json.loads(CATALOG.path("models", "deepseek-v3").read_text(encoding="utf-8"))
CONFIGS: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n ",
    "truncated": json.dumps(CONFIG).encode()[:-20],
    "garbled": b"{]" + json.dumps(CONFIG).encode(),
    "binary": bytes(range(256)) * 4,
    "nulls": b"\x00" * 64,
    "utf-16": json.dumps(CONFIG).encode("utf-16"),
    "list": b"[1, 2]",
    "number": b"42",
    "text": b'"config"',
    "null": b"null",
    "empty mapping": b"{}",
    "nested": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "twice": b'{"hidden_size": 1, "hidden_size": 2}',
    "safetensors": b"\x10\x00\x00\x00\x00\x00\x00\x00{}",
    "html": b"<!doctype html><title>404</title>",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_broken_config_files(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(CONFIGS[kind])
    for given in (path, tmp_path):
        refused(capsys, "models", str(given), named="config.json")
        refused(capsys, *arguments("predict", PREDICT, "MODEL", str(given)), named="config.json")


def test_a_folder_without_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "models", str(tmp_path), named=str(tmp_path))
    (tmp_path / "config.json").mkdir()
    refused(capsys, "models", str(tmp_path), named=str(tmp_path))
    refused(capsys, "models", str(tmp_path / "config.json"), named="config.json")


def test_an_unknown_architecture_names_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    for key, value in (("model_type", "deepseek_v33"), ("model_type", "mamba2"), ("model_type", LONG)):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps({**CONFIG, key: value}), encoding="utf-8")
        err = refused(capsys, "models", str(path), named="model_type")
        assert "deepseek_v3" in err


WRONG_FIGURES: dict[str, Any] = {
    "negative": -1,
    "zero": 0,
    "huge": 10**30,
    "very huge": 10**400,
    "real": 1.5,
    "text": "many",
    "list": [1],
    "mapping": {"a": 1},
    "true": True,
    "nan": float("nan"),
    "infinite": float("inf"),
}
COUNTS = (
    "hidden_size vocab_size num_hidden_layers num_attention_heads n_routed_experts num_experts_per_tok "
    "intermediate_size moe_intermediate_size kv_lora_rank v_head_dim qk_nope_head_dim qk_rope_head_dim"
).split()


@pytest.mark.parametrize("key", COUNTS)
def test_each_figure_of_a_config_in_turn(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"missing": {k: v for k, v in CONFIG.items() if k != key}}
    wrong["misspelt"] = {**wrong["missing"], f"{key}s": CONFIG[key]}
    wrong |= {name: {**CONFIG, key: value} for name, value in WRONG_FIGURES.items()}
    for name, content in wrong.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        refused(capsys, "models", str(path), named=key)


# --- hardware files -----------------------------------------------------------------------------------------------

Path_ = tuple[str, ...]
TEXTS = {("name",), ("vendor",), ("architecture",)}
OPTIONAL = {("memory", "capacity_is"), ("scale_up",), ("gpus_per_node",), ("tdp",), ("price",), ("compute", "int8")}
OPTIONAL |= {("sms",), ("l2",), ("gpu_initiated",)}
MISSING = object()
VALUES: dict[str, Any] = {
    "missing": MISSING,
    "negative": "-1 GB/s",
    "negative number": -1,
    "nan": float("nan"),
    "nan text": "nan GB",
    "infinite": float("inf"),
    "infinite text": "inf TB/s",
    "huge": "1e40 GB",
    "huge number": 10**400,
    "unit": "5 parsec",
    "other unit": "5 K",
    "zero": 0,
    "list": [1, 2],
    "mapping": {"a": 1},
    "empty": "",
    "true": True,
    "unicode": "é",
    "very long": LONG,
}


def places(content: dict[str, Any], above: Path_ = ()) -> Iterator[Path_]:
    for key, value in content.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, (*above, key))


def changed(content: dict[str, Any], place: Path_, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(content)
    holder = result
    for key in place[:-1]:
        holder = holder[key]
    if value is MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return result


def base_file(kind: Any, name: str) -> dict[str, Any]:
    content = yaml.safe_load(CATALOG.path(kind, name).read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return {key: value for key, value in content.items() if key not in ("sources", "assumed")}


def write(folder: Path, kind: str, content: dict[str, Any]) -> str:
    (folder / kind).mkdir(exist_ok=True)
    name = f"mine-{len(list((folder / kind).iterdir()))}"  # files are read once per process
    (folder / kind / f"{name}.yaml").write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    return name


GPU, NIC = base_file("gpus", "h200"), base_file("nics", "cx7")


@pytest.mark.parametrize("place", list(places(GPU)), ids=".".join)
def test_each_field_of_a_gpu_file_in_turn(place: Path_, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, value in VALUES.items():
        allowed = (value is MISSING and place in OPTIONAL) or (isinstance(value, str) and place in TEXTS)
        name = write(tmp_path, "gpus", changed(GPU, place, value))
        if allowed:
            assert run(capsys, "gpus", name, "--data", str(tmp_path))[0] == 0
        elif place[0] == "compute" and len(place) > 1 and value is MISSING:
            code, _, err = run(capsys, *arguments("predict", PREDICT, "--gpu", name), "--data", str(tmp_path))
            assert code == 2
            assert place[-1] in err
        else:
            refused(capsys, "gpus", name, "--data", str(tmp_path), named=place[-1])
            (
                refused(
                    capsys, *arguments("predict", PREDICT, "--gpu", name), "--data", str(tmp_path), named=place[-1]
                ),
                kind,
            )


@pytest.mark.parametrize("place", list(places(GPU)), ids=".".join)
def test_each_field_of_a_gpu_file_misspelt(place: Path_, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holder: Any = GPU
    for key in place[:-1]:
        holder = holder[key]
    misspelt = changed(changed(GPU, place, MISSING), (*place[:-1], f"{place[-1]}x"), holder[place[-1]])
    name = write(tmp_path, "gpus", misspelt)
    err = refused(capsys, "gpus", name, "--data", str(tmp_path), named=f"{place[-1]}x")
    assert f"did you mean {place[-1]}" in err


@pytest.mark.parametrize("place", list(places(NIC)), ids=".".join)
def test_each_field_of_a_nic_file_in_turn(place: Path_, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in VALUES.values():
        if (place in TEXTS and isinstance(value, str)) or (place == ("latency",) and value == 0):
            continue
        if place in OPTIONAL and value is MISSING:
            continue
        name = write(tmp_path, "nics", changed(NIC, place, value))
        refused(capsys, "nics", name, "--data", str(tmp_path), named=place[-1])


@pytest.mark.parametrize("kind", ["gpus", "nics"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"a: b: c", b"name: x\nname: y", b"!!python/x 1"])
def test_broken_hardware_files(kind: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / kind).mkdir()
    (tmp_path / kind / "mine.yaml").write_bytes(content)
    refused(capsys, kind, "mine", "--data", str(tmp_path), named="mine.yaml")
    refused(capsys, kind, "--data", str(tmp_path), named="mine.yaml")


KERNELS = ("gemm_fp8.csv", "gemm_fp8.yaml")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("n,", "width,", "n"),
        ("seconds", "time", "seconds"),
        ("\n", "\n,,,,\n", "line 2"),
        ("\n", "\nnan,1,1,1\n", "line 2"),
        ("\n", "\n-1,1,1,1\n", "line 2"),
        ("\n", "\nmany,1,1,1\n", "line 2"),
    ],
)
def test_broken_kernel_tables(
    old: str, new: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = CATALOG.kernel_table("h800", "gemm_fp8")
    assert source is not None
    folder = tmp_path / "kernels" / "h800"
    folder.mkdir(parents=True)
    text = source.read_text(encoding="utf-8")
    assert old in text
    (folder / "gemm_fp8.csv").write_text(text.replace(old, new, 1), encoding="utf-8")
    question = [*arguments("predict", PREDICT, "--gpu", "h800"), "--data", str(tmp_path)]
    refused(capsys, *question, named="gemm_fp8.yaml")  # a table must have its sidecar
    sidecar = source.with_suffix(".yaml").read_text(encoding="utf-8")
    (folder / "gemm_fp8.yaml").write_text(sidecar, encoding="utf-8")
    refused(capsys, *question, named=named)


# --- as a process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "deepseek-v3", "--gpu", "h201", "--ep", "32", "--batch", "64", "--context", "4k"],
        ["plan", "deepseek-v3", "--gpu", "h200", "--gpus", "32", "--context", "nan", "--min-tps", "20"],
        ["models", "/"],
        ["nonsense"],
        ["--nonsense"],
    ],
)
def test_a_process_exits_2_without_traceback(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moeplan", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("moeplan: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "faults"),
    [
        ("plan deepseek-v3 --gpu h900 --nic foo --gpus 16 --context 5k --min-tps twenty", 3),
        ("plan deepseek-v3 --gpu h800 --gpus 16 --context 0 --min-tps 0", 2),
        ("plan deepseek-v3", 4),
        (
            "plan deepseek-v3 --cluster no,nor --gpus 16 --context 5k --min-tps 20 --kv fp3 --attention q --schedule s",
            5,
        ),
        ("plan deepseek-v3 --gpu h800 --gpus 16 --context 5k --min-tps 20 --kv fp3 --set gpu.zzz=1 --set model.y=2", 3),
        ("predict deepseek-v3 --gpu h800 --ep 8 --batch 1 --context 5k --kv fp3 --attention q --redundant -4", 3),
        ("plan deepsek-v3 --gpu h800 --gpus x --context 5k --min-tps 20 --mtp a --schedule foo", 4),
        ("predict deepseek-v3 --gpu h900 --ep 0 --batch -1 --context 5z --mtp 99", 5),
        ("predict nothing --gpu h800 --ep 8 --batch 1 --context 5k --correct a=b --acceptance 2", 3),
    ],
)
def test_every_fault_is_named_at_once(capsys: pytest.CaptureFixture[str], command: str, faults: int) -> None:
    code, out, err = run(capsys, *command.split())
    assert (code, out) == (2, "")
    assert f": {faults} faults" in err
