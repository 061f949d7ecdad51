"""Which fit answers: the chip's, its die's, its generation's, the nearest; of which engine, for which model."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeplan.calibrate.fit_text import fit_text
from moeplan.kernels.choice import Chosen, choices, chosen_fit, generation
from moeplan.kernels.fit import FitFile, fits_of, read_fit
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.origin import Origin
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
FP8, BF16 = {"weights": "fp8_block"}, {"weights": "bf16"}
GQA = {"core": "bf16", "cache": "bf16"}


def found(gpu: str, form: str, formats: dict[str, str], catalog: Catalog = CATALOG, **asked: object) -> Chosen:
    chosen = chosen_fit(catalog, catalog.gpu(gpu), form, formats, **asked)  # type: ignore[arg-type]  # engine, facts
    assert chosen is not None
    return chosen


def packaged(folder: str, recipe: str) -> FitFile:
    return fits_of(CATALOG, recipe)[folder]


@pytest.mark.parametrize(
    ("gpu", "form", "formats", "gpus", "origin", "note", "measured_on"),
    [
        ("h800", "gemm", FP8, ("h800",), Origin.FITTED, "", ("h800",)),  # before its twin's fit of a newer kernel
        ("h800", "gemm", BF16, ("h100",), Origin.FITTED, "h100 stands in, the same die", ("h800", "h100")),
        ("h20-141", "gemm", FP8, ("h20",), Origin.FITTED, "h20 stands in, the same die", ("h20-141", "h20")),
        (
            "h100-pcie",
            "gemm",
            BF16,
            ("h100", "h200"),
            Origin.FITTED,
            "carried over from h100 and h200 by the peaks",
            ("h100-pcie",),
        ),
        ("mi300x", "gemm", BF16, ("h200",), Origin.ASSUMED, "carried over from h200, another chip", ("mi300x",)),
        ("ascend-910c", "gemm", FP8, ("h20",), Origin.ASSUMED, "carried over from h20, another chip", ("ascend-910c",)),
    ],
)
def test_the_nearest_fit_answers(
    gpu: str,
    form: str,
    formats: dict[str, str],
    gpus: tuple[str, ...],
    origin: Origin,
    note: str,
    measured_on: tuple[str, ...],
) -> None:
    chosen = found(gpu, form, formats)
    assert chosen.fit.gpus == gpus
    assert (chosen.origin, chosen.notes[:1], chosen.measured_on) == (origin, (note,) if note else (), measured_on)
    unlike = {"mi300x": ("(SMs)",), "ascend-910c": ("(FLOP per byte)", "SMs not given, 132 taken")}.get(gpu, ())
    assert all(word in chosen.notes[-1] for word in unlike)
    assert (chosen.error is None) == bool(unlike)  # nobody knows how far a fit is off on such a chip


def test_the_kernel_named_comes_first_then_the_engines() -> None:
    assert found("h200", "gemm", BF16).fit.title == packaged("h200", "gemm.bf16.sglang-cublas").title
    assert found("h200", "gemm", BF16, engine="vllm").fit.title == packaged("h200", "gemm.bf16.vllm-cublas").title
    named = found("h800", "batched_gemm", BF16, engine="torch-bmm")  # listed nowhere: no engine of today runs it
    assert named.fit.title == packaged("h800", "batched_gemm.bf16.torch-bmm").title
    assert found("h800", "batched_gemm", BF16).fit.title != named.fit.title
    unknown = found("h200", "gemm", BF16, engine="nobody")
    assert unknown.fit is found("h200", "gemm", BF16).fit or unknown.fit.title == found("h200", "gemm", BF16).fit.title


def test_a_fit_limited_to_other_models_is_passed_over() -> None:
    """TensorRT-LLM takes another kernel for few query heads per KV head."""
    recipes = ("trtllm-mha", "trtllm-xqa", "trtllm-mha-wide")
    limits = {name: packaged("h200", f"gqa_decode.bf16-bf16.{name}").limits for name in recipes}
    titles = {name: packaged("h200", f"gqa_decode.bf16-bf16.{name}").title for name in recipes}
    seen = set()
    for head_dim in (64.0, 128.0, 256.0):
        for group in (1.0, 4.0, 8.0):
            facts = {"head_dim": head_dim, "group": group}
            chosen = found("h200", "gqa_decode", GQA, engine="trtllm", facts=facts)
            name = next((name for name in recipes if titles[name] == chosen.fit.title), None)
            if name is None:
                continue
            assert all(low <= facts[fact] <= high for fact, (low, high) in limits[name].items()), (name, facts)
            seen.add(name)
    assert len(seen) >= 2


def test_another_precisions_kernel_runs_with_its_own_bytes_and_without_the_others_rows() -> None:
    chosen = found("h800", "grouped_gemm", BF16)
    own = found("h800", "grouped_gemm", FP8)
    assert own.fit.samples
    assert own.origin is Origin.FITTED
    assert (chosen.origin, chosen.notes) == (Origin.ASSUMED, ("another precision's kernel",))
    assert chosen.fit.samples == ()
    assert chosen.fit.kernel.formats["weights"].name == "bf16"
    assert chosen.fit.kernel.tiles == own.fit.kernel.tiles
    assert chosen.fit.parameters == own.fit.parameters
    shape = {"groups": 4.0, "m": 8.0, "n": 4096.0, "k": 7168.0}
    ratio = chosen.fit.parts(CATALOG.gpu("h800"), shape).memory / own.fit.parts(CATALOG.gpu("h800"), shape).memory
    assert 1.9 < float(ratio) < 2.0  # weights of two bytes in place of one and the scales


def test_nothing_stands_for_a_form_that_no_fit_has() -> None:
    assert chosen_fit(CATALOG, CATALOG.gpu("h800"), "gemm", {"weights": "nvfp4"}) is None


def test_everything_that_choices_name_is_there() -> None:
    """A kernel listed has a fit somewhere, formats have the form's roles, GPUs are those of the catalog."""
    known = choices(CATALOG)
    written = {path.stem for path in (CATALOG.roots[-1] / "kernels" / "fits").glob("*/*.yaml")}
    for form, by_formats in known.kernels.items():
        for formats, names in by_formats.items():
            assert len(formats.split("-")) == len(form_named(form).roles)
            for name in names:
                assert f"{form}.{formats}.{name}" in written, (form, formats, name)
        assert set(known.instead.get(form, {}).values()) <= by_formats.keys(), form
    chips = set(CATALOG.names("gpus"))
    assert {*known.die, *known.die.values(), *known.other} <= chips
    for names in known.nearest.values():
        assert set(names) <= chips


