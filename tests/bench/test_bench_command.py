"""moeplan bench from the command line: dry runs as they are, measurements with a fake timer and a kernel on the CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeTimer, NumpyGrouped, fake_lab, shape

from moeplan.bench import lab as laboratory
from moeplan.bench import libraries
from moeplan.bench.backends.base import Backend
from moeplan.bench.expected import expected
from moeplan.bench.family import COLUMNS, COMMANDS
from moeplan.cli import main
from moeplan.kernels.origin import Origin
from moeplan.kernels.table import read_table
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster

NAMES = (*COLUMNS["grouped_gemm_fp8"], "seconds")
SHAPES = [shape(groups, m) for groups in (2, 4) for m in (8, 16)]
Run = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["bench", *arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Arguments of a measuring run in tmp_path with the given timer instead of a GPU."""
    text = "\n".join(["groups,m,n,k", *(",".join(map(str, item.values())) for item in SHAPES)])
    (tmp_path / "shapes.csv").write_text(text)

    def arrange(timer: FakeTimer, backend: type[Backend] = NumpyGrouped, slug: str | None = "h800") -> list[str]:
        monkeypatch.setattr(laboratory, "open_lab", lambda *_: fake_lab(timer, backend, slug))
        where = ["--shapes", str(tmp_path / "shapes.csv"), "--out", str(tmp_path / "out")]
        return ["grouped-gemm", *where, "--budget", "0 s", "--repetitions", "4", "--warmup", "2"]

    return arrange


def table_of(folder: Path) -> Path:
    return folder / "out" / "kernels" / "h800" / "grouped_gemm_fp8.csv"


def machine(data: Path | None = None) -> Machine:
    catalog = Catalog.standard(data)
    gpu = catalog.gpu("h800")
    return Machine.of(Cluster(gpu=gpu, nic=catalog.nic("cx7"), gpus_per_node=8, nics_per_node=8), catalog)


# --- dry runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_dry_run_lists_shapes_with_predictions(name: str, run: Run) -> None:
    code, out, err = run(name, "--gpu", "h800", "--dry-run")
    assert (code, err) == (0, "")
    head, columns, first, *_ = out.splitlines()
    assert "nothing is measured" in head
    assert "predicted µs" in columns
    assert int(head.split()[0]) == len(out.splitlines()) - 2
    assert float(first.split()[len(COLUMNS[COMMANDS[name][0]])]) > 0


def test_a_dry_run_predicts_what_the_packaged_table_holds(run: Run) -> None:
    path = Catalog.standard().kernel_table("h800", "grouped_gemm_fp8")
    assert path is not None
    code, out, _ = run("grouped-gemm", "--gpu", "h800", "--shapes", str(path), "--dry-run", "--json")
    content = json.loads(out)
    assert (code, content["schema"], content["dry_run"]) == (0, "moeplan.bench/1", True)
    by_shape = {tuple(row["shape"].values()): row for row in content["rows"]}
    for row in read_table(path, NAMES).rows:
        found = by_shape[tuple(int(row[name]) for name in COLUMNS["grouped_gemm_fp8"])]
        assert found["origin"] == "measured"
        assert found["predicted_s"] == pytest.approx(row["seconds"])
        assert "measured_s" not in found


def test_a_dry_run_writes_nothing(run: Run, tmp_path: Path) -> None:
    assert run("copy", "--gpu", "h800", "--dry-run", "--out", str(tmp_path / "out"))[0] == 0
    assert not list(tmp_path.iterdir())


def test_the_direction_chooses_the_shapes(run: Run) -> None:
    seconds = {}
    for direction in ("dispatch", "combine"):
        code, out, _ = run("all-to-all", "--gpu", "h800", "--direction", direction, "--dry-run", "--json")
        assert code == 0
        seconds[direction] = [row["predicted_s"] for row in json.loads(out)["rows"]]
    assert all(one < other for one, other in zip(seconds["dispatch"], seconds["combine"], strict=True))


# --- wrong use ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("gemm --gpu h800 --preset grouped-gemm-article --dry-run", "is of grouped_gemm_fp8"),
        ("gemm --gpu h800 --preset deepseek-dens --dry-run", "did you mean deepseek-dense "),
        ("gemm --gpu h80 --dry-run", "did you mean"),
        ("gemm --gpu h800 --shapes x.csv --preset deepseek-dense --dry-run", "beside --shapes"),
        ("gemm --gpu h800 --shapes no.csv --dry-run", "cannot be read"),
        ("gemm --gpu h800 --dry-run --budget 3", "has no unit"),
        ("gemm --gpu h800 --dry-run --budget nan", "is no number"),
        ("gemm --gpu h800 --dry-run --repetitions 0", "range"),
        ("grouped-gemm --gpu h800 --dry-run --block-m 8", "--block-m"),
        ("grouped-gemm --gpu h800 --dry-run --block-m 16,48", "powers of two"),
        ("all-to-all --gpu h800 --dry-run --nic no", "unknown name"),
        ("gem", "No such command"),
    ],
)
def test_wrong_use(arguments: str, words: str, run: Run) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert words in err


