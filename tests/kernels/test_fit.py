"""Files of fits and recipes: what they hold, that they are what the forms read, and every fault at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeplan.calibrate.fit_text import fit_text
from moeplan.errors import InputError
from moeplan.kernels.fit import FitError, FitFile, fit_of, fits_of, read_fit
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.recipe import RowSource, read_recipe, recipe_path
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
FITS = sorted((CATALOG.roots[-1] / "kernels" / "fits").glob("*/*.yaml"))
RECIPES = sorted((CATALOG.roots[-1] / "kernels" / "recipes").glob("*.yaml"))
DEEPGEMM = "gemm.fp8_block.deepgemm"
WIDENED = "moe.mxfp4.sglang-triton"  # named by the checkpoint's format; its kernel runs on weights widened to bf16


def _start(path: Path, form: str, formats: dict[str, str]) -> str:
    if path.stem == WIDENED:
        assert formats == {"weights": "bf16"}
        return WIDENED
    return f"{form}.{'-'.join(formats.values())}."


@pytest.fixture(scope="module")
def files() -> dict[Path, FitFile]:
    """Every packaged fit, read once."""
    return {path: read_fit(path) for path in FITS}


def test_every_packaged_fit_is_named_by_what_it_holds(files: dict[Path, FitFile]) -> None:
    assert len(files) > 300
    for path, file in files.items():
        assert path.stem.startswith(_start(path, file.form, file.formats)), path
        assert file.gpus == (path.parent.name,) or len(file.gpus) > 1, path
        assert 0 <= file.error.median <= file.error.p90, path
        values = fit_of(file).parameters
        for parameter in form_named(file.form).parameters:
            value = values[parameter.name]
            assert parameter.low * 0.999 <= value <= parameter.high * 1.001, (path, parameter.name, value)
        for source in file.samples:
            assert source.gpu == path.parent.name, path


def test_every_packaged_recipe_can_be_read_and_has_its_fits(files: dict[Path, FitFile]) -> None:
    by_recipe: dict[str, dict[str, FitFile]] = {}
    for path, file in files.items():
        by_recipe.setdefault(path.stem, {})[path.parent.name] = file
    assert by_recipe.keys() == {path.stem for path in RECIPES}
    for path in RECIPES:
        recipe = read_recipe(path)
        assert path.stem.startswith(_start(path, recipe.form, recipe.formats)), path
        assert set(recipe.held) <= {parameter.name for parameter in form_named(recipe.form).parameters}
        fits = by_recipe[path.stem]
        assert {source.gpu for source in recipe.samples} == {name for name, fit in fits.items() if fit.gpus == (name,)}
        for fit in fits.values():
            assert fit.tiles == recipe.tiles, path


def test_quantities_are_read_in_si_units() -> None:
    fit = fit_of(fits_of(CATALOG, DEEPGEMM)["h800"])
    assert fit.parameters["floor"] == pytest.approx(2.03e-6)
    assert fit.parameters["bandwidth"] == pytest.approx(0.9558)
    assert fit.error == FitError(rows=61, median=0.05119, p90=0.138, bias=-0.0001962)
    assert (fit.gpus, fit.kernel.tiles) == (("h800",), (64, 128))
    recipe = read_recipe(recipe_path(CATALOG, DEEPGEMM))
    assert recipe.held == {"act": 0.0, "warm": 0.001}


def test_less_of_every_time_among_the_parameters() -> None:
    fit = fit_of(fits_of(CATALOG, DEEPGEMM)["h800"])
    half = fit.hastened(0.5)
    assert half.parameters["floor"] == fit.parameters["floor"] / 2
    assert half.parameters["bandwidth"] == fit.parameters["bandwidth"]
    shape = {"m": 64.0, "n": 4096.0, "k": 7168.0}
    gpu = CATALOG.gpu("h800")
    assert half.parts(gpu, shape).seconds < fit.parts(gpu, shape).seconds
    assert half.parts(gpu, shape).memory == fit.parts(gpu, shape).memory


@pytest.mark.parametrize("recipe", [DEEPGEMM, "grouped_gemm.fp8_block.deepgemm-masked", "moe.mxfp4.sglang-triton"])
def test_a_file_written_again_is_the_same_file(recipe: str, tmp_path: Path) -> None:
    for folder, file in fits_of(CATALOG, recipe).items():
        path = tmp_path / f"{folder}.yaml"
        path.write_text(fit_text(file))
        again = read_fit(path)
        assert (again.title, again.parameters, again.error) == (file.title, file.parameters, file.error)
        assert (again.range, again.limits, again.tiles, again.gpus) == (file.range, file.limits, file.tiles, file.gpus)
        assert fit_text(again) == fit_text(file)


def test_every_fault_of_a_fit_at_once(tmp_path: Path) -> None:
    text = fit_text(fits_of(CATALOG, DEEPGEMM)["h800"])
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace("floor:", "flor:").replace("weights:", "wights:") + "limits: {m: [1]}\n")
    with pytest.raises(InputError) as caught:
        read_fit(path)
    assert [(fault.path, fault.problem.split(";")[0]) for fault in caught.value.faults] == [
        ("formats", "holds wights"),
        ("parameters.flor", "is unknown"),
        ("parameters.floor", "is missing"),
        ("limits.m", "needs two values"),
    ]
    bad = text.replace("2.03 µs", "2.03 m").replace("73.67 ns", "fast").replace("'0.9558'", "'0'")
    path.write_text(bad.replace("tiles: [64, 128]", "tiles: [0]"))
    with pytest.raises(InputError) as caught:
        read_fit(path)
    assert str(path) in str(caught.value)
    assert [fault.path for fault in caught.value.faults] == [
        "parameters.floor",
        "parameters.bandwidth",
        "parameters.latency",
        "tiles",
    ]
    assert "wanted 0.3 to 1" in str(caught.value)


def test_the_users_fit_of_a_chip_hides_the_packaged_one(tmp_path: Path) -> None:
    path = tmp_path / "kernels" / "fits" / "h800" / f"{DEEPGEMM}.yaml"
    path.parent.mkdir(parents=True)
    file = fits_of(CATALOG, DEEPGEMM)["h800"]
    path.write_text(fit_text(file).replace(file.title, "mine"))
    found = fits_of(Catalog.standard(tmp_path), DEEPGEMM)
    assert (found["h800"].title, found["h20"].title) == ("mine", file.title)


def test_an_unknown_recipe_is_named() -> None:
    with pytest.raises(InputError, match=r"did you mean gemm\.fp8_block\.deepgemm"):
        recipe_path(CATALOG, "gemm.fp8_block.deepgem")


def test_every_fault_of_a_recipe(tmp_path: Path) -> None:
    text = recipe_path(CATALOG, DEEPGEMM).read_text()
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace("weights:", "wights:"))
    with pytest.raises(InputError, match="formats: holds wights — the form reads weights"):
        read_recipe(path)
    path.write_text(text.replace("act: '0'", "floor: quick, acts: '0'"))
    with pytest.raises(InputError) as caught:
        _ = read_recipe(path).held
    assert [fault.path for fault in caught.value.faults] == ["pinned.floor", "pinned.floor", "pinned.acts"] or [
        fault.path for fault in caught.value.faults
    ] == ["pinned.floor", "pinned.acts"]


def test_a_source_of_rows_is_a_table_or_a_family() -> None:
    for given in ({}, {"table": "gemm_fp8", "family": "gemm"}):
        with pytest.raises(InputError, match="a table, observations, or a silicon family"):
            RowSource(gpu="h800", **given)  # type: ignore[arg-type]  # texts
    with pytest.raises(InputError) as caught:
        RowSource(gpu="h800", limits={"m": (1.0,), "n": (1.0, 2.0, 3.0)})
    assert [fault.path for fault in caught.value.faults] == ["table", "limits.m", "limits.n"]
