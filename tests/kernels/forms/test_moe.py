"""The fused mixture of experts: laws of its form, and the packaged fits against the bars that they reach."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaged_fits import CATALOG, carried, own_errors, recipes

from moeplan.kernels.forms.form import Kernel, Parts
from moeplan.kernels.forms.moe import FORM, PARAMETERS, around, one_gemm, takes_large
from moeplan.kernels.recipe import read_recipe, recipe_path
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

START = {parameter.name: parameter.start for parameter in PARAMETERS}
KINDS = {"bf16": (16, 64), "fp8_block": (64,), "nvfp4": (8,)}  # tiles that some kernel of that format has
ROUNDING = 1 + 1e-9


def kernel(weights: str) -> Kernel:
    return Kernel(formats={"weights": weight_format(weights)}, tiles=KINDS[weights])


def balanced(tokens: Any, *, ep: int = 8, **given: float) -> dict[str, Any]:
    """A layer of DeepSeek-V3's kind where every expert gets as much."""
    layer = {"hidden": 7168.0, "inter": 2048.0, "top_k": 8.0, "experts": 256.0, "tp": 1.0, "gated": 2.0, **given}
    rows = np.asarray(tokens, dtype=float) * layer["top_k"] / ep
    active = np.minimum(layer["experts"] / ep, np.ceil(rows))
    return {"tokens": tokens, **layer, "ep": float(ep), "rows": rows, "active": active}


def ask(weights: str, shape: dict[str, Any], gpu: str = "b200") -> Parts:
    return FORM.parts(Catalog.standard().gpu(gpu), kernel(weights), shape, START)


@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("tokens", [1, 33, 4096])
def test_the_whole_is_its_two_gemms_and_what_lies_around(weights: str, tokens: int) -> None:
    gpu, shape = Catalog.standard().gpu("b200"), balanced(tokens, tp=2.0)
    large = takes_large(shape["tokens"], shape["experts"], shape["ep"])
    rows, active, inter = shape["rows"], shape["active"], shape["inter"] / shape["tp"]
    up = one_gemm(gpu, kernel(weights), rows, active, 2.0 * inter, shape["hidden"], START, large=large)
    down = one_gemm(gpu, kernel(weights), rows, active, shape["hidden"], inter, START, large=large)
    rest = around(gpu, kernel(weights), shape, START)
    whole = ask(weights, shape)
    assert whole.seconds == rest.seconds + up.seconds + down.seconds
    assert whole.memory == rest.memory + up.memory + down.memory


@given(
    weights=st.sampled_from(sorted(KINDS)),
    tokens=st.integers(1, 100_000),
    ep=st.sampled_from((1, 8, 64)),
    tp=st.sampled_from((1.0, 8.0)),
    gated=st.sampled_from((1.0, 2.0)),
)
def test_times_are_positive_and_cover_their_parts(weights: str, tokens: int, ep: int, tp: float, gated: float) -> None:
    parts = ask(weights, balanced(tokens, ep=ep, tp=tp, gated=gated))
    assert np.isfinite(parts.seconds)
    assert parts.compute > 0
    assert parts.memory > 0
    assert parts.seconds > START["floor"]
    assert parts.floor > 0


@given(
    weights=st.sampled_from(sorted(KINDS)),
    tokens=st.integers(1, 20_000),
    more=st.integers(1, 20_000),
    ep=st.sampled_from((1, 8, 64)),
)
def test_more_tokens_of_equal_loads_are_never_faster(weights: str, tokens: int, more: int, ep: int) -> None:
    few, many = (ask(weights, balanced(count, ep=ep)).seconds for count in (tokens, tokens + more))
    assert few <= many * ROUNDING


@given(
    weights=st.sampled_from(sorted(KINDS)),
    tokens=st.integers(1, 20_000),
    column=st.sampled_from(("hidden", "inter", "gated", "rows")),
    by=st.floats(1.0, 4.0),
)
def test_a_wider_layer_or_more_rows_are_never_faster(weights: str, tokens: int, column: str, by: float) -> None:
    shape = balanced(tokens)
    assert ask(weights, shape).seconds <= ask(weights, {**shape, column: shape[column] * by}).seconds * ROUNDING


@pytest.mark.parametrize("weights", KINDS)
def test_more_active_experts_of_the_same_rows_are_never_faster_by_more_than_their_tiles(weights: str) -> None:
    active = np.arange(1.0, 33.0)
    shape = {**balanced(4096), "active": active, "rows": np.full(32, 32.0)}
    assert np.all(np.diff(np.maximum.accumulate(ask(weights, shape).seconds)) >= 0)
    assert np.ptp(ask(weights, shape).seconds) > 0


@pytest.mark.parametrize("weights", KINDS)
def test_a_scalar_equals_the_matching_element_of_an_array(weights: str) -> None:
    tokens = np.array([1, 8, 100, 257, 4096, 16384])
    together = ask(weights, balanced(tokens))
    for place, each in enumerate(tokens.tolist()):
        alone = ask(weights, balanced(each))
        for one, all_ in zip(
            (alone.seconds, alone.compute, alone.memory),
            (together.seconds, together.compute, together.memory),
            strict=True,
        ):
            assert one == np.asarray(all_)[place]


