"""Measured kernels come back exactly; everything else says how far it is from a measurement."""

from __future__ import annotations

import csv
import dataclasses
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.origin import Origin
from moeplan.ops.attention import mla_decode
from moeplan.ops.cost import Cost
from moeplan.ops.gemm import gemm
from moeplan.ops.grouped_gemm import grouped_gemm
from moeplan.ops.machine import Machine
from moeplan.routing.slots import ExpertLoad
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.gpu import EDITED
from moeplan.specs.model import Mla
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
FP8, BF16 = weight_format("fp8_block"), weight_format("bf16")


def machine(gpu: str) -> Machine:
    cluster = Cluster(gpu=CATALOG.gpu(gpu), nic=CATALOG.nic("cx7"), gpus_per_node=8, nics_per_node=8)
    return Machine.of(cluster, CATALOG)


def rows(gpu: str, family: str) -> list[dict[str, float]]:
    path = CATALOG.kernel_table(gpu, family)
    assert path is not None
    with path.open(newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def grouped(gpu: str, *, groups: float, m: float, n: int = 4096, k: int = 7168) -> Cost:
    load = ExpertLoad(rows=groups * m, slots=groups, active=groups, mean_rows_per_slot=m)
    return grouped_gemm("routed", machine(gpu), load=load, n=n, k=k, weights=FP8, down=n > k, exact=True)


def mla(gpu: str, *, batch: float, heads: int, q_len: float, context: float) -> Cost:
    shape = Mla(heads=heads, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    return mla_decode("core", machine(gpu), shape, batch=batch, q_len=q_len, context=context, core=BF16, cache=BF16)


def test_the_output_projection_of_deepseek_on_h800() -> None:
    cost = gemm("o_proj", machine("h800"), m=128, n=7168, k=16384, weights=FP8)
    assert cost.seconds == pytest.approx(46.6e-6, abs=0.1e-6)
    assert cost.origin is Origin.MEASURED
    assert "DeepGEMM dense FP8 on H800" in cost.source


def test_two_groups_of_512_rows_on_h800() -> None:
    cost = grouped("h800", groups=2, m=512)
    assert 57.8e-6 <= float(cost.seconds) <= 58.0e-6
    assert cost.origin is Origin.MEASURED


@pytest.mark.parametrize("gpu", ["h800", "h20"])
def test_every_dense_row_comes_back(gpu: str) -> None:
    found = rows(gpu, "gemm_fp8")
    assert len(found) > 50
    for row in found:
        cost = gemm("x", machine(gpu), m=row["m"], n=int(row["n"]), k=int(row["k"]), weights=FP8)
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
def test_every_attention_row_comes_back(gpu: str) -> None:
    """Rows of the same heads·q_len and cached tokens are the same work: one answer, between them."""
    same: dict[tuple[float, float], list[float]] = defaultdict(list)
    for row in rows(gpu, "mla_decode_bf16"):
        same[row["heads"] * row["q_len"], row["batch"] * row["context"]].append(row["seconds"])
    for row in rows(gpu, "mla_decode_bf16"):
        batch, heads, q_len = row["batch"], int(row["heads"]), row["q_len"]
        cost = mla(gpu, batch=batch, heads=heads, q_len=q_len, context=row["context"])
        measured = same[heads * q_len, batch * row["context"]]
        assert min(measured) * (1 - 1e-9) <= float(cost.seconds) <= max(measured) * (1 + 1e-9), row
        assert cost.origin is Origin.MEASURED


@pytest.mark.parametrize("gpu", ["h800", "h20"])
def test_a_table_measured_in_l2_is_capped_and_called_an_assumption(gpu: str) -> None:
    """Its weights stayed in the cache: no kernel is believed above 0.78 of the roofline."""
    for row in rows(gpu, "gemm_batched_bf16"):
        m, n, k, copies = row["m"], int(row["n"]), int(row["k"]), int(row["copies"])
        cost = gemm("x", machine(gpu), m=m, n=n, k=k, weights=BF16, copies=copies)
        device = CATALOG.gpu(gpu)
        traffic = copies * (m * k + n * k + m * n) * 2.0
        ideal = max(2 * copies * m * n * k / device.compute["bf16"], traffic / device.memory.bandwidth)
        assert cost.seconds == pytest.approx(max(row["seconds"], ideal / 0.78), rel=1e-9), row
        assert cost.origin is Origin.ASSUMED
        assert "at most 0.78" in cost.source


def test_between_two_measured_rows_the_efficiency_is_between_theirs() -> None:
    library = machine("h800").kernels
    low = library.gemm(m=64, n=4096, k=7168, weights=FP8)
    high = library.gemm(m=128, n=4096, k=7168, weights=FP8)
    for m in (65, 80, 96, 127):
        found = library.gemm(m=m, n=4096, k=7168, weights=FP8)
        assert min(low.compute, high.compute) <= found.compute <= max(low.compute, high.compute)
        assert found.origin is Origin.INTERPOLATED
    # by hand: half way in log(m) is the mean of the two efficiencies
    middle = library.gemm(m=np.sqrt(64 * 128), n=4096, k=7168, weights=FP8)
    assert middle.compute == pytest.approx((float(low.compute) + float(high.compute)) / 2, rel=1e-12)


def test_groups_between_measured_ones() -> None:
    # At 64 rows and 4096 × 7168: 2, 3, 4 and 6 groups are measured, 5 is between 4 and 6.
    library = machine("h800").kernels
    four, five, six = (
        library.grouped_gemm(rows_per_group=64, groups=g, n=4096, k=7168, weights=FP8, down=False) for g in (4, 5, 6)
    )
    assert min(four.compute, six.compute) <= five.compute <= max(four.compute, six.compute)
    assert (four.origin, five.origin) == (Origin.MEASURED, Origin.INTERPOLATED)


def test_beyond_the_table_the_nearest_efficiency_is_carried_and_said() -> None:
    library = machine("h800").kernels
    last, far = (library.gemm(m=m, n=4096, k=7168, weights=FP8) for m in (4096, 100_000))
    assert far.compute == last.compute
    assert far.origin is Origin.EXTRAPOLATED
    assert grouped("h800", groups=40, m=64).origin is Origin.EXTRAPOLATED
    assert grouped("h800", groups=18, m=1000).origin is Origin.EXTRAPOLATED  # 18 groups were measured to 64 rows
    assert mla("h800", batch=512, heads=128, q_len=1, context=5000).origin is Origin.EXTRAPOLATED
    assert mla("h800", batch=32, heads=128, q_len=3, context=5000).origin is Origin.EXTRAPOLATED


def test_another_weight_shape_is_extrapolated_or_assumed() -> None:
    library = machine("h800").kernels
    near = library.gemm(m=128, n=7168, k=12288, weights=FP8)
    assert near.origin is Origin.EXTRAPOLATED
    assert "shape of n, k = 7168, 16384" in near.source
    far = library.gemm(m=128, n=129280, k=7168, weights=FP8)
    assert far.origin is Origin.ASSUMED
    assert "far off" in far.source


def test_another_precision_is_assumed() -> None:
    found = machine("h800").kernels.gemm(m=128, n=7168, k=16384, weights=BF16)
    assert found.origin is Origin.ASSUMED
    assert "another precision's kernel" in found.source
    cached = machine("h800").kernels.mla(batch=32, q_len=1, context=5000, heads=128, core=BF16, cache=FP8)
    assert cached.origin is Origin.ASSUMED


@pytest.mark.parametrize(
    ("gpu", "origin", "table"),
    [
        ("h100", Origin.EXTRAPOLATED, "H800"),  # the same die
        ("h200", Origin.EXTRAPOLATED, "H800"),
        ("h20-141", Origin.EXTRAPOLATED, "H20"),
        ("h100-pcie", Origin.ASSUMED, "H800"),
        ("b200", Origin.ASSUMED, "H800"),
        ("mi300x", Origin.ASSUMED, "H800"),
        ("ascend-910c", Origin.ASSUMED, "H800"),
    ],
)
def test_another_gpus_table_stands_in_and_says_so(gpu: str, origin: Origin, table: str) -> None:
    found = machine(gpu).kernels.gemm(m=128, n=7168, k=16384, weights=FP8)
    assert found.origin is origin
    assert f"on {table} " in found.source
    assert f"standing in for {CATALOG.gpu(gpu).name}" in found.source
    own = machine(table.lower()).kernels.gemm(m=128, n=7168, k=16384, weights=FP8)
    assert found.compute == own.compute
    assert "standing in" not in own.source


@pytest.mark.parametrize("gpu", ["a100", "a800", "l20", "l40s"])
def test_older_gpus_reach_no_more_of_their_roofline_than_a_measured_one(gpu: str) -> None:
    found = machine(gpu).kernels.gemm(m=128, n=7168, k=16384, weights=FP8)
    assert found.origin is Origin.ASSUMED
    assert "standing in for" in found.source
    assert found.memory == machine("h800").kernels.gemm(m=128, n=7168, k=16384, weights=FP8).memory < 1.0


def test_an_edited_gpu_keeps_its_tables_fractions() -> None:
    """Twice the memory bandwidth halves a memory-bound kernel; the share of the roofline stays."""
    h800 = CATALOG.gpu("h800")
    twice = dataclasses.replace(h800, memory=dataclasses.replace(h800.memory, bandwidth=2 * h800.memory.bandwidth))
    library = KernelLibrary.of(twice, CATALOG)
    edited = library.gemm(m=64, n=7168, k=16384, weights=FP8)
    measured = machine("h800").kernels.gemm(m=64, n=7168, k=16384, weights=FP8)
    assert (edited.compute, edited.memory, edited.floor) == (measured.compute, measured.memory, measured.floor)


def test_a_price_is_no_reason_to_doubt_a_kernel() -> None:
    """Only edits that a kernel's time can depend on make it less than measured."""
    h800 = CATALOG.gpu("h800")
    shape: dict[str, Any] = {"m": 128, "n": 7168, "k": 16384, "weights": FP8}
    cheaper = KernelLibrary.of(dataclasses.replace(h800, assumed={"price": EDITED}), CATALOG).gemm(**shape)
    faster = KernelLibrary.of(dataclasses.replace(h800, assumed={"memory.bandwidth": EDITED}), CATALOG).gemm(**shape)
    assert cheaper.origin < faster.origin
    assert "edited" not in cheaper.source
    assert "edited" in faster.source


@pytest.mark.parametrize("gpu", ["h800", "h20", "h200", "b200"])
@pytest.mark.parametrize("q_len", [1, 2, 3])
def test_attention_below_its_table_goes_on_in_time(gpu: str, q_len: int) -> None:
    """A kernel of next to no work still starts and ends; towards the table its time rises without a jump."""
    target, attention, batch = machine(gpu), CATALOG.model("deepseek-v3").attention, 8.0
    assert isinstance(attention, Mla)
    context = np.geomspace(1.0, 20_000.0, 400)  # the tables begin at 40,000 tokens, 5,000 for each of the eight
    bf16 = weight_format("bf16")
    cost = mla_decode("core", target, attention, batch=batch, q_len=q_len, context=context, core=bf16, cache=bf16)
    seconds = np.asarray(cost.seconds)
    if (gpu, q_len > 1) != ("h20", True):  # there the line through the table's first points meets zero at zero
        assert 5e-6 < seconds[0] < 60e-6
    assert np.all(np.diff(seconds) > 0)
    assert np.all(np.diff(seconds) < 0.03 * seconds[-1])
    assert cost.origin >= Origin.EXTRAPOLATED
