"""Laws of the form of MLA prefill, and the errors that its packaged fits reach."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaged_fits import carried, own_errors, recipes

from moeplan.kernels.forms.form import Kernel
from moeplan.kernels.forms.mla_prefill import FORM
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
H200 = CATALOG.gpu("h200")
GIVEN = {parameter.name: parameter.start for parameter in FORM.parameters}
MEASURED = {"h100", "h200", "b200", "gb200", "b300", "gb300"}
BAR = 0.065


def kernel(*tiles: int, core: str = "bf16") -> Kernel:
    return Kernel(formats={"core": weight_format(core), "cache": weight_format("bf16")}, tiles=tiles)


EXPANDED, ABSORBED = kernel(), kernel(64, 64, 576, 512)
KERNELS = [EXPANDED, ABSORBED, kernel(128, 128, 192, 128, core="fp8")]
SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 256),
        "heads": st.sampled_from([1, 8, 16, 64, 128]),
        "q_len": st.integers(1, 32_768),
        "prefix": st.integers(0, 100_000),
    }
)


def seconds(which: Kernel, shape: Mapping[str, float]) -> float:
    return float(FORM.parts(H200, which, shape, GIVEN).seconds)


def with_context(drawn: dict[str, int]) -> dict[str, int]:
    return {**drawn, "context": drawn["q_len"] + drawn["prefix"]}


@given(SHAPES.map(with_context), st.sampled_from(KERNELS))
def test_positive_finite_and_no_less_than_its_parts(shape: dict[str, int], which: Kernel) -> None:
    found = FORM.parts(H200, which, shape, GIVEN)
    assert 0 < max(float(found.compute), float(found.memory)) <= float(found.seconds) < np.inf


@given(SHAPES.map(with_context), st.sampled_from(KERNELS), st.integers(2, 5))
def test_more_work_never_takes_less_time(shape: dict[str, int], which: Kernel, times: int) -> None:
    less = seconds(which, shape) * (1 - 1e-9)
    new = shape["q_len"] * (times - 1)
    assert seconds(which, {**shape, "batch": times * shape["batch"]}) >= less
    assert seconds(which, {**shape, "heads": times * shape["heads"]}) >= less
    assert seconds(which, {**shape, "context": times * shape["context"]}) >= less  # a longer prefix
    assert seconds(which, {**shape, "q_len": shape["q_len"] + new, "context": shape["context"] + new}) >= less


@pytest.mark.parametrize("which", KERNELS)
def test_a_scalar_equals_its_element_of_an_array(which: Kernel) -> None:
    grid = np.meshgrid([1, 7, 200], [1, 32, 128], [1, 100, 4096], [4096, 65_536], indexing="ij")
    columns = dict(zip(FORM.shape, (axis.ravel() for axis in grid), strict=True))
    found = np.asarray(FORM.parts(H200, which, columns, GIVEN).seconds)
    alone = [seconds(which, {name: int(values[row]) for name, values in columns.items()}) for row in range(found.size)]
    np.testing.assert_allclose(found, alone, rtol=1e-12)


def test_causal_halves_a_long_prompt_and_a_prefix_is_seen_whole() -> None:
    long = {"batch": 4, "heads": 128, "q_len": 16_384, "context": 16_384}
    whole = {**long, "context": 2 * 16_384}  # after as much prefix
    computes = [float(FORM.parts(H200, EXPANDED, shape, GIVEN).compute) for shape in (long, whole)]
    assert computes[1] / computes[0] == pytest.approx(3.0, rel=0.02)


def test_absorbed_heads_take_three_times_the_arithmetic() -> None:
    shape = {"batch": 4, "heads": 128, "q_len": 16_384, "context": 16_384}
    no_softmax = {**GIVEN, "softmax": 0.0}
    computes = [float(FORM.parts(H200, which, shape, no_softmax).compute) for which in (EXPANDED, ABSORBED)]
    assert computes[1] / computes[0] == pytest.approx(3.4, rel=0.02)


def test_arithmetic_is_no_faster_than_the_peak() -> None:
    shape = {"batch": 8, "heads": 128, "q_len": 8192, "context": 8192}
    flops = 8 * 128 * 8192**2 * (192 + 128)  # causal: half of 2 per multiply-add
    assert float(FORM.parts(H200, EXPANDED, shape, GIVEN).compute) > flops / H200.peak("bf16")


@pytest.mark.parametrize("recipe", recipes("mla_prefill"))
def test_packaged_fits_reach_the_bar(recipe: str) -> None:
    for gpu, error in own_errors(recipe).items():
        if gpu in MEASURED:
            assert error.median <= BAR, gpu


def test_trtllm_carries_over_from_hopper_to_blackwell() -> None:
    found = {(of, to): error for of, to, error in carried("mla_prefill.bf16-bf16.trtllm")}
    assert found[("h100", "h200"), "b200"].median < 0.15
    assert found[("h200",), "h100"].median < 0.08
