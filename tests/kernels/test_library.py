"""Measured kernels come back exactly; all else is a fit that says whose, and how far it is from a measurement."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.errors import InputError, Unsupported
from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.origin import Origin
from moeplan.kernels.sources import ALL, ARTICLE, KernelSources
from moeplan.kernels.times import Timed
from moeplan.kernels.work import gemm_work, ideal_gemm_time
from moeplan.ops.attention import gqa_decode, mla_decode
from moeplan.ops.cost import Cost
from moeplan.ops.gemm import gemm
from moeplan.ops.grouped_gemm import grouped_gemm
from moeplan.ops.machine import Machine
from moeplan.predict import Predictor
from moeplan.routing.slots import ExpertLoad
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Acceptance, Deployment, Precision
from moeplan.specs.gpu import EDITED
from moeplan.specs.model import Gqa, Mla
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
FP8, BF16 = weight_format("fp8_block"), weight_format("bf16")
FITS = KernelSources(allowed=("fitted", "assumed"))
GEMM_FP8, MLA_BF16 = {"weights": "fp8_block"}, {"core": "bf16", "cache": "bf16"}
SIDECAR = (
    "{title: mine, gpu: MINE, kernel: a test, precision: fp8, source: this test, licence: none, date: '2026-01-31'}\n"
)


def machine(gpu: str, sources: KernelSources = ALL, catalog: Catalog = CATALOG) -> Machine:
    cluster = Cluster(gpu=catalog.gpu(gpu), nic=catalog.nic("cx7"), gpus_per_node=8, nics_per_node=8)
    return Machine.of(cluster, catalog, sources)


def library(gpu: str, sources: KernelSources = ALL, catalog: Catalog = CATALOG, *, cold: bool = True) -> KernelLibrary:
    return replace(machine(gpu, sources, catalog).kernels, cold=cold)


def rows(gpu: str, kind: str) -> list[dict[str, float]]:
    path = CATALOG.kernel_table(gpu, kind)
    assert path is not None
    with path.open(newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def timed(library: KernelLibrary, form: str, formats: Mapping[str, str], **shape: Any) -> Timed:
    engine = shape.pop("engine", "")
    found = library.timed(form, formats, shape, engine=engine)
    assert found is not None
    return found


def dense(library: KernelLibrary, *, m: Any, n: float = 4096, k: float = 7168) -> Timed:
    """As a step asks: activations come in fp8."""
    return timed(library, "gemm", GEMM_FP8, m=m, n=n, k=k, converted=1.0)


def speed_of(row: Mapping[str, float], gpu: str = "h800") -> float:
    """Fitted over measured time of a row of dense products: what the library carries from a table to other shapes."""
    fitted = dense(library(gpu, FITS), m=row["m"], n=row["n"], k=row["k"])
    return float(fitted.seconds) / row["seconds"]


def grouped(gpu: str, *, groups: float, m: float, n: int = 4096, k: int = 7168) -> Cost:
    load = ExpertLoad(rows=groups * m, slots=groups, active=groups, mean_rows_per_slot=m)
    return grouped_gemm("routed", machine(gpu), load=load, n=n, k=k, weights=FP8, down=n > k, exact=True)


def mla(gpu: str, *, batch: Any, heads: int, q_len: float, context: Any) -> Cost:
    shape = Mla(heads=heads, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    return mla_decode("core", machine(gpu), shape, batch=batch, q_len=q_len, context=context, core=BF16, cache=BF16)


def own(folder: Path, gpu: str, kind: str, text: str) -> Catalog:
    """A user's folder with one table of their own."""
    path = folder / "kernels" / gpu / f"{kind}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_suffix(".yaml").write_text(SIDECAR)
    return Catalog.standard(folder)


# Measured rows


def test_the_output_projection_of_deepseek_on_h800() -> None:
    cost = gemm("o_proj", machine("h800"), m=128, n=7168, k=16384, weights=FP8)
    assert cost.seconds == pytest.approx(46.6e-6, abs=0.1e-6)
    assert cost.origin is Origin.MEASURED
    assert cost.source == "DeepGEMM dense FP8 on H800"
    assert cost.error is None  # a measured row has no error of a fit


def test_two_groups_of_512_rows_on_h800() -> None:
    cost = grouped("h800", groups=2, m=512)
    assert 57.8e-6 <= float(cost.seconds) <= 58.0e-6
    assert cost.origin is Origin.MEASURED


