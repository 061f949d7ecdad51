"""`moeplan calibrate` from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeplan.cli import main
from moeplan.kernels.fit import read_fit
from moeplan.specs.catalog import Catalog

pytest.importorskip("scipy", reason="scipy is not installed: pip install 'moeplan[fit]'")
CATALOG = Catalog.standard()
FLASHINFER = "gqa_decode.bf16-fp8.flashinfer"  # of one chip's packaged table alone
WRITTEN = "kernels/fits/h20-141/gqa_decode.bf16-fp8.own.yaml"


def run(*arguments: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as done:
        main(["calibrate", *arguments])
    assert done.value.code == code


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The packaged rows of H20 as if H20-141 had been measured."""
    path = tmp_path / "kernels" / "h20-141" / "gqa_decode_fp8.csv"
    path.parent.mkdir(parents=True)
    source = CATALOG.kernel_table("h20", "gqa_decode_fp8")
    assert source is not None
    path.write_text(source.read_text())
    path.with_suffix(".yaml").write_text(source.with_suffix(".yaml").read_text())
    return path


def test_kernels_writes_where_predictions_look_first(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("kernels", str(table), "--data", str(tmp_path), "--json")
    content = document(capsys)
    assert content["schema"] == "moeplan.calibrate-kernels/1"
    assert content["written"] == [str(tmp_path / WRITTEN)]
    (fit,) = content["fits"]
    assert fit.keys() == {
        *("gpu", "kind", "rows", "held_out", "before", "before_from", "after", "worse", "ratio", "suspect"),
        "parameters",
    }
    assert (fit["gpu"], fit["kind"], fit["rows"]) == ("h20-141", "gqa_decode_fp8", 34)
    assert fit["after"].keys() == {"rows", "median", "p90", "bias"}
    assert fit["after"]["rows"] == fit["before"]["rows"] == fit["held_out"]
    assert fit["after"]["median"] < fit["before"]["median"]
    file = read_fit(tmp_path / WRITTEN)
    assert file.parameters == fit["parameters"]
    assert file.error.median == pytest.approx(fit["after"]["median"], rel=1e-3)


def test_kernels_prints_a_row_per_kind_and_the_file(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("kernels", str(table), "--data", str(tmp_path), "--name", "second-try_2")
    text = capsys.readouterr().out
    assert "h20-141, gqa_decode_fp8" in text
    assert "before: median" in text
    assert f"written: {tmp_path / WRITTEN.replace('own', 'second-try_2')}" in text.replace("\n", "")
    assert (tmp_path / WRITTEN.replace("own", "second-try_2")).is_file()


def test_a_dry_run_writes_nothing_and_needs_no_folder(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOEPLAN_DATA", raising=False)
    run("kernels", str(table), "--dry-run", "--json")
    assert document(capsys)["written"] == []
    run("kernels", str(table), "--dry-run", "--data", str(tmp_path))
    assert "written" not in capsys.readouterr().out
    assert not (tmp_path / "kernels" / "fits").exists()


def test_without_a_folder_nothing_is_written(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOEPLAN_DATA", raising=False)
    run("kernels", str(table), code=2)
    assert "--data: is missing: a fit is written to your own folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../other", "a.b", "", "a b"])
def test_a_name_is_no_path(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run("kernels", str(table), "--data", str(tmp_path), "--name", name, code=2)
    assert "use letters, digits, - and _" in capsys.readouterr().err
    assert not (tmp_path / "kernels" / "fits").exists()


def test_a_file_of_no_known_kind_is_an_error_not_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "h20" / "gqa.csv"
    run("kernels", str(wrong), "--dry-run", code=2)
    error = capsys.readouterr().err
    assert str(wrong) in error.replace("\n", "")
    assert "Traceback" not in error


def test_again_prints_every_error_and_writes_below_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("again", FLASHINFER, "--out", str(tmp_path), "--json")
    content = document(capsys)
    assert content["schema"] == "moeplan.calibrate-again/1"
    (found,) = content["fits"]
    assert (found["folder"], found["fit"]["gpus"]) == ("h20", ["h20"])
    assert 0 < found["fit"]["error"]["median"] < 0.1
    written = read_fit(tmp_path / "h20" / f"{FLASHINFER}.yaml")
    assert written.parameters == found["fit"]["parameters"]
    assert [source.table for source in written.samples] == ["gqa_decode_fp8"]


def test_again_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    run("again", FLASHINFER)
    text = capsys.readouterr().out
    title = next(iter(text.splitlines()))
    assert "FlashInfer" in title
    assert any(line.split()[:2] == ["fitted", "h20"] for line in text.splitlines())


def test_again_of_an_unknown_recipe_names_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    run("again", FLASHINFER.replace("flash", "flahs"), code=2)
    assert "did you mean gqa_decode.bf16-fp8.flashinfer" in capsys.readouterr().err


def test_a_suspect_table_is_written_only_when_forced(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *rows = table.read_text().splitlines()
    slow = [",".join([*row.split(",")[:-1], repr(8 * float(row.split(",")[-1]))]) for row in rows]
    table.write_text("\n".join([head, *slow, ""]))
    run("kernels", str(table), "--data", str(tmp_path))
    text = capsys.readouterr().out
    assert "of the expected speed" in text
    assert "written:" not in text
    assert not (tmp_path / WRITTEN).exists()
    run("kernels", str(table), "--data", str(tmp_path), "--force")
    assert (tmp_path / WRITTEN).is_file()