def test_a_generations_folder_is_its_name_in_small_letters() -> None:
    assert generation("Blackwell Ultra") == "blackwell-ultra"
    assert generation("CDNA_3") == "cdna3"


def write(folder: Path, gpu: str, name: str, file: FitFile, title: str) -> None:
    path = folder / "kernels" / "fits" / gpu / f"gemm.fp8_block.{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(fit_text(file).replace(file.title, title))


def test_the_users_fit_comes_first_as_soon_as_it_is_written(tmp_path: Path) -> None:
    catalog, file = Catalog.standard(tmp_path), packaged("h200", "gemm.fp8_block.sglang-deepgemm")
    assert found("h200", "gemm", FP8, catalog, engine="sglang").fit.title == file.title
    write(tmp_path, "h200", "own", file, "mine")
    assert found("h200", "gemm", FP8, catalog, engine="sglang").fit.title == "mine"
    assert found("h200", "gemm", FP8, catalog, engine="trtllm").fit.title == "mine"
    assert found("h100", "gemm", FP8, catalog).fit.title != "mine"  # another chip keeps its own
    write(tmp_path, "h200", "own", file, "mine, again")
    assert found("h200", "gemm", FP8, catalog, engine="sglang").fit.title == "mine, again"
    (tmp_path / "kernels" / "fits" / "h200" / "gemm.fp8_block.own.yaml").unlink()
    assert found("h200", "gemm", FP8, catalog, engine="sglang").fit.title == file.title


def test_the_users_file_of_a_packaged_name_wins(tmp_path: Path) -> None:
    catalog, file = Catalog.standard(tmp_path), packaged("h200", "gemm.fp8_block.sglang-deepgemm")
    write(tmp_path, "h200", "sglang-deepgemm", file, "mine")
    assert found("h200", "gemm", FP8, catalog).fit.title == "mine"
    assert read_fit(tmp_path / "kernels/fits/h200/gemm.fp8_block.sglang-deepgemm.yaml").samples[0].gpu == "h200"


def test_a_chip_that_exists_only_as_ones_own_yaml_is_of_its_generation(tmp_path: Path) -> None:
    source = next(path for root in CATALOG.roots if (path := root / "gpus" / "h200.yaml").is_file())
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "h300.yaml").write_text(source.read_text().replace("name: H200", "name: H300"))
    chosen = found("h300", "gemm", BF16, Catalog.standard(tmp_path))
    assert (chosen.fit.gpus, chosen.origin) == (("h100", "h200"), Origin.FITTED)