@pytest.mark.parametrize("gpu", ["h800", "h20"])
def test_every_dense_row_comes_back(gpu: str) -> None:
    found, target = rows(gpu, "gemm_fp8"), machine(gpu)
    assert len(found) > 50
    for row in found:
        cost = gemm("x", target, m=row["m"], n=int(row["n"]), k=int(row["k"]), weights=FP8)
        assert cost.seconds == pytest.approx(row["seconds"], rel=1e-9), row
        assert cost.origin is Origin.MEASURED


@pytest.mark.parametrize("gpu", ["h800", "h20"])
def test_every_grouped_row_comes_back(gpu: str) -> None:
    found = rows(gpu, "grouped_gemm_fp8")
    assert len(found) > 100
    for row in found:
        cost = grouped(gpu, groups=row["groups"], m=row["m"], n=int(row["n"]), k=int(row["k"]))
        assert cost.seconds == pytest.approx(row["seconds"], rel=1e-9), row
        assert cost.origin is Origin.MEASURED


@pytest.mark.parametrize("gpu", ["h800", "h20"])
def test_every_attention_row_comes_back_as_it_was_measured_warm(gpu: str) -> None:
    """Rows of equal heads·q_len and cached tokens share one correction, the mean of theirs; a row alone is exact."""
    warm, fits = library(gpu, cold=False), library(gpu, FITS, cold=False)
    speeds: dict[tuple[float, float], list[float]] = {}
    found = rows(gpu, "mla_decode_bf16")
    for row in found:
        seconds = row.pop("seconds")
        fitted = timed(fits, "mla_decode", MLA_BF16, engine="flashmla", **row)
        key = (row["heads"] * row["q_len"], row["batch"] * row["context"])
        speeds.setdefault(key, []).append(float(fitted.seconds) / seconds)
        row["fitted"], row["measured"] = float(fitted.seconds), seconds
    alone = 0
    for row in found:
        fitted_seconds, seconds = row.pop("fitted"), row.pop("measured")
        mine = speeds[row["heads"] * row["q_len"], row["batch"] * row["context"]]
        answer = timed(warm, "mla_decode", MLA_BF16, **row)
        assert answer.seconds == pytest.approx(fitted_seconds / np.mean(mine), rel=1e-9), row
        assert answer.origin is Origin.MEASURED
        if len(mine) == 1:
            assert answer.seconds == pytest.approx(seconds, rel=1e-9), row
            alone += 1
        assert timed(library(gpu), "mla_decode", MLA_BF16, **row).seconds >= float(answer.seconds) * (1 - 1e-12)
    assert alone >= 12


@pytest.mark.parametrize("gpu", ["h800", "h20"])
def test_a_table_measured_in_l2_is_capped_and_called_an_assumption(gpu: str) -> None:
    """Its weights stayed in the cache: no kernel is believed above 0.78 of the roofline."""
    device, warm = CATALOG.gpu(gpu), library(gpu, cold=False)
    for row in rows(gpu, "gemm_batched_bf16"):
        m, n, k, copies = row["m"], row["n"], row["k"], row["copies"]
        answer = timed(
            warm, "batched_gemm", {"weights": "bf16"}, m=m, n=n, k=k, copies=copies, engine="torch-bmm"
        )  # the engine's name for it, as no engine of today runs it
        traffic = copies * (m * k + n * k + m * n) * 2.0
        ideal = max(2 * copies * m * n * k / device.compute["bf16"], traffic / device.memory.bandwidth)
        assert answer.seconds == pytest.approx(max(row["seconds"], ideal / 0.78), rel=1e-9), row
        assert answer.origin is Origin.ASSUMED
        assert "at most 0.78" in answer.source


# Between and beyond them


def test_between_two_measured_rows_the_fit_goes_on_between_their_ratios() -> None:
    low, high = (
        next(row for row in rows("h800", "gemm_fp8") if (row["m"], row["n"], row["k"]) == (m, 4096, 7168))
        for m in (64, 128)
    )
    slow, fast = sorted((speed_of(low), speed_of(high)))
    assert fast > slow * 1.001, "else nothing is told apart"
    for m in (65, 80, 96, 127):
        found, fitted = dense(library("h800"), m=m), dense(library("h800", FITS), m=m)
        assert fitted.seconds / fast <= found.seconds <= fitted.seconds / slow
        assert found.origin is Origin.INTERPOLATED
        assert fitted.origin is Origin.FITTED
    middle = dense(library("h800"), m=np.sqrt(64 * 128))  # half way in log(m): the mean of the two ratios
    assert middle.speed == pytest.approx((slow + fast) / 2, rel=1e-9)


