"""Who answers for a kernel's time, from the command line: own tables and chips, --kernels, --strict, bad files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import typed

from moeplan.specs.catalog import Catalog

DATA = Catalog.standard().roots[-1]
STEP = "predict deepseek-v3 --ep 32 --batch 64 --context 4096"
SIDECAR = "{title: mine, gpu: H200, kernel: k, precision: fp8, source: me, licence: CC0, date: '2026-05'%s}"


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[Any, str, str]:
    return typed.run(capsys, *line.split())


def operators(out: str) -> dict[str, dict[str, Any]]:
    """Of the layers with experts, by name."""
    stages = json.loads(out)["layers"][1]["stages"]
    return {operator["operator"]: operator for stage in stages for operator in stage["operators"]}


def write_table(folder: Path, gpu: str, rows: str, more: str = "") -> None:
    place = folder / "kernels" / gpu
    place.mkdir(parents=True)
    (place / "gemm_fp8.csv").write_text(f"m,n,k,seconds\n{rows}\n")
    (place / "gemm_fp8.yaml").write_text(SIDECAR % more)


def test_an_own_table_answers_first_and_only_its_shapes_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path, "h200", "64,7168,16384,50e-6")
    code, out, _ = run(capsys, f"{STEP} --schedule naive --gpu h200 --data {tmp_path} --json")
    found = operators(out)
    assert code == 0
    assert (found["o_proj"]["origin"], found["o_proj"]["source"]) == ("measured", "mine")
    assert found["o_proj"]["seconds"] == pytest.approx(50e-6)
    assert found["shared_gate_up"]["origin"] in ("extrapolated", "fitted")


@pytest.mark.parametrize(
    ("rows", "more", "word"),
    [
        ("64,7168,16384,50", "", "write seconds"),
        ("64,7168,16384,1e-9", "", "write seconds"),
        ("1e300,7168,16384,50e-6", "", "beyond any real shape"),
        ("64,7168,16384,50e-6", ", cold_share: 0", "cold_share"),
        ("64,7168,16384,50e-6", ", cold_share: 5", "cold_share"),
    ],
)
def test_what_no_kernel_takes_is_refused(
    rows: str, more: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path, "h200", rows, more)
    code, out, err = run(capsys, f"{STEP} --gpu h200 --data {tmp_path}")
    assert (code, out) == (2, "")
    assert word in err


def test_an_own_chip_of_a_packaged_name_was_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpus").mkdir()
    text = (DATA / "gpus" / "h800.yaml").read_text(encoding="utf-8")
    (tmp_path / "gpus" / "h800.yaml").write_text(text.replace("3.35 TB/s", "8 TB/s"), encoding="utf-8")
    _, plain, _ = run(capsys, f"{STEP} --gpu h800 --json")
    _, out, _ = run(capsys, f"{STEP} --gpu h800 --data {tmp_path} --json")
    before, after = operators(plain), operators(out)
    assert before["o_proj"]["origin"] == "measured"
    assert after["o_proj"]["origin"] == "extrapolated"
    assert "packaged chip" in after["o_proj"]["source"]
    assert after["o_proj"]["seconds"] < before["o_proj"]["seconds"]


def test_sources_left_out_do_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, f"{STEP} --gpu h800 --kernels fitted,assumed --json")
    origins = {operator["origin"] for operator in operators(out).values()}
    assert origins <= {"fitted", "assumed"}
    code, _, err = run(capsys, f"{STEP} --gpu b200 --kernels table")
    assert code == 2
    assert "no source answers for B200" in err


def test_a_plan_leaves_out_what_strict_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """With an fp8 cache the core's kernel is another precision's on H800: bf16 is what remains."""
    line = "plan deepseek-v3 --gpu h800 --gpus 16 --context 5k --min-tps 10 --max-batch 64 --strict --json"
    code, out, _ = run(capsys, line)
    assert code == 0
    assert json.loads(out)["best"][0]["deployment"]["precision"]["kv"] == "bf16"
    code, _, err = run(capsys, line.replace("--strict", "--strict --kv fp8"))
    assert code == 2
    assert "mla_core" in err


def test_the_error_of_a_fit_stands_beside_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, f"{STEP} --gpu h200")
    assert "fitted ±" in out
    _, out, _ = run(capsys, f"{STEP} --gpu h200 --json")
    error = operators(out)["mla_core"]["error"]
    assert 0 < error["median"] < error["p90"] < 1


def test_a_chip_unlike_any_fitted_one_has_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpus").mkdir()
    text = (DATA / "gpus" / "h200.yaml").read_text(encoding="utf-8").replace("sms: 132", "sms: 8")
    (tmp_path / "gpus" / "odd.yaml").write_text(text, encoding="utf-8")
    _, out, _ = run(capsys, f"{STEP} --gpu odd --data {tmp_path} --json")
    found = operators(out)["o_proj"]
    assert found["error"] is None
    assert "of another balance than any of them (SMs)" in found["source"]


@pytest.mark.parametrize(
    "rows", ["h800,fp8,NT,64,7168", "h800,fp8,batched b=0,64,128,512,10", "h800,fp8,NT,1e300,1,1,5"]
)
def test_odd_rows_are_skipped_with_a_reason(rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(f"gpu,precision,layout,m,n,k,latency_us\n{rows}\nh800,fp8,NT,64,7168,16384,45\n")
    code, out, _ = run(capsys, f"validate kernels {path} --json")
    content = json.loads(out)
    assert code == 0
    assert sum(content["skipped"].values()) == 1
    assert content["families"]["h800, dense gemm fp8"]["n"] == 1


def test_a_file_without_rows_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.csv"
    path.write_text("gpu,precision,layout,m,n,k,latency_us\n")
    code, _, err = run(capsys, f"validate kernels {path}")
    assert code == 2
    assert "there are none" in err


def test_a_worse_fit_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The packaged table of H800 again, four rows of it: too few to do better than what it was fitted to before."""
    place = tmp_path / "kernels" / "h800"
    place.mkdir(parents=True)
    table = DATA / "kernels" / "h800" / "gemm_fp8.csv"
    lines = table.read_text().splitlines()
    (place / "gemm_fp8.csv").write_text("\n".join([lines[0], *lines[1:50:13]]) + "\n")
    shutil.copy(table.with_suffix(".yaml"), place / "gemm_fp8.yaml")
    code, out, _ = run(capsys, f"calibrate kernels {place / 'gemm_fp8.csv'} --data {tmp_path} --json")
    content = json.loads(out)
    assert code == 0
    assert bool(content["written"]) != content["fits"][0]["worse"]
    code, out, _ = run(capsys, f"calibrate kernels {place / 'gemm_fp8.csv'} --data {tmp_path} --json --force")
    assert len(json.loads(out)["written"]) == 1


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("kernels/h200/gemm_fp9.csv", ["gemm_fp9", "gemm_fp8"]),
        ("kernels/h2000/gemm_fp8.csv", ["h2000", "h200"]),
        ("kernels/fits/h200/gemm.fp8_blok.own.yaml", ["fp8_blok", "fp8_block"]),
        ("kernels/fits/h200/gem.fp8_block.own.yaml", ["'gem'", "gemm"]),
        ("kernels/fits/h2000/gemm.fp8_block.own.yaml", ["h2000"]),
        ("kernels/fits/h200/gemm.fp8_block.own.yml", [".yaml"]),
    ],
)
def test_a_file_that_nothing_would_find_is_an_error(
    path: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("x")
    code, out, err = run(capsys, f"{STEP} --gpu h200 --data {tmp_path}")
    assert (code, out) == (2, "")
    assert path in err
    assert all(word in err for word in words)


def test_a_sidecar_of_another_chip_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path, "h100", "64,7168,16384,50e-6")  # whose sidecar says H200
    code, _, err = run(capsys, f"{STEP} --gpu h100 --data {tmp_path}")
    assert code == 2
    assert "in the folder of h100" in err