def test_columns_broadcast() -> None:
    shape = {**balanced(np.array([[1.0], [64.0]])), "inter": np.array([512.0, 1024.0, 2048.0])}
    assert np.shape(ask("nvfp4", shape).seconds) == (2, 3)


def test_tritons_default_configuration_turns_to_its_large_tile_past_as_many_tokens_as_local_experts() -> None:
    assert np.asarray(takes_large(np.array([31, 32, 33]), 256, 8)).tolist() == [False, False, True]
    small, large = (ask("bf16", balanced(count), gpu="h200").seconds for count in (32, 33))
    assert large > 1.05 * small


def test_weights_beside_fewer_than_16_rows_are_held_in_whole_blocks() -> None:
    gpu = Catalog.standard().gpu("b200")
    narrow, whole = (one_gemm(gpu, kernel("nvfp4"), 32.0, 32.0, 4096.0, k, START) for k in (32.0, 128.0))
    assert whole.memory < 1.01 * narrow.memory
    narrow, whole = (one_gemm(gpu, kernel("fp8_block"), 32.0, 32.0, 4096.0, k, START) for k in (32.0, 128.0))
    assert whole.memory > 3 * narrow.memory


def test_a_hundred_thousand_shapes_take_a_blink() -> None:
    shape = balanced(np.arange(1.0, 100_001.0))
    began = time.process_time()
    ask("bf16", shape)
    assert time.process_time() - began < 0.2


@pytest.mark.parametrize("recipe", recipes("moe"))
def test_every_recipe_has_an_error_of_its_own_for_every_gpu(recipe: str) -> None:
    own = own_errors(recipe)
    assert set(own) == {source.gpu for source in read_recipe(recipe_path(CATALOG, recipe)).samples}
    assert all(error.rows > 300 for error in own.values())


# Median error on whole shapes held out, as the files have it, at or below the bar: 4.5 % for fp8 in
# blocks, 7 % for bf16 and TRTLLM-Gen, 9 % for nvfp4. What misses its bar is not here.
@pytest.mark.parametrize(
    ("name", "gpus", "bar"),
    [
        ("fp8_block.trtllm-cutlass", ("h100", "h200"), 0.045),
        ("fp8_block.trtllm-deepgemm", ("b200", "b300", "gb300"), 0.045),
        ("fp8_block.sglang-triton", ("h100",), 0.045),
        ("fp8_block.vllm-triton", ("h100",), 0.045),
        ("fp8_block.vllm-cutlass", ("h100",), 0.045),
        ("bf16.trtllm-cutlass", ("h100", "h200", "b200", "gb200", "b300", "gb300", "rtx-pro-6000"), 0.07),
        ("bf16.vllm-triton", ("h100", "h200"), 0.07),
        ("bf16.sglang-trtllm-gen", ("b200", "gb200", "b300", "gb300"), 0.07),
        ("bf16.vllm-trtllm-gen", ("b200", "gb200", "b300", "gb300"), 0.07),
        ("fp8_block.vllm-trtllm-gen", ("b200", "gb200", "b300", "gb300"), 0.07),
        ("nvfp4.vllm-trtllm-gen", ("b300", "gb300"), 0.07),
        ("mxfp4.vllm-trtllm-gen", ("b200", "gb200", "b300", "gb300"), 0.07),
        ("nvfp4.trtllm-cutlass", ("gb200", "b300", "gb300", "rtx-pro-6000"), 0.09),
    ],
)
def test_whole_shapes_held_out_are_within_the_bar(name: str, gpus: tuple[str, ...], bar: float) -> None:
    own = {gpu: error.median for gpu, error in own_errors(f"moe.{name}").items()}
    assert {gpu: own[gpu] for gpu in gpus if own[gpu] > bar} == {}


@pytest.mark.parametrize(
    ("name", "to", "of", "bar"),
    [
        ("fp8_block.trtllm-cutlass", "h200", ["h100"], 0.08),
        ("fp8_block.trtllm-deepgemm", "gb300", ["b200", "gb200"], 0.08),
        ("fp8_block.sglang-triton", "h200", ["h100"], 0.08),
        ("bf16.trtllm-cutlass", "b200", ["h100", "h200"], 0.15),
        ("bf16.sglang-trtllm-gen", "gb200", ["b200"], 0.08),
        ("bf16.sglang-triton", "a100-80", ["h100", "h200"], 0.2),
    ],
)
def test_parameters_carry_over_to_a_chip_that_they_have_not_seen(name: str, to: str, of: list[str], bar: float) -> None:
    found = [error.median for source, gpu, error in carried(f"moe.{name}") if gpu == to and list(source) == of]
    assert found
    assert max(found) <= bar