def test_groups_between_measured_ones() -> None:
    """At 64 rows and 4096 × 7168: 2, 3, 4 and 6 groups are measured, 5 is between 4 and 6."""
    shape = {"m": 64.0, "n": 4096.0, "k": 7168.0}
    four, five, six = (timed(library("h800"), "grouped_gemm", GEMM_FP8, groups=g, **shape) for g in (4.0, 5.0, 6.0))
    share = np.log(5 / 4) / np.log(6 / 4)
    assert five.speed == pytest.approx(four.speed + share * (six.speed - four.speed), rel=1e-9)
    assert [found.origin for found in (four, five, six)] == [Origin.MEASURED, Origin.INTERPOLATED, Origin.MEASURED]


def test_beyond_the_table_the_nearest_ratio_is_carried_and_the_form_goes_on() -> None:
    last = next(row for row in rows("h800", "gemm_fp8") if (row["m"], row["n"], row["k"]) == (4096, 4096, 7168))
    found, fitted = dense(library("h800"), m=100_000), dense(library("h800", FITS), m=100_000)
    assert found.seconds == pytest.approx(fitted.seconds / speed_of(last), rel=1e-9)
    assert found.origin is Origin.EXTRAPOLATED
    assert grouped("h800", groups=40, m=64).origin is Origin.EXTRAPOLATED
    assert grouped("h800", groups=18, m=1000).origin is Origin.EXTRAPOLATED  # 18 groups were measured to 64 rows
    assert mla("h800", batch=512, heads=128, q_len=1, context=5000).origin is Origin.EXTRAPOLATED
    assert mla("h800", batch=32, heads=128, q_len=3, context=5000).origin is Origin.EXTRAPOLATED


def test_a_near_weight_shape_takes_its_neighbours_ratio_and_a_far_one_none() -> None:
    kernels, fits = library("h800"), library("h800", FITS)
    measured = dense(kernels, m=128, n=7168, k=16384)
    near, fitted = (dense(each, m=128, n=7168, k=12288) for each in (kernels, fits))
    assert near.seconds == pytest.approx(fitted.seconds / measured.speed, rel=1e-12)
    assert (near.origin, near.source) == (
        Origin.EXTRAPOLATED,
        "DeepGEMM dense FP8 on H800; shape of n, k = 7168, 16384",
    )
    far, fitted = (dense(each, m=128, n=129280, k=7168) for each in (kernels, fits))
    assert (far.seconds, far.speed) == (fitted.seconds, 1.0)
    assert far.origin is Origin.FITTED
    assert far.source == "DeepGEMM's block-scaled fp8 GEMM, of 2025-02 to 2025-04; outside its rows"
    assert far.error is None  # it says nothing of shapes beyond its rows


@pytest.mark.parametrize(("factor", "origin"), [(3.9, Origin.EXTRAPOLATED), (4.1, Origin.FITTED)])
def test_near_is_less_than_four_times_in_all(factor: float, origin: Origin) -> None:
    largest = max(row["n"] for row in rows("h800", "gemm_fp8"))
    k = max(row["k"] for row in rows("h800", "gemm_fp8") if row["n"] == largest)
    assert dense(library("h800"), m=128, n=largest * factor, k=k).origin is origin


@pytest.mark.parametrize("gpu", ["h800", "h20", "h200", "b200"])
@pytest.mark.parametrize("q_len", [1, 2, 3])
def test_attention_of_next_to_no_work_still_starts_and_ends(gpu: str, q_len: int) -> None:
    context = np.geomspace(1.0, 20_000.0, 200)  # the tables begin at 40,000 tokens, 5,000 for each of the eight
    cost = mla(gpu, batch=8.0, heads=128, q_len=q_len, context=context)
    seconds = np.asarray(cost.seconds)
    assert 2e-6 < seconds[0] < 60e-6
    assert np.all(np.diff(seconds) < 0.06 * seconds[-1]), "no jump up"
    if gpu != "b200":  # whose kernel goes over to smaller tiles
        assert np.all(np.diff(seconds) > -0.005 * seconds[-1]), "more work is no faster"
    assert cost.origin >= Origin.INTERPOLATED