def test_a_missing_torch_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "present", lambda _: False)
    code, out, err = run("gemm", "--gpu", "h800")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "torch: is not installed" in err
    assert "--dry-run" in err


def test_a_missing_torch_as_json(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "present", lambda _: False)
    code, out, _ = run("gemm", "--gpu", "h800", "--json")
    assert code == 2
    assert json.loads(out)["faults"][0]["path"] == "torch"


def test_no_device_library_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    for name in ("torch", "triton", "deep_gemm", "flash_mla", "flashinfer", "deep_ep"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    source = Path(libraries.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"}
    program = (
        "import moeplan.cli.bench, moeplan.bench.lab\n"
        "from moeplan.cli import main\nmain(['bench', 'gemm', '--gpu', 'h800', '--dry-run'])"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_device_libraries_have_one_door() -> None:
    statement = re.compile(r"^\s*(import|from) (torch|triton|deep_gemm|flash_mla|flashinfer|deep_ep)\b", re.MULTILINE)
    for path in Path(libraries.__file__).parents[1].rglob("*.py"):
        assert not statement.search(path.read_text(encoding="utf-8")), path


# --- measuring ----------------------------------------------------------------------------------------------------


def test_the_prediction_stands_there_before_anything_is_timed(
    run: Run, measuring: Callable[..., list[str]], tmp_path: Path
) -> None:
    timer = FakeTimer(seconds=repeat(25e-6), hook=lambda _: print("⟨timed⟩", end="", flush=True))
    code, out, err = run(*measuring(timer))
    assert (code, err) == (0, "")
    title, header, *lines = out.splitlines()
    assert title.startswith("numpy")
    assert title.endswith(str(table_of(tmp_path)))
    assert header.split()[:4] == list(COLUMNS["grouped_gemm_fp8"])
    assert len(lines) == len(SHAPES) + 1
    for line, item in zip(lines, SHAPES, strict=False):
        before, _, after = line.partition("⟨timed⟩")
        predicted = float(expected("grouped_gemm_fp8", item, machine()).seconds)
        assert before.split() == [*map(str, item.values()), f"{predicted * 1e6:,.1f}"]
        cells = after.replace("⟨timed⟩", "").split()
        assert cells[:4] == ["25.0", "25.0", "25.0", "4"]
        assert cells[4] == f"{predicted / 25e-6 - 1:+.1%}"


def test_the_table_is_one_that_data_takes_up(
    run: Run, measuring: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    item = SHAPES[0]
    before = expected("grouped_gemm_fp8", item, machine())
    seconds = 3 * float(before.seconds)
    assert run(*measuring(FakeTimer(seconds=repeat(seconds))))[0] == 0
    after = expected("grouped_gemm_fp8", item, machine(tmp_path / "out"))
    assert float(after.seconds) == pytest.approx(seconds)
    assert after.origin is Origin.MEASURED
    assert "numpy" in after.source

    question = ["predict", "deepseek-v3", "--gpu", "h800", "--ep", "128", "--batch", "128", "--context", "4k", "--json"]
    steps = []
    for data in ([], ["--data", str(tmp_path / "out")]):
        with pytest.raises(SystemExit):
            main([*question, *data])
        steps.append(json.loads(capsys.readouterr().out)["metrics"]["step_s"])
    assert steps[1] > steps[0]


def test_the_sidecar_says_everything(run: Run, measuring: Callable[..., list[str]], tmp_path: Path) -> None:
    assert run(*measuring(FakeTimer()))[0] == 0
    found = read_table(table_of(tmp_path), NAMES).sidecar
    assert found.gpu == "H800-SXM5-80GB"
    assert found.source == "moeplan bench"
    assert found.kernel.startswith("numpy")
    assert found.driver == "driver 570.86"
    assert found.command.startswith("moeplan bench grouped-gemm --shapes ")
    assert "--warmup 2 --repetitions 4 --budget '0 s'" in found.command
    assert "a fake timer" in found.note
    assert found.cold_share is None
    assert found.licence
    assert len(found.date) == len("2026-01-31")


def interrupted_at(batch: int) -> Callable[[FakeTimer], None]:
    ticks = count(1)

    def hook(_: FakeTimer) -> None:
        if next(ticks) == batch:
            raise KeyboardInterrupt

    return hook


def test_an_interruption_loses_nothing_and_the_same_command_goes_on(
    run: Run, measuring: Callable[..., list[str]], tmp_path: Path
) -> None:
    times = iter([1e-6] * 7 + [2e-6] * 7 + [9.0] * 3)
    arguments = measuring(FakeTimer(seconds=times, hook=interrupted_at(8)))  # in the warm-up of the third shape
    code, _, err = run(*arguments)
    assert code == 130
    assert f"2 of 4 rows are in {table_of(tmp_path)}" in err
    assert [row["seconds"] for row in read_table(table_of(tmp_path), NAMES).rows] == [1e-6, 2e-6]

    timer = FakeTimer(seconds=repeat(3e-6))
    code, out, _ = run(*measuring(timer))
    assert code == 0
    assert "2 of 4 shapes are there already" in out
    assert timer.batches == [1, 2, 4] * 2
    rows = read_table(table_of(tmp_path), NAMES).rows
    assert [row["seconds"] for row in rows] == [1e-6, 2e-6, 3e-6, 3e-6]
    assert [(row["groups"], row["m"]) for row in rows] == [(item["groups"], item["m"]) for item in SHAPES]

    timer = FakeTimer()
    assert run(*measuring(timer))[0] == 0
    assert timer.batches == []
    assert len(table_of(tmp_path).with_suffix(".log.jsonl").read_text().splitlines()) == 4


def test_an_interruption_before_the_first_row_leaves_no_table(
    run: Run, measuring: Callable[..., list[str]], tmp_path: Path
) -> None:
    code, out, err = run(*measuring(FakeTimer(hook=interrupted_at(1))), "--json")
    assert code == 130
    assert f"0 of 4 rows are in {table_of(tmp_path)}" in err
    assert json.loads(out)["interrupted"] is True
    assert table_of(tmp_path).with_suffix(".yaml").exists()
    expected("grouped_gemm_fp8", SHAPES[0], machine(tmp_path / "out"))  # --data does not mind


class Half(NumpyGrouped):
    """Gets one shape wrong and breaks on another."""

    wrong = (SHAPES[1],)
    breaks = (SHAPES[2],)


def test_a_wrong_result_gives_no_row(run: Run, measuring: Callable[..., list[str]], tmp_path: Path) -> None:
    code, out, _ = run(*measuring(FakeTimer(), Half))
    assert code == 1
    assert "refused: result off by 0.5 of the reference" in out
    assert "refused: RuntimeError: CUDA error: out of memory" in out
    assert "2 rows written" in out
    assert "2 refused" in out
    assert [row["m"] for row in read_table(table_of(tmp_path), NAMES).rows] == [8, 16]
    log = [json.loads(line) for line in table_of(tmp_path).with_suffix(".log.jsonl").read_text().splitlines()]
    assert [("refused" in line) for line in log] == [False, True, True, False]


def test_one_document_at_the_end(run: Run, measuring: Callable[..., list[str]], tmp_path: Path) -> None:
    code, out, _ = run(*measuring(FakeTimer(seconds=repeat(20e-6)), Half), "--json")
    content = json.loads(out)
    assert code == 1
    assert content["interrupted"] is False
    assert content["tables"] == [str(table_of(tmp_path))]
    good, wrong, _, _ = content["rows"]
    assert good["measured_s"] == good["p10_s"] == good["p90_s"] == 20e-6
    assert good["prediction_error"] == pytest.approx(good["predicted_s"] / 20e-6 - 1)
    assert good["result_error"] < 1e-3
    assert "measured_s" not in wrong


class Tiled(NumpyGrouped):
    """Takes a row tile."""

    tiles = True


def test_each_row_tile_has_a_table_of_its_own(run: Run, measuring: Callable[..., list[str]], tmp_path: Path) -> None:
    assert run(*measuring(FakeTimer(), Tiled), "--block-m", "16,32")[0] == 0
    for tile in (16, 32):
        path = tmp_path / "out" / f"block_m_{tile}" / "kernels" / "h800" / "grouped_gemm_fp8.csv"
        assert read_table(path, NAMES).sidecar.kernel.endswith(f"block_m {tile}")
    code, _, err = run(*measuring(FakeTimer()), "--block-m", "16")
    assert code == 2
    assert "chooses its own tile" in err


def test_another_gpu_than_the_one_named(run: Run, measuring: Callable[..., list[str]]) -> None:
    code, _, err = run(*measuring(FakeTimer()), "--gpu", "h20")
    assert code == 2
    assert "this machine has NVIDIA H800" in err


def test_a_gpu_that_nobody_knows_needs_a_name(run: Run, measuring: Callable[..., list[str]], tmp_path: Path) -> None:
    code, _, err = run(*measuring(FakeTimer(), slug=None))
    assert code == 2
    assert "is not known" in err
    assert run(*measuring(FakeTimer(), slug=None), "--gpu", "h20")[0] == 0
    assert (tmp_path / "out" / "kernels" / "h20" / "grouped_gemm_fp8.csv").exists()


def test_another_kernel_may_not_add_to_the_table(run: Run, measuring: Callable[..., list[str]]) -> None:
    class Other(NumpyGrouped):
        name = "something else"

    assert run(*measuring(FakeTimer()))[0] == 0
    code, _, err = run(*measuring(FakeTimer(), Other))
    assert code == 2
    assert "something else" in err
    assert "--out" in err


def test_a_dry_run_of_a_shape_that_costs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An all-to-all of one rank moves nothing and takes no time: no rate to print, and no traceback."""
    shapes = tmp_path / "one.csv"
    shapes.write_text("ep,tokens,hidden,top_k\n1,16,7168,8\n")
    with pytest.raises(SystemExit) as stop:
        main(["bench", "all-to-all", "--gpu", "h200", "--shapes", str(shapes), "--dry-run"])
    assert stop.value.code == 0
    assert "7168" in capsys.readouterr().out
