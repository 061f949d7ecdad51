"""Laws of the form of multi-head and grouped-query prefill, and the errors that its packaged fits reach."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from packaged_fits import carried, own_errors

from moeplan.kernels.forms.form import Kernel, Shape
from moeplan.kernels.forms.gqa_prefill import FORM
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
H200 = CATALOG.gpu("h200")
GIVEN = {parameter.name: parameter.start for parameter in FORM.parameters}
KERNELS = [
    Kernel(formats={"core": weight_format(core), "cache": weight_format(cache)}, tiles=tiles)
    for (core, cache), tiles in product(
        (("bf16", "bf16"), ("bf16", "fp8"), ("fp8", "fp8")), ((), (128, 128), (128, 1), (256, 1))
    )
]
SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 256),
        "heads": st.sampled_from([1, 8, 64]),
        "kv_heads": st.just(1),
        "head_dim": st.sampled_from([64, 128, 192, 256]),
        "q_len": st.integers(1, 16_384),
        "context": st.integers(16_384, 100_000),
    }
)


def seconds(kernel: Kernel, shape: Mapping[str, float]) -> float:
    return float(FORM.parts(H200, kernel, shape, GIVEN).seconds)


@given(SHAPES, st.sampled_from(KERNELS))
def test_positive_finite_and_no_less_than_its_parts(shape: dict[str, int], kernel: Kernel) -> None:
    found = FORM.parts(H200, kernel, shape, GIVEN)
    assert 0 < max(float(found.compute), float(found.memory)) < float(found.seconds) < np.inf


@given(SHAPES, st.sampled_from(KERNELS), st.sampled_from(["batch", "heads", "context"]), st.integers(2, 5))
def test_more_requests_heads_or_prefix_take_longer(
    shape: dict[str, int], kernel: Kernel, name: str, times: int
) -> None:
    assert seconds(kernel, {**shape, name: shape[name] * times}) >= seconds(kernel, shape)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_longer_prompt_takes_longer(kernel: Kernel) -> None:
    length = np.arange(1.0, 20_000.0)
    shape: Shape = {"batch": 4, "heads": 8, "kv_heads": 1, "head_dim": 128, "q_len": length, "context": length}
    steps = np.diff(FORM.parts(H200, kernel, shape, GIVEN).seconds)
    assert steps.min() >= -1e-12


def test_scalars_equal_an_array() -> None:
    rows = list(product([1, 7], [8, 64], [1, 8], [64, 256], [1, 2, 300], [300, 30_000]))
    columns = {
        name: np.array(values, dtype=float) for name, values in zip(FORM.shape, zip(*rows, strict=True), strict=True)
    }
    found = FORM.parts(H200, KERNELS[1], columns, GIVEN).seconds
    assert found == pytest.approx([seconds(KERNELS[1], dict(zip(FORM.shape, row, strict=True))) for row in rows])


@given(SHAPES, st.sampled_from(KERNELS))
def test_faster_memory_and_tensor_cores_never_slow_down(shape: dict[str, int], kernel: Kernel) -> None:
    memory = replace(H200.memory, bandwidth=2 * H200.memory.bandwidth)
    faster = replace(H200, memory=memory, compute={name: 2 * rate for name, rate in H200.compute.items()})
    assert float(FORM.parts(faster, kernel, shape, GIVEN).seconds) <= seconds(kernel, shape)


def test_long_prompts_come_close_to_the_tensor_peak_where_it_is_low() -> None:
    shape = {"batch": 1, "heads": 32, "kv_heads": 4, "head_dim": 128, "q_len": 32_768, "context": 32_768}
    flops = 4 * 32 * 128 * 32_768**2 / 2
    share = {
        gpu: flops
        / float(FORM.parts(CATALOG.gpu(gpu), KERNELS[1], shape, GIVEN).seconds)
        / CATALOG.gpu(gpu).peak("bf16")
        for gpu in ("h20", "h200")
    }
    assert share["h20"] > 0.85
    assert share["h200"] < 0.8


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("bf16-bf16.sglang-fa3", 0.08),
        ("fp8-fp8.sglang-fa3", 0.08),
        ("bf16-bf16.vllm-fa3", 0.08),
        ("bf16-fp8.vllm-fa3", 0.09),
        ("bf16-bf16.trtllm-fmha", 0.085),
        ("fp8-fp8.trtllm-fmha", 0.08),
        ("bf16-bf16.sglang-trtllm-gen", 0.082),
        ("bf16-bf16.vllm-trtllm-gen", 0.08),
        ("bf16-bf16.trtllm-gen", 0.08),
        ("fp8-fp8.trtllm-gen", 0.08),
        ("bf16-bf16.sglang-fa2", 0.08),
    ],
)
def test_own_fits_reach_their_bar_on_shapes_left_out(name: str, bar: float) -> None:
    own = {gpu: error.median for gpu, error in own_errors(f"gqa_prefill.{name}").items()}
    assert own
    assert all(median <= bar for median in own.values()), own


def test_h20_is_predicted_from_h100_and_h200_alone() -> None:
    found = [error.median for _, to, error in carried("gqa_prefill.bf16-bf16.sglang-fa3") if to == "h20"]
    assert found
    assert max(found) <= 0.08