# Other chips and precisions


@pytest.mark.parametrize(
    ("gpu", "origin", "source"),
    [
        ("h200", Origin.FITTED, "SGLang's block-scaled fp8 GEMM by DeepGEMM"),  # its own fit
        ("b200", Origin.FITTED, "SGLang's block-scaled fp8 GEMM by DeepGEMM"),
        (
            "h100-pcie",
            Origin.FITTED,
            "SGLang's block-scaled fp8 GEMM by DeepGEMM; carried over from h100 and h200 by the peaks",
        ),
        ("h20-141", Origin.EXTRAPOLATED, "DeepGEMM dense FP8 on H20; h20 stands in, the same die"),
        ("mi300x", Origin.ASSUMED, "SGLang's block-scaled fp8 GEMM by DeepGEMM; carried over from h200, another chip"),
        ("a100-80", Origin.ASSUMED, "SGLang's block-scaled fp8 GEMM by DeepGEMM; carried over from h200, another chip"),
        (
            "ascend-910c",
            Origin.ASSUMED,
            "DeepGEMM's block-scaled fp8 GEMM, of 2025-02 to 2025-04; carried over from h20, another chip",
        ),
    ],
)
def test_a_chip_without_rows_takes_a_fit_and_says_whose(gpu: str, origin: Origin, source: str) -> None:
    found = library(gpu).gemm(m=128, n=7168, k=16384, weights=FP8)
    assert found.origin is origin
    assert found.source.startswith(source)


def test_a_twin_without_rows_of_its_kernel_is_the_fit_of_the_die() -> None:
    found = library("h800").gemm(m=128, n=7168, k=16384, weights=BF16)
    own = library("h100").gemm(m=128, n=7168, k=16384, weights=BF16)
    assert (found.origin, found.source) == (Origin.FITTED, f"{own.source}; h100 stands in, the same die")
    assert (found.compute, found.memory, found.floor) == (own.compute, own.memory, own.floor)  # equal peaks


def test_rows_of_the_same_die_are_a_ratio_not_a_measurement() -> None:
    """H20-141 has more bandwidth than the H20 that was measured: the ratio is kept, the time is its own."""
    twin, measured = dense(library("h20-141"), m=128, n=7168, k=16384), dense(library("h20"), m=128, n=7168, k=16384)
    assert measured.origin is Origin.MEASURED
    assert twin.origin is Origin.EXTRAPOLATED
    assert twin.speed == measured.speed
    fitted = dense(library("h20-141", FITS), m=128, n=7168, k=16384)
    assert twin.seconds == pytest.approx(fitted.seconds / measured.speed, rel=1e-12)


@pytest.mark.parametrize("gpu", ["h800", "h20", "h200"])
@pytest.mark.parametrize("weights", ["bf16", "fp8", "int8", "mxfp4"])
def test_another_precisions_kernel_is_assumed_and_takes_no_rows(gpu: str, weights: str) -> None:
    """The grouped GEMM is measured in block-scaled fp8: of other formats neither times nor ratios are known."""
    shape: dict[str, Any] = {"groups": 4.0, "m": 64.0, "n": 4096.0, "k": 7168.0}
    found = timed(library(gpu), "grouped_gemm", {"weights": weights}, **shape)
    assert found.origin is Origin.ASSUMED
    assert found.source == "DeepGEMM's masked grouped GEMM; another precision's kernel"
    assert found.speed == 1.0
    if weights == "bf16" and gpu != "h20":  # where memory binds, twice the bytes
        assert found.seconds > 1.3 * float(timed(library(gpu), "grouped_gemm", GEMM_FP8, **shape).seconds)


def test_a_cache_in_another_format_is_assumed() -> None:
    found = library("h800").mla(batch=64, q_len=2, context=5000, heads=128, core=BF16, cache=FP8)
    assert found.origin is Origin.ASSUMED
    same = library("h800").mla(batch=64, q_len=2, context=5000, heads=128, core=BF16, cache=BF16)
    assert same.origin is Origin.MEASURED


def test_a_precision_without_any_kernel_is_a_published_figure() -> None:
    found = library("h800").gemm(m=128, n=7168, k=16384, weights=weight_format("nvfp4"))
    assert found.origin is Origin.ASSUMED
    assert "article" in found.source


