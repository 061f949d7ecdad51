"""Laws of the form of dense GEMMs, and the errors that its packaged fits reach."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaged_fits import carried, fit, own_errors

from moeplan.kernels.forms.form import Kernel, Shape
from moeplan.kernels.forms.gemm import FORM
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
H200 = CATALOG.gpu("h200")
GIVEN = {parameter.name: parameter.start for parameter in FORM.parameters}
SMOOTH = GIVEN | {"waste": 0.0}
NO_GAIN = 1 - 1e-9
KERNELS = [
    Kernel(formats={"weights": weight_format(name)}, tiles=tiles)
    for name, tiles in product(("bf16", "fp8_block"), ((), (64, 128), (16, 64, 128)))
]
SHAPES = st.fixed_dictionaries(
    {"m": st.integers(1, 40_000), "n": st.integers(16, 70_000), "k": st.integers(16, 70_000)}
)
FILES = {  # the median error on shapes left out that each may have, by GPU
    "bf16.trtllm-cublas": dict.fromkeys(("a100-80", "h100", "h200", "b200", "gb200", "b300", "gb300"), 0.07),
    "bf16.sglang-cublas": dict.fromkeys(("a100-80", "h100", "h200"), 0.07),
    "bf16.vllm-cublas": dict.fromkeys(("a100-80", "h100", "h200", "b200"), 0.07),
    "fp8_block.sglang-deepgemm": dict.fromkeys(("h100", "h200", "b200", "gb200", "b300", "gb300"), 0.09),
    "fp8_block.trtllm-deepgemm": dict.fromkeys(("h100", "h200", "b200", "gb200", "b300", "gb300"), 0.09),
    "fp8_block.deepgemm": dict.fromkeys(("h800", "h20"), 0.09),
    "nvfp4.trtllm": dict.fromkeys(("b200", "gb200", "b300", "gb300"), 0.08),
    "nvfp4.sglang-flashinfer": dict.fromkeys(("b200", "gb200", "b300", "gb300"), 0.08),
}


def seconds(
    kernel: Kernel, shape: Mapping[str, float], values: Mapping[str, float] = GIVEN, gpu: str = "h200"
) -> float:
    return float(FORM.parts(CATALOG.gpu(gpu), kernel, shape, values).seconds)


def fitted(name: str, gpu: str) -> tuple[Kernel, dict[str, float]]:
    """The kernel of a packaged file and its own parameters on a GPU."""
    found = fit(f"gemm.{name}", gpu)
    return found.kernel, dict(found.parameters)


def test_ten_parameters_at_most_each_inside_its_bounds() -> None:
    assert len(FORM.parameters) <= 10
    assert all(each.low <= each.start <= each.high for each in FORM.parameters)


@given(SHAPES, st.sampled_from(KERNELS))
def test_positive_finite_and_no_less_than_its_parts(shape: dict[str, int], kernel: Kernel) -> None:
    found = FORM.parts(H200, kernel, shape, GIVEN)
    assert 0 < max(float(found.compute), float(found.memory)) * NO_GAIN <= float(found.seconds) < np.inf
    assert float(found.seconds) >= GIVEN["floor"]


@given(SHAPES, st.sampled_from(KERNELS), st.sampled_from(["m", "n", "k"]), st.integers(1, 5000))
def test_more_work_is_never_faster_but_for_rows_loaded_in_vain(
    shape: dict[str, int], kernel: Kernel, name: str, more: int
) -> None:
    larger = shape | {name: shape[name] + more}
    assert seconds(kernel, larger, SMOOTH) >= seconds(kernel, shape, SMOOTH) * NO_GAIN
    wasted = seconds(kernel, shape) - seconds(kernel, shape, SMOOTH)
    assert seconds(kernel, larger) >= (seconds(kernel, shape) - wasted) * NO_GAIN


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_shape_is_as_the_same_shape_in_an_array(kernel: Kernel) -> None:
    shape = {"m": np.array([1, 65, 4096]), "n": np.array([2112, 7168, 24576]), "k": np.array([7168, 2048, 1536])}
    found = FORM.parts(H200, kernel, shape, GIVEN)
    for place in range(3):
        one = FORM.parts(H200, kernel, {name: int(values[place]) for name, values in shape.items()}, GIVEN)
        for part in ("seconds", "compute", "memory", "floor"):
            assert getattr(found, part)[place] == pytest.approx(float(getattr(one, part)), rel=1e-12)


def test_axes_broadcast() -> None:
    shape: Shape = {"m": np.array([1, 64])[:, None], "n": np.array([2112, 7168, 512]), "k": 7168}
    assert np.shape(FORM.parts(H200, KERNELS[0], shape, GIVEN).seconds) == (2, 3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_eight_times_the_work_takes_about_eight_times_as_long_where_all_sms_are_busy(kernel: Kernel, name: str) -> None:
    shape = {"m": 4096, "n": 8192, "k": 8192}
    ratio = seconds(kernel, shape | {name: 8 * shape[name]}, SMOOTH) / seconds(kernel, shape, SMOOTH)
    assert 7.2 < ratio < 8.8


def test_small_batches_of_large_weights_take_the_time_of_their_bytes() -> None:
    shape = {"m": 8, "n": 65536, "k": 16384}
    found = FORM.parts(H200, KERNELS[0], shape, GIVEN)
    read = 65536 * 16384 * 2 / (GIVEN["bandwidth"] * H200.memory.bandwidth)
    assert float(found.memory) == pytest.approx(read, rel=0.01)
    assert float(found.seconds) < 1.2 * read


def test_parts_of_k_keep_a_narrow_product_from_taking_the_time_of_one_long_loop() -> None:
    narrow = {"m": 16, "n": 128, "k": 65536}
    one_piece = 65536 / 128 * GIVEN["latency"]
    assert seconds(KERNELS[0], narrow) < one_piece / 2
    assert seconds(KERNELS[1], narrow) > one_piece  # a kernel whose tiles are named takes k in one piece


def test_repeated_operands_that_fit_into_l2_cost_no_memory_traffic() -> None:
    l40s, small, large = CATALOG.gpu("l40s"), {"m": 16, "n": 1024, "k": 4096}, {"m": 16, "n": 16384, "k": 16384}
    for shape, share in ((small, 0.1), (large, 1.0)):
        warm = FORM.parts(l40s, KERNELS[0], shape, GIVEN | {"warm": 0.5}).memory
        cold = FORM.parts(l40s, KERNELS[0], shape, GIVEN | {"warm": 0.0}).memory
        assert float(warm) <= share * float(cold) * (1 + 1e-9)


def test_rows_beyond_a_tile_cost_up_to_half_again_on_hopper_as_was_measured() -> None:
    kernel, found = fitted("fp8_block.trtllm-deepgemm", "h200")
    ragged, full = ({"m": m, "n": 1536, "k": 7168} for m in (129, 256))
    assert 1.2 < seconds(kernel, ragged, found) / seconds(kernel, full, found) < 2.2  # measured: 34.3 and 18.3 µs
    kernel, found = fitted("fp8_block.trtllm-deepgemm", "b200")
    assert seconds(kernel, ragged, found, "b200") < 1.05 * seconds(kernel, full, found, "b200")  # 12.5 and 12.9 µs


def test_a_kernel_that_loads_64_rows_at_least_is_slower_with_16_of_them_than_with_64() -> None:
    kernel, found = fitted("fp8_block.deepgemm", "h800")
    few, full = ({"m": m, "n": 2112, "k": 7168} for m in (16, 64))
    assert seconds(kernel, few, found, "h800") > 1.3 * seconds(kernel, full, found, "h800")  # measured: 18 and 9.4 µs
    kernel, found = fitted("fp8_block.sglang-deepgemm", "h100")
    assert seconds(kernel, few, found, "h100") <= seconds(kernel, full, found, "h100") * 1.05


def test_h20_takes_longer_than_h800_by_its_tensor_cores_only_where_rows_are_many() -> None:
    kernel, found = fitted("fp8_block.deepgemm", "h800")
    few, many = ({"m": m, "n": 7168, "k": 16384} for m in (64, 4096))
    ratio = [seconds(kernel, shape, found, "h20") / seconds(kernel, shape, found, "h800") for shape in (few, many)]
    assert ratio[0] < 2.2
    assert ratio[1] > 4.0


@pytest.mark.parametrize(("name", "gpu"), [(name, gpu) for name, bars in FILES.items() for gpu in bars])
def test_a_packaged_fit_is_within_its_bar_on_shapes_left_out(name: str, gpu: str) -> None:
    own = own_errors(f"gemm.{name}")[gpu]
    assert own.median <= FILES[name][gpu]
    assert own.rows > 50


@pytest.mark.parametrize("to", ["h100", "h200"])
def test_bf16_carries_over_between_hopper_chips_from_their_peaks(to: str) -> None:
    other = ("h200" if to == "h100" else "h100",)
    (found,) = (error for of, gpu, error in carried("gemm.bf16.trtllm-cublas") if gpu == to and of == other)
    assert found.median < 0.08
