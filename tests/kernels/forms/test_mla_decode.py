"""Laws of the form of absorbed MLA decode, and the errors that its packaged fits reach."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from packaged_fits import carried, fit, own_errors, recipes

from moeplan.kernels.forms.form import Kernel
from moeplan.kernels.forms.mla_decode import FORM
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
H200 = CATALOG.gpu("h200")
GIVEN = {parameter.name: parameter.start for parameter in FORM.parameters}
BARS = {"h100": 0.065, "h200": 0.065, "b200": 0.08, "gb200": 0.08, "b300": 0.08, "gb300": 0.08, "a100-80": 0.15}
# What keys that are no longer split save at most: joining, and the partial sums of one full wave of 64 rows.
PARTIALS = GIVEN["passes"] * 4096 * 64 * H200.units / (GIVEN["bandwidth"] * H200.memory.bandwidth)
SWITCH = GIVEN["split"] + GIVEN["join"] * H200.units + PARTIALS


def kernel(cache: str = "bf16", tiles: tuple[int, ...] = (64, 64)) -> Kernel:
    return Kernel(formats={"core": weight_format("bf16"), "cache": weight_format(cache)}, tiles=tiles)


KERNELS = [kernel(), kernel("fp8"), kernel(tiles=(128, 16, 64)), kernel(tiles=(32, 16)), kernel(tiles=())]
SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2048),
        "heads": st.sampled_from([1, 8, 16, 32, 64, 128]),
        "q_len": st.integers(1, 4),
        "context": st.integers(1, 200_000),
    }
)


def seconds(which: Kernel, shape: Mapping[str, float], **changed: float) -> float:
    return float(FORM.parts(H200, which, shape, {**GIVEN, **changed}).seconds)


@given(SHAPES, st.sampled_from(KERNELS))
def test_positive_finite_and_no_less_than_its_parts(shape: dict[str, int], which: Kernel) -> None:
    found = FORM.parts(H200, which, shape, GIVEN)
    assert 0 < max(float(found.compute), float(found.memory)) <= float(found.seconds) < np.inf


@given(SHAPES, st.sampled_from([kernel(), kernel("fp8")]), st.sampled_from(["batch", "context"]), st.integers(2, 5))
def test_more_work_is_faster_by_a_switch_at_most(shape: dict[str, int], which: Kernel, name: str, times: int) -> None:
    assert seconds(which, {**shape, name: times * shape[name]}) >= seconds(which, shape) - SWITCH


@given(SHAPES, st.sampled_from(["batch", "context"]), st.integers(2, 5))
def test_keys_that_are_never_split_make_it_monotone(shape: dict[str, int], name: str, times: int) -> None:
    more = {**shape, name: times * shape[name]}
    assert seconds(kernel(), more, least=1e6) >= seconds(kernel(), shape, least=1e6) * (1 - 1e-9)


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("name", ["batch", "context"])
def test_ten_times_the_work_takes_eight_times_as_long_where_all_sms_are_busy(which: Kernel, name: str) -> None:
    shape = {"batch": 256, "heads": 128, "q_len": 1, "context": 8192}
    assert seconds(which, {**shape, name: 10 * shape[name]}) > 8 * seconds(which, shape)


@pytest.mark.parametrize("which", KERNELS)
def test_a_scalar_equals_its_element_of_an_array(which: Kernel) -> None:
    grid = np.meshgrid([1, 7, 200], [1, 32, 128], [1, 2], [1, 777, 65_536], indexing="ij")
    columns = dict(zip(FORM.shape, (axis.ravel() for axis in grid), strict=True))
    found = np.asarray(FORM.parts(H200, which, columns, GIVEN).seconds)
    alone = [seconds(which, {name: int(values[row]) for name, values in columns.items()}) for row in range(found.size)]
    np.testing.assert_allclose(found, alone, rtol=1e-12)


@given(SHAPES)
def test_heads_and_new_tokens_are_both_rows_of_a_tile(shape: dict[str, int]) -> None:
    packed = {**shape, "heads": shape["heads"] * shape["q_len"], "q_len": 1}
    assert seconds(kernel(), packed) == pytest.approx(seconds(kernel(), shape))


@given(SHAPES, st.sampled_from(KERNELS))
def test_without_l2_all_of_the_cache_comes_from_memory(shape: dict[str, int], which: Kernel) -> None:
    cold = FORM.parts(replace(H200, l2=None), which, shape, GIVEN)
    cached = shape["batch"] * shape["context"] * 576 * which.formats["cache"].bytes_per_element
    assert float(cold.seconds) >= seconds(which, shape) * (1 - 1e-12)
    assert float(cold.memory) >= cached / H200.memory.bandwidth


def test_a_small_cache_stays_in_l2_and_a_large_one_does_not() -> None:
    small, large = {"batch": 8, "heads": 16, "q_len": 1, "context": 2048}, {"batch": 64, "heads": 16, "q_len": 1}
    cold = replace(H200, l2=None)
    warm_share = [
        float(FORM.parts(H200, kernel(), shape, {**GIVEN, "passes": 0.1}).memory)
        / float(FORM.parts(cold, kernel(), shape, {**GIVEN, "passes": 0.1}).memory)
        for shape in (small, {**large, "context": 8192})
    ]
    assert warm_share[0] < 0.6
    assert warm_share[1] > 0.99


def test_trtllm_takes_the_small_tile_up_to_two_of_them_or_for_few_keys() -> None:
    def tiles(batch: int, heads: int, context: int) -> float:
        alone = {**dict.fromkeys(GIVEN, 0.0), "bandwidth": 1.0, "least": 1e9, "softmax": 1.0, "tail": 1.0}
        shape = {"batch": batch, "heads": heads, "q_len": 1, "context": context}
        of_row = FORM.parts(H200, kernel(tiles=(128, 16, 64)), shape, alone).compute
        one = FORM.parts(H200, kernel(tiles=(128, 16)), {**shape, "batch": 1, "heads": 1}, alone).compute
        return float(of_row) / float(one)

    assert tiles(1, 32, 65_536) == pytest.approx(1.0)  # two CTAs of 16 rows side by side
    assert tiles(1, 64, 65_536) == pytest.approx(4.0)  # one of 64 rows
    assert tiles(1, 64, 1024) == pytest.approx(1.0)  # few keys: four of 16 rows side by side
    assert tiles(200, 64, 1024) == pytest.approx(8.0)  # more CTAs than SMs: two waves of 64 rows


def test_softmax_carries_over_from_h800_to_h20_where_a_share_of_the_peak_would_not() -> None:
    name = "mla_decode.bf16-bf16.flashmla"
    softmax = [fit(name, gpu).parameters["softmax"] for gpu in ("h800", "h20")]
    assert softmax[0] == pytest.approx(softmax[1], rel=0.05)
    assert all(error.median < 0.08 for _, _, error in carried(name))


@pytest.mark.parametrize("recipe", recipes("mla_decode"))
def test_packaged_fits_reach_the_bar(recipe: str) -> None:
    for gpu, error in own_errors(recipe).items():
        if gpu in BARS:
            assert error.median <= BARS[gpu], gpu
            assert error.p90 <= 0.16, gpu


def test_packaged_fits_carry_over_inside_their_generation() -> None:
    near = {("h100",), ("h200",), ("b200",), ("gb200",), ("b200", "gb200"), ("b300", "gb300"), ("h800",), ("h20",)}
    for recipe in recipes("mla_decode"):
        for of, to, error in carried(recipe):
            if of in near:
                assert error.median <= 0.08, (recipe, of, to)


@pytest.mark.parametrize(
    ("name", "gpu", "shape", "microseconds"),
    [  # rows of the tables that the fits were made of
        ("bf16-bf16.sglang-fa3", "h200", (128, 16, 1, 4096), 155.8),
        ("bf16-bf16.sglang-fa3", "h200", (16, 128, 1, 8192), 80.8),
        ("bf16-bf16.sglang-trtllm-mla", "b200", (128, 16, 1, 8192), 228.5),
        ("bf16-bf16.sglang-trtllm-mla", "b200", (32, 32, 1, 16_384), 175.7),
        ("bf16-bf16.trtllm-unsplit", "a100-80", (8, 64, 1, 16_384), 2023.4),
        ("bf16-bf16.flashmla", "h20", (128, 128, 1, 5000), 1454.0),
    ],
)
def test_packaged_fits_find_measured_rows(name: str, gpu: str, shape: tuple[int, ...], microseconds: float) -> None:
    found = fit(f"mla_decode.{name}", gpu).parts(CATALOG.gpu(gpu), dict(zip(FORM.shape, shape, strict=True)))
    assert float(found.seconds) == pytest.approx(microseconds * 1e-6, rel=0.1)