def test_an_edited_gpu_keeps_its_tables_ratio() -> None:
    """Twice the memory bandwidth: the form goes with it, what was measured of it stays in the same ratio."""
    h800 = CATALOG.gpu("h800")
    twice = replace(h800, memory=replace(h800.memory, bandwidth=2 * h800.memory.bandwidth))
    edited, measured = (dense(KernelLibrary.of(gpu, CATALOG), m=64, n=7168, k=16384) for gpu in (twice, h800))
    assert edited.speed == measured.speed
    assert edited.parts.memory == pytest.approx(measured.parts.memory / 2, rel=1e-12)
    assert edited.seconds < measured.seconds


def test_a_price_is_no_reason_to_doubt_a_kernel() -> None:
    """Only edits that a kernel's time can depend on make it less than measured."""
    h800 = CATALOG.gpu("h800")
    shape: dict[str, Any] = {"m": 128, "n": 7168, "k": 16384, "weights": FP8}
    cheaper = KernelLibrary.of(replace(h800, assumed={"price": EDITED}), CATALOG).gemm(**shape)
    faster = KernelLibrary.of(replace(h800, assumed={"memory.bandwidth": EDITED}), CATALOG).gemm(**shape)
    assert (cheaper.origin, faster.origin) == (Origin.MEASURED, Origin.EXTRAPOLATED)
    assert "edited" not in cheaper.source
    assert faster.source.endswith("(on an edited chip)")


# The user's own tables


@pytest.mark.parametrize("gpu", ["h800", "h100-pcie", "h20-141", "mi300x", "ascend-910c"])
def test_the_users_table_comes_first_on_any_gpu(tmp_path: Path, gpu: str) -> None:
    catalog = own(tmp_path, gpu, "gemm_fp8", "m,n,k,seconds\n128,7168,16384,123e-6\n256,7168,16384,0.002\n")
    cost = gemm("x", machine(gpu, catalog=catalog), m=128, n=7168, k=16384, weights=FP8)
    assert cost.seconds == pytest.approx(123e-6, rel=1e-9)
    assert (cost.origin, cost.source) == (Origin.MEASURED, "mine")
    far = gemm("x", machine(gpu, catalog=catalog), m=128, n=512, k=1024, weights=FP8)
    assert "mine" not in far.source


def test_the_users_rows_of_another_precision_are_theirs(tmp_path: Path) -> None:
    """No fit to bf16 experts exists; a table of them is measured all the same."""
    catalog = own(tmp_path, "h200", "grouped_gemm_bf16", "groups,m,n,k,seconds\n4,64,4096,7168,90e-6\n")
    found = timed(
        library("h200", catalog=catalog), "grouped_gemm", {"weights": "bf16"}, groups=4.0, m=64.0, n=4096.0, k=7168.0
    )
    assert found.seconds == pytest.approx(90e-6, rel=1e-9)
    assert (found.origin, found.source) == (Origin.MEASURED, "mine")


def test_the_users_table_of_a_twin_is_a_ratio(tmp_path: Path) -> None:
    catalog = own(tmp_path, "h20", "gemm_fp8", "m,n,k,seconds\n128,7168,16384,123e-6\n")
    found = dense(library("h20-141", catalog=catalog), m=128, n=7168, k=16384)
    assert (found.origin, found.source) == (Origin.EXTRAPOLATED, "mine; h20 stands in, the same die")


def test_a_table_that_changes_is_read_again(tmp_path: Path) -> None:
    text = "m,n,k,seconds\n128,7168,16384,{}\n"
    for seconds in (1e-4, 2e-4):
        catalog = own(tmp_path, "h800", "gemm_fp8", text.format(seconds))
        assert dense(library("h800", catalog=catalog), m=128, n=7168, k=16384).seconds == pytest.approx(seconds)


def test_an_impossible_row_of_the_user_is_no_faster_than_the_roofline(tmp_path: Path) -> None:
    """Left in the last cache: a step's kernel has to read its weights."""
    catalog = own(tmp_path, "h800", "gemm_fp8", "m,n,k,seconds\n128,7168,16384,1e-6\n")
    cost = gemm("x", machine("h800", catalog=catalog), m=128, n=7168, k=16384, weights=FP8)
    work = gemm_work(m=128, n=7168, k=16384, weights=FP8)
    assert cost.seconds == pytest.approx(ideal_gemm_time(work, CATALOG.gpu("h800"), "fp8"), rel=1e-9)
    assert min(float(part) for part in cost.parts.values()) >= 0


