"""Laws of the form of multi-head and grouped-query decode, and the errors that its packaged fits reach."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from packaged_fits import own_errors

from moeplan.kernels.forms.form import Kernel
from moeplan.kernels.forms.gqa_decode import FORM, cold_share
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
H200 = CATALOG.gpu("h200")
GIVEN = {parameter.name: parameter.start for parameter in FORM.parameters}
SWITCH = GIVEN["split"] + GIVEN["join"] * GIVEN["waves"] * H200.units  # what no longer splitting keys saves at most
KERNELS = [
    Kernel(formats={"core": weight_format("bf16"), "cache": weight_format(cache)}, tiles=tiles)
    for cache, tiles in product(("bf16", "fp8"), ((), (64, 128, 640), (8, 16, 32, 64, 640), (1, 256)))
]
SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2048),
        "heads": st.sampled_from([1, 8, 64, 128]),
        "kv_heads": st.just(1),
        "head_dim": st.sampled_from([64, 128, 192, 256]),
        "q_len": st.integers(1, 8),
        "context": st.integers(1, 200_000),
    }
)


def seconds(kernel: Kernel, shape: Mapping[str, float], gpu: str = "h200") -> float:
    return float(FORM.parts(CATALOG.gpu(gpu), kernel, shape, GIVEN).seconds)


@given(SHAPES, st.sampled_from(KERNELS))
def test_positive_finite_and_no_less_than_its_parts(shape: dict[str, int], kernel: Kernel) -> None:
    found = FORM.parts(H200, kernel, shape, GIVEN)
    assert 0 < max(float(found.compute), float(found.memory)) <= float(found.seconds) < np.inf
    assert float(found.floor) >= GIVEN["floor"]


@given(SHAPES, st.sampled_from(KERNELS), st.sampled_from(["batch", "heads", "q_len", "context"]), st.integers(2, 5))
def test_more_work_is_faster_by_a_switch_at_most(shape: dict[str, int], kernel: Kernel, name: str, times: int) -> None:
    assert seconds(kernel, {**shape, name: shape[name] * times}) >= seconds(kernel, shape) - 1.5 * SWITCH


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["batch", "context"])
def test_ten_times_the_work_takes_longer_where_all_sms_are_busy(kernel: Kernel, name: str) -> None:
    shape = {"batch": 256, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": 1, "context": 4096}
    assert seconds(kernel, {**shape, name: 10 * shape[name]}) > 8 * seconds(kernel, shape)


def test_scalars_equal_an_array() -> None:
    rows = list(product([1, 7, 300], [8, 64], [1, 8], [64, 256], [1, 2], [3, 600, 30_000]))
    columns = {
        name: np.array(values, dtype=float) for name, values in zip(FORM.shape, zip(*rows, strict=True), strict=True)
    }
    found = FORM.parts(H200, KERNELS[2], columns, GIVEN).seconds
    assert found == pytest.approx([seconds(KERNELS[2], dict(zip(FORM.shape, row, strict=True))) for row in rows])


@given(SHAPES, st.sampled_from(KERNELS))
def test_a_cold_cache_takes_at_least_as_long(shape: dict[str, int], kernel: Kernel) -> None:
    cold = float(FORM.parts(replace(H200, l2=None), kernel, shape, GIVEN).seconds)
    assert cold >= seconds(kernel, shape) * (1 - 1e-12)


def test_cold_share_goes_from_none_to_all() -> None:
    shares = np.asarray(cold_share(np.array([1e5, 1e6, 1e7]), 1e6))
    assert shares[0] < 1e-5
    assert shares[1] == 0.5
    assert shares[2] > 0.999
    assert float(cold_share(np.array(1e6), 0.0)) == 1.0


@given(SHAPES, st.sampled_from(KERNELS))
def test_faster_memory_and_tensor_cores_never_slow_down(shape: dict[str, int], kernel: Kernel) -> None:
    memory = replace(H200.memory, bandwidth=2 * H200.memory.bandwidth)
    faster = replace(H200, memory=memory, compute={name: 2 * rate for name, rate in H200.compute.items()})
    assert float(FORM.parts(faster, kernel, shape, GIVEN).seconds) <= seconds(kernel, shape)


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("bf16-bf16.sglang-fa3", 0.07),
        ("bf16-fp8.sglang-fa3", 0.07),
        ("bf16-bf16.vllm-fa3", 0.07),
        ("bf16-fp8.vllm-fa3", 0.075),
        ("bf16-bf16.sglang-trtllm-gen", 0.07),
        ("bf16-bf16.vllm-trtllm-gen", 0.07),
        ("bf16-bf16.trtllm-gen", 0.07),
        ("bf16-bf16.trtllm-xqa", 0.12),
        ("bf16-fp8.trtllm-xqa", 0.12),
        ("bf16-bf16.sglang-fa2", 0.07),
        ("bf16-bf16.flashinfer", 0.08),
    ],
)
def test_own_fits_reach_their_bar_on_shapes_left_out(name: str, bar: float) -> None:
    own = {gpu: error.median for gpu, error in own_errors(f"gqa_decode.{name}").items()}
    assert own
    assert all(median <= bar for median in own.values()), own
