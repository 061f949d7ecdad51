"""Laws of the form of batched GEMMs, and the errors that its packaged fits reach."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaged_fits import own_errors

from moeplan.kernels.forms.batched_gemm import FORM
from moeplan.kernels.forms.form import Kernel, Shape
from moeplan.kernels.forms.gemm import FORM as ONE
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
H200 = CATALOG.gpu("h200")
KERNEL = Kernel(formats={"weights": weight_format("bf16")})
GIVEN = {parameter.name: parameter.start for parameter in FORM.parameters}
NO_GAIN = 1 - 1e-9
SHAPES = st.fixed_dictionaries(
    {
        "copies": st.integers(1, 256),
        "m": st.integers(1, 20_000),
        "n": st.sampled_from([128, 512, 192]),
        "k": st.sampled_from([128, 512, 192]),
    }
)
BARS = {  # the median error on shapes left out, by file and GPU
    "bf16.sglang-cublas": dict.fromkeys(("a100-80", "h100", "h200", "b200", "gb200", "b300", "gb300"), 0.07),
    "bf16.trtllm-cublas": dict.fromkeys(("a100-80", "h100", "h200", "b200", "b300"), 0.07),
    "bf16.vllm-cublas": dict.fromkeys(("h100", "h200", "b200", "b300"), 0.07),
    "fp8.sglang": dict.fromkeys(("h100", "h200", "b200", "gb200", "b300", "gb300"), 0.09),
    "fp8_block.trtllm": dict.fromkeys(("h100", "h200"), 0.09),
    "bf16.torch-bmm": {"h800": 0.07, "h20": 0.1},
}


@given(SHAPES)
def test_positive_finite_and_no_less_than_its_parts(shape: dict[str, int]) -> None:
    found = FORM.parts(H200, KERNEL, shape, GIVEN)
    assert 0 < max(float(found.compute), float(found.memory)) * NO_GAIN <= float(found.seconds) < np.inf


@given(SHAPES, st.sampled_from(["copies", "m", "n", "k"]), st.integers(2, 7))
def test_more_work_is_never_faster(shape: dict[str, int], name: str, times: int) -> None:
    more = FORM.parts(H200, KERNEL, shape | {name: shape[name] * times}, GIVEN).seconds
    assert float(more) >= float(FORM.parts(H200, KERNEL, shape, GIVEN).seconds) * NO_GAIN


@given(SHAPES)
def test_one_copy_is_a_gemm_that_does_not_split_k(shape: dict[str, int]) -> None:
    alone = GIVEN | {"split": 1.0, "waste": 0.0}
    batched = FORM.parts(H200, KERNEL, shape | {"copies": 1}, GIVEN)
    assert float(batched.seconds) == pytest.approx(float(ONE.parts(H200, KERNEL, shape, alone).seconds))


def test_copies_share_the_sms_and_the_memory() -> None:
    shape = {"m": 4096, "n": 128, "k": 512}
    few, many = (float(FORM.parts(H200, KERNEL, shape | {"copies": copies}, GIVEN).seconds) for copies in (64, 512))
    assert many / few == pytest.approx(8, rel=0.1)


def test_one_shape_is_as_the_same_shape_in_an_array() -> None:
    shape: Shape = {"copies": np.array([16, 128]), "m": np.array([1, 300]), "n": np.array([128, 512]), "k": 128}
    found = FORM.parts(H200, KERNEL, shape, GIVEN)
    one = FORM.parts(H200, KERNEL, {"copies": 128, "m": 300, "n": 512, "k": 128}, GIVEN)
    assert np.asarray(found.seconds)[1] == pytest.approx(float(one.seconds))
    assert np.asarray(found.floor)[1] == pytest.approx(float(one.floor))


@pytest.mark.parametrize(("name", "gpu"), [(name, gpu) for name, bars in BARS.items() for gpu in bars])
def test_a_packaged_fit_is_within_its_bar_on_shapes_left_out(name: str, gpu: str) -> None:
    assert own_errors(f"batched_gemm.{name}")[gpu].median <= BARS[name][gpu]