# Which sources may answer


def test_without_a_table_nothing_is_measured() -> None:
    fits = library("h800", KernelSources(allowed=("fitted",)))
    found = fits.gemm(m=128, n=7168, k=16384, weights=FP8)
    assert (found.origin, found.source) == (
        Origin.FITTED,
        "DeepGEMM's block-scaled fp8 GEMM, of 2025-02 to 2025-04",
    )


@pytest.mark.parametrize(
    ("gpu", "allowed", "weights", "n"),
    [
        ("h200", ("table",), "fp8_block", 7168),  # no table of it
        ("h800", ("table",), "fp8_block", 129280),  # none near
        ("h800", ("table", "fitted"), "nvfp4", 7168),  # no kernel of it
        ("mi300x", ("table", "silicon", "fitted"), "fp8_block", 7168),  # another chip's
    ],
)
def test_where_no_allowed_source_answers_the_form_and_the_gpu_are_named(
    gpu: str, allowed: tuple[Any, ...], weights: str, n: int
) -> None:
    with pytest.raises(InputError) as caught:
        library(gpu, KernelSources(allowed=allowed)).gemm(m=128, n=n, k=7168, weights=weight_format(weights))
    (fault,) = caught.value.faults
    assert fault.path == f"gemm {weights}"
    assert CATALOG.gpu(gpu).name in fault.problem
    assert ",".join(allowed) in fault.fix


def test_a_measured_shape_needs_the_table_alone() -> None:
    found = library("h800", KernelSources(allowed=("table",))).gemm(m=128, n=7168, k=16384, weights=FP8)
    assert found.origin is Origin.MEASURED


def test_the_article_alone_is_published_figures() -> None:
    kernels = library("h800", ARTICLE)
    assert kernels.timed("gemm", GEMM_FP8, {"m": 128.0, "n": 7168.0, "k": 16384.0}) is None
    found = kernels.gemm(m=128, n=7168, k=16384, weights=FP8)
    assert (found.origin, found.floor) == (Origin.ASSUMED, 0.0)


@pytest.mark.parametrize(("engine", "title"), [("sglang", "SGLang"), ("trtllm", "T"), ("vllm", "vLLM")])
def test_an_engines_kernels_come_first(engine: str, title: str) -> None:
    found = library("h200", KernelSources(engine=engine)).gemm(m=128, n=7168, k=16384, weights=BF16)
    assert found.source.startswith(title)
    assert found.origin is Origin.FITTED


def _deployment(model: str, **formats: str) -> Deployment:
    return Deployment(
        batch=128,
        ep=32,
        context=4096,
        precision=Precision.of(CATALOG.model(model), **formats),
        acceptance=Acceptance.geometric(0.8, 1, "this test"),
    )


def _strict(model: str, gpu: str) -> Predictor:
    return Predictor.of(CATALOG.model(model), machine(gpu).cluster, CATALOG, KernelSources(strict=True))


@pytest.mark.parametrize("gpu", ["h800", "h200"])
@pytest.mark.parametrize("formats", [{}, {"core": "fp8", "kv": "fp8"}])
def test_strict_is_content_where_every_kernel_was_measured_or_fitted(gpu: str, formats: dict[str, str]) -> None:
    deployment = _deployment("deepseek-v3", **formats)
    step = _strict("deepseek-v3", gpu).evaluate(deployment)
    free = Predictor.of(CATALOG.model("deepseek-v3"), machine(gpu).cluster, CATALOG).evaluate(deployment)
    assert step.seconds == free.seconds
    measurable = [
        cost
        for group in step.groups
        for stage in group.layer.stages.values()
        for cost in stage.costs
        if cost.measurable
    ]
    assert len(measurable) > 10
    assert max(cost.origin for cost in measurable) < Origin.ASSUMED


def test_strict_names_every_kernel_that_is_assumed() -> None:
    with pytest.raises(Unsupported) as caught:
        _strict("qwen3-235b-a22b", "h200").evaluate(_deployment("qwen3-235b-a22b"))  # its experts are bf16
    assert [fault.path for fault in caught.value.faults] == ["dispatch", "routed_gate_up", "routed_down"]
    assert all("another precision's kernel" in fault.problem for fault in caught.value.faults)
    with pytest.raises(Unsupported) as caught:
        _strict("deepseek-v3", "mi300x").evaluate(_deployment("deepseek-v3"))
    named = {fault.path for fault in caught.value.faults}
    assert {"q_b_proj", "mla_core", "o_proj", "routed_gate_up", "routed_down", "dispatch", "lm_head"} <= named
    assert not {"step_overhead", "sampling"} & named  # no tables of these exist anywhere


