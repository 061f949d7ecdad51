"""A recipe cooked again from the packaged tables: every chip, its generation, each chip left out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from moeplan.calibrate.fit_text import fit_text
from moeplan.calibrate.refit import refit
from moeplan.errors import InputError
from moeplan.kernels.fit import FitFile, fit_of, fits_of, read_fit
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.recipe import Recipe, RowSource, read_recipe, recipe_path
from moeplan.specs.catalog import Catalog

pytest.importorskip("scipy", reason="scipy is not installed: pip install 'moeplan[fit]'")
CATALOG = Catalog.standard()
FLASHMLA, FLASHINFER = "mla_decode.bf16-bf16.flashmla", "gqa_decode.bf16-fp8.flashinfer"


def recipe(name: str) -> Recipe:
    return read_recipe(recipe_path(CATALOG, name))


@pytest.fixture(scope="module")
def cooked() -> dict[str, FitFile]:
    return dict(refit(recipe(FLASHMLA), CATALOG))


def test_every_chip_and_the_generation_of_both(cooked: dict[str, FitFile]) -> None:
    assert list(cooked) == ["h800", "h20", "hopper"]
    assert [file.gpus for file in cooked.values()] == [("h800",), ("h20",), ("h800", "h20")]
    assert [tuple(source.table for source in file.samples) for file in cooked.values()] == [
        ("mla_decode_bf16",),
        ("mla_decode_bf16",),
        (),  # a generation has no rows that correct it
    ]
    assert [tuple(item.of for item in file.carried) for file in cooked.values()] == [(("h20",),), (("h800",),), ()]


def test_a_generations_error_is_that_of_its_worst_chip_left_out(cooked: dict[str, FitFile]) -> None:
    carried = [cooked[gpu].carried[0].error for gpu in ("h800", "h20")]
    assert cooked["hopper"].error == max(carried, key=lambda error: error.median)


def test_the_packaged_fits_are_what_the_recipe_gives(cooked: dict[str, FitFile]) -> None:
    """The same figures on every machine, but for the solver's last digits."""
    packaged = fits_of(CATALOG, FLASHMLA)
    assert packaged.keys() == cooked.keys()
    for folder, file in cooked.items():
        old = packaged[folder]
        assert (file.title, file.formats, file.tiles, file.range) == (old.title, old.formats, old.tiles, old.range)
        assert file.error.rows == old.error.rows
        assert file.error.median == pytest.approx(old.error.median, abs=0.01)
        new, before = fit_of(file).parameters, fit_of(old).parameters
        for name in ("floor", "bandwidth", "softmax"):
            assert new[name] == pytest.approx(before[name], rel=0.05), (folder, name)


def test_pinned_parameters_stay_in_every_fit(cooked: dict[str, FitFile]) -> None:
    held = recipe(FLASHMLA).held
    pinned = replace(recipe(FLASHINFER), pinned={"floor": "7 µs"})
    (again,) = dict(refit(pinned, CATALOG)).values()
    assert again.parameters["floor"] == "7 µs"
    for file in cooked.values():
        assert {name: fit_of(file).parameters[name] for name in held} == pytest.approx(held)


def test_a_fit_is_written_with_units_and_the_range_of_its_rows(cooked: dict[str, FitFile]) -> None:
    file = cooked["h800"]
    for parameter in form_named("mla_decode").parameters:
        assert (" " in file.parameters[parameter.name]) == bool(parameter.unit), parameter.name
    assert file.range["heads"] == (16.0, 128.0)
    assert file.range.keys() == set(form_named("mla_decode").shape)


def test_what_is_written_is_read_again(cooked: dict[str, FitFile], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fits") / "fit.yaml"
    for file in cooked.values():
        path.write_text(fit_text(file))
        found = fit_of(read_fit(path))
        assert found.parameters == fit_of(file).parameters
        assert found.gpus == file.gpus


def test_every_chip_is_told_while_it_cooks() -> None:
    said: list[str] = []
    for _ in refit(recipe(FLASHINFER), CATALOG, progress=said.append):
        pass
    assert said == [f"{recipe(FLASHINFER).title}: h20"]


def test_a_source_that_is_not_there_is_an_error() -> None:
    wrong = replace(recipe(FLASHINFER), samples=(RowSource(gpu="h800", table="gqa_decode_fp8"),))
    with pytest.raises(InputError, match="h800 has no such table"):
        list(refit(wrong, CATALOG))


def test_kin_draws_a_chip_to_its_relatives(cooked: dict[str, FitFile]) -> None:
    """Both are Hopper: with all trust in kin H800 has H20's parameters, with some it lies between."""
    own, other = (fit_of(cooked[gpu]).parameters["softmax"] for gpu in ("h800", "h20"))
    all_trust = dict(refit(replace(recipe(FLASHMLA), kin=1e3), CATALOG))
    assert fit_of(all_trust["h800"]).parameters["softmax"] == pytest.approx(other, rel=0.02)
    some = fit_of(dict(refit(replace(recipe(FLASHMLA), kin=1.0), CATALOG))["h800"]).parameters["softmax"]
    low, high = sorted((own, other))
    assert low * 0.98 <= some <= high * 1.02


def test_all_reduces_of_a_generation_are_kin() -> None:
    """20 of the 21 all-reduces are within the 6 % that were aimed at; alone 15 were."""
    names = [f"all_reduce.bf16.{engine}" for engine in ("sglang", "trtllm", "vllm")]
    assert all(recipe(name).kin == 4 for name in names)
    own = [
        file.error.median for name in names for folder, file in fits_of(CATALOG, name).items() if len(file.gpus) == 1
    ]
    assert len(own) == 21
    assert sum(median <= 0.06 for median in own) == 20
