"""Laws of the form of the whole MLA module, and the errors that its packaged fits reach."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaged_fits import carried, own_errors, recipes

from moeplan.kernels.forms.form import Kernel
from moeplan.kernels.forms.mla_module import FORM
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
H200 = CATALOG.gpu("h200")
GIVEN = {parameter.name: parameter.start for parameter in FORM.parameters}
RECIPES = [name for name in recipes("mla_module") if "fp8_block." in name]
MEASURED = {"h100", "h200", "b200", "gb200", "b300", "gb300"}
BAR = 0.06
SWITCH = 3e-5  # what keys that are no longer split save at most: joining and their partial sums


def kernel(*tiles: int, weights: str = "fp8_block") -> Kernel:
    bf16 = weight_format("bf16")
    return Kernel(formats={"core": bf16, "cache": bf16, "weights": weight_format(weights)}, tiles=tiles)


DECODE, PREFILL = kernel(64, 64), kernel(128, 128, 192, 128)
SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 1024),
        "heads": st.sampled_from([1, 8, 16, 64, 128]),
        "q_len": st.integers(1, 512),
        "context": st.integers(512, 100_000),
    }
)


def seconds(which: Kernel, shape: Mapping[str, float]) -> float:
    return float(FORM.parts(H200, which, shape, GIVEN).seconds)


@given(SHAPES, st.sampled_from([DECODE, PREFILL]))
def test_positive_finite_and_longer_than_its_floor(shape: dict[str, int], which: Kernel) -> None:
    assert GIVEN["floor"] < seconds(which, shape) < np.inf


@given(SHAPES, st.sampled_from(["batch", "heads", "context"]), st.integers(2, 5))
def test_more_work_never_takes_less_time(shape: dict[str, int], name: str, times: int) -> None:
    more = {**shape, name: times * shape[name]}
    assert seconds(PREFILL, more) >= seconds(PREFILL, shape) * (1 - 1e-9)
    assert seconds(DECODE, more) >= seconds(DECODE, shape) - SWITCH


@pytest.mark.parametrize("which", [DECODE, PREFILL, kernel(128, 16, 64)])
def test_a_scalar_equals_its_element_of_an_array(which: Kernel) -> None:
    grid = np.meshgrid([1, 7, 200], [1, 32, 128], [1, 100], [4096, 65_536], indexing="ij")
    columns = dict(zip(FORM.shape, (axis.ravel() for axis in grid), strict=True))
    found = np.asarray(FORM.parts(H200, which, columns, GIVEN).seconds)
    alone = [seconds(which, {name: int(values[row]) for name, values in columns.items()}) for row in range(found.size)]
    np.testing.assert_allclose(found, alone, rtol=1e-12)


def test_all_weights_are_read_once() -> None:
    """DeepSeek-V3's own sizes: 7168 x 2112, 1536 x 24576, 16384 x 7168, and both halves of 512 x 32768."""
    found = FORM.parts(
        H200, kernel(64, 64, weights="bf16"), {"batch": 1, "heads": 128, "q_len": 1, "context": 1}, GIVEN
    )
    weights = 7168 * 2112 + 1536 * 24_576 + 16_384 * 7168 + 512 * 32_768
    assert float(found.memory) * GIVEN["bandwidth"] * H200.memory.bandwidth == pytest.approx(2 * weights, rel=0.01)


def test_a_narrower_format_is_faster_where_weights_are_read() -> None:
    shape = {"batch": 1, "heads": 128, "q_len": 1, "context": 1024}
    assert seconds(kernel(64, 64, weights="fp8_block"), shape) < seconds(kernel(64, 64, weights="bf16"), shape)


@pytest.mark.parametrize("recipe", RECIPES)
def test_packaged_fits_reach_the_bar(recipe: str) -> None:
    for gpu, error in own_errors(recipe).items():
        if gpu in MEASURED:
            assert error.median <= BAR, gpu
            assert error.p90 <= 0.16, gpu


@pytest.mark.parametrize("recipe", RECIPES)
def test_packaged_fits_carry_over_inside_their_generation(recipe: str) -> None:
    for of, to, error in carried(recipe):
        if (*of, to) in {("h100", "h200"), ("h200", "h100"), ("b200", "gb200"), ("gb200", "b200")}:
            assert error.median <= 0.08, (of, to)