# As fractions of the peaks


def _costs(gpu: str, m: Any, context: Any) -> Iterator[Cost]:
    target = machine(gpu)
    yield gemm("dense", target, m=m, n=7168, k=16384, weights=FP8)
    yield gemm("bf16", target, m=m, n=2112, k=7168, weights=BF16)
    yield gemm("batched", target, m=m, n=512, k=128, weights=BF16, copies=128)
    load = ExpertLoad(rows=m * 4.0, slots=8.0, active=4.0, mean_rows_per_slot=m / 2.0)
    yield grouped_gemm("up", target, load=load, n=4096, k=7168, weights=FP8, down=False)
    yield grouped_gemm("down", target, load=load, n=7168, k=2048, weights=FP8, down=True)
    yield mla(gpu, batch=m, heads=128, q_len=1, context=context)
    qwen = CATALOG.model("qwen3-235b-a22b").attention
    assert isinstance(qwen, Gqa)
    yield gqa_decode("gqa", target, qwen, batch=m, q_len=1, context=context, core=BF16, cache=BF16)


@pytest.mark.parametrize("gpu", ["h800", "h20", "h20-141", "h200", "b200", "h100-pcie"])
def test_efficiencies_are_shares_and_parts_make_the_time(gpu: str) -> None:
    for m in (1.0, 63.0, 64.0, 65.0, 300.0, 5000.0):
        for cost in _costs(gpu, m, 4096.0):
            assert all(0 < float(share) <= 1 for share in cost.efficiencies.values()), (cost.name, m)
            floor, compute, memory = (float(cost.parts[name]) for name in ("floor", "compute", "memory"))
            assert floor >= 0, (cost.name, m)
            assert cost.seconds == pytest.approx(floor + max(compute, memory), rel=1e-12), (cost.name, m)


@pytest.mark.parametrize("gpu", ["h800", "h200", "mi300x"])
def test_the_fractions_give_the_kernels_time_back(gpu: str) -> None:
    kernels, device = library(gpu), CATALOG.gpu(gpu)
    for m in (1.0, 63.0, 128.0, 1000.0):
        cost = gemm("x", machine(gpu), m=m, n=7168, k=16384, weights=FP8)
        ideal = ideal_gemm_time(gemm_work(m=m, n=7168, k=16384, weights=FP8), device, "fp8")
        assert cost.seconds == pytest.approx(max(float(dense(kernels, m=m, n=7168, k=16384).seconds), ideal), rel=1e-12)


@pytest.mark.parametrize("gpu", ["h800", "h20-141", "h200", "mi300x"])
def test_a_scalar_equals_the_matching_array_element(gpu: str) -> None:
    m, context = np.array([1.0, 48.0, 64.0, 128.0, 3000.0]), np.array([1.0, 300.0, 4096.0, 5000.0, 200_000.0])
    whole = list(_costs(gpu, m, context))
    for place in range(m.size):
        for cost, single in zip(whole, _costs(gpu, float(m[place]), float(context[place])), strict=True):
            assert np.asarray(cost.seconds)[place] == pytest.approx(float(single.seconds), rel=1e-12), cost.name


def test_a_step_is_cold_and_finds_its_activations_converted() -> None:
    """SGLang's table times the kernel with its quantisation, over and over; in a step both are elsewhere."""
    shape: dict[str, Any] = {"m": 64.0, "n": 2112.0, "k": 7168.0}
    cold, warm = (timed(library("h200", cold=each), "gemm", GEMM_FP8, **shape) for each in (True, False))
    assert warm.seconds < cold.seconds
    step: Efficiency = library("h200").gemm(m=64, n=2112, k=7168, weights=FP8)
    bench: Efficiency = library("h200", cold=False).gemm(m=64, n=2112, k=7168, weights=FP8)
    assert step.memory <= bench.memory
    assert timed(library("h200"), "gemm", GEMM_FP8, converted=1.0, **shape).seconds < float(cold.seconds)
