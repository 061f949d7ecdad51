"""One's own tables: errors before and after on shapes left out, the fit found first, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.calibrate.fit_text import fit_text
from moeplan.calibrate.tables import Calibration, calibrate_tables, file_name
from moeplan.errors import InputError
from moeplan.kernels.choice import chosen_fit
from moeplan.kernels.fit import fit_of
from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.measured import kind_named
from moeplan.kernels.origin import Origin
from moeplan.kernels.sources import KernelSources
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import weight_format

pytest.importorskip("scipy", reason="scipy is not installed: pip install 'moeplan[fit]'")
CATALOG = Catalog.standard()
FP8 = {"weights": "fp8_block"}
SHAPES = list(itertools.product([8, 64, 128, 1024], [512, 4096, 24576], [512, 7168]))
SIDECAR = "{{title: my table, gpu: {gpu}, kernel: a, precision: fp8, source: b, licence: c, date: '2026'}}\n"


def gpu_of(slug: str) -> Gpu:
    return CATALOG.gpu(slug)


def slower(slug: str, factor: float = 1.4) -> list[tuple[int, int, int, float]]:
    """Rows of a step on a GPU whose kernel starts late and reaches less bandwidth than what is known of it."""
    chosen = chosen_fit(CATALOG, gpu_of(slug), "gemm", FP8)
    assert chosen is not None
    known = dict(chosen.fit.parameters)
    kernel = replace(
        chosen.fit, parameters={**known, "floor": known["floor"] * 2, "bandwidth": known["bandwidth"] / factor}
    )
    result = []
    for m, n, k in SHAPES:
        shape = {"m": float(m), "n": float(n), "k": float(k), "converted": 1.0}
        result.append((m, n, k, float(kernel.parts(replace(gpu_of(slug), l2=None), shape).seconds)))
    return result


def write(
    path: Path, rows: list[tuple[int, int, int, float]], gpu: str = "somebody's", header: str = "m,n,k,seconds"
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(repr, row)) for row in rows]
    path.write_text("\n".join([header, *lines, ""]))
    path.with_suffix(".yaml").write_text(SIDECAR.format(gpu=gpu))
    return path


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Calibration]:
    folder = tmp_path_factory.mktemp("mine")
    table = write(folder / "kernels" / "h200" / "gemm_fp8.csv", slower("h200"))
    (found,) = calibrate_tables(Catalog.standard(folder), [table])
    return folder, found


def test_the_errors_are_of_shapes_left_out(calibrated: tuple[Path, Calibration]) -> None:
    _, found = calibrated
    assert (found.gpu, found.kind, found.rows, found.held_out) == ("h200", "gemm_fp8", 24, 6)
    assert found.before is not None
    assert found.before.rows == found.after.rows == 6
    assert found.before.median > 0.15
    assert found.before.bias < -0.15  # what was known is too fast
    assert found.after.median < 0.03
    assert found.before_title == "SGLang's block-scaled fp8 GEMM by DeepGEMM"


def test_the_parameters_that_the_rows_tell_are_found_and_the_others_stay(
    calibrated: tuple[Path, Calibration],
) -> None:
    """Rows of the bench come without quantisation and last-level cache: they tell nothing of `act` and `warm`."""
    _, found = calibrated
    chosen = chosen_fit(CATALOG, gpu_of("h200"), "gemm", FP8)
    assert chosen is not None
    before, after = chosen.fit.parameters, fit_of(found.file).parameters
    assert after["bandwidth"] == pytest.approx(before["bandwidth"] / 1.4, rel=0.03)
    assert after["floor"] == pytest.approx(before["floor"] * 2, rel=0.25)
    for name in ("act", "warm", "split"):
        assert after[name] == pytest.approx(before[name], rel=1e-3), name


def test_the_file_says_what_it_is_of(calibrated: tuple[Path, Calibration]) -> None:
    _, found = calibrated
    assert (found.file.title, found.file.source) == ("a fit to 24 rows of my table", "my table")
    assert (found.file.gpus, found.file.form, found.file.formats) == (("h200",), "gemm", FP8)
    assert found.file.error == found.after
    assert found.file.range == {"m": (8.0, 1024.0), "n": (512.0, 24576.0), "k": (512.0, 7168.0)}
    assert [source.engine for source in found.file.samples] == ["sglang"]  # measured rows go on to correct
    assert file_name(kind_named("gemm_fp8"), "h200", "own") == "kernels/fits/h200/gemm.fp8_block.own.yaml"
    assert file_name(kind_named("gqa_decode_fp8"), "x", "y") == "kernels/fits/x/gqa_decode.bf16-fp8.y.yaml"


def test_the_fit_that_was_written_is_found_first(calibrated: tuple[Path, Calibration]) -> None:
    folder, found = calibrated
    catalog = Catalog.standard(folder)
    fits = KernelSources(allowed=("fitted",))
    shape: dict[str, object] = {"m": 200, "n": 9000, "k": 7168, "weights": weight_format("fp8_block")}
    before = KernelLibrary.of(catalog.gpu("h200"), catalog, fits).gemm(**shape)  # type: ignore[arg-type]  # as named
    path = folder / file_name(kind_named("gemm_fp8"), "h200", "own")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(fit_text(found.file))
    after = KernelLibrary.of(catalog.gpu("h200"), catalog, fits).gemm(**shape)  # type: ignore[arg-type]  # as named
    assert before.source == "SGLang's block-scaled fp8 GEMM by DeepGEMM"
    assert after.source == "a fit to 24 rows of my table"
    assert after.origin is Origin.FITTED
    assert after.error is not None
    assert after.error.median == pytest.approx(found.after.median, rel=1e-3)
    assert float(np.asarray(after.memory)) < float(np.asarray(before.memory))
    measured = KernelLibrary.of(catalog.gpu("h200"), catalog).gemm(
        m=128, n=4096, k=7168, weights=weight_format("fp8_block")
    )
    assert (measured.origin, measured.source) == (Origin.MEASURED, "my table")  # a table comes before any fit


def test_a_gpu_may_be_named_by_the_sidecar(tmp_path: Path) -> None:
    table = write(tmp_path / "gemm_fp8.csv", slower("h200"), gpu="H200")
    assert calibrate_tables(CATALOG, [table])[0].gpu == "h200"


def test_tables_of_one_kernel_on_one_gpu_make_one_fit(tmp_path: Path) -> None:
    rows = slower("h200")
    first = write(tmp_path / "a" / "h200" / "gemm_fp8.csv", rows[:12])
    second = write(tmp_path / "b" / "h200" / "gemm_fp8.csv", rows[12:])
    other = write(tmp_path / "b" / "h100" / "gemm_fp8.csv", slower("h100"))
    found = calibrate_tables(CATALOG, [first, other, second])
    assert [(item.gpu, item.rows, item.held_out) for item in found] == [("h200", 24, 6), ("h100", 24, 6)]


def test_too_few_shapes_are_refused(tmp_path: Path) -> None:
    table = write(tmp_path / "h200" / "gemm_fp8.csv", [*slower("h200")[:3], *slower("h200")[:3]])
    with pytest.raises(InputError, match="my table: holds 3 shapes — measure at least four shapes"):
        calibrate_tables(CATALOG, [table])


def test_every_file_that_is_no_table_of_a_kernel_is_named(tmp_path: Path) -> None:
    rows = slower("h200")
    good = write(tmp_path / "h200" / "gemm_fp8.csv", rows)
    kinds = [write(tmp_path / "h200" / f"{name}.csv", rows) for name in ("gemm_fp88", "copy")]
    strangers = [write(tmp_path / name / "gemm_fp8.csv", rows, gpu="Z9000") for name in ("one", "two")]
    columns = write(tmp_path / "h100" / "gemm_fp8.csv", rows, header="m,n,x,seconds")
    missing = tmp_path / "b200" / "gemm_fp8.csv"
    with pytest.raises(InputError) as caught:
        calibrate_tables(CATALOG, [good, *kinds, *strangers, columns, missing])
    text = str(caught.value)
    for path in (*kinds, *strangers, columns, missing.with_suffix(".yaml")):
        assert str(path) in text, path
    assert str(good) not in text
    assert text.count("'Z9000' is no GPU of the catalog") == 2
    assert "did you mean gemm_fp8" in text
    assert "column 'k' is missing" in text


@pytest.mark.parametrize(("factor", "suspect"), [(1.4, False), (8.0, True)])
def test_less_than_half_the_expected_speed_is_the_machines_fault(tmp_path: Path, factor: float, suspect: bool) -> None:
    """A bandwidth far below what the same chip reached elsewhere is a warning, not a new efficiency."""
    table = write(tmp_path / "kernels" / "h200" / "gemm_fp8.csv", slower("h200", factor))
    (found,) = calibrate_tables(Catalog.standard(tmp_path), [table])
    assert found.ratio is not None
    assert found.suspect is suspect
    assert (found.ratio < 0.5) is suspect
