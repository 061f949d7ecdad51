"""Work of dense, batched and grouped products, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.errors import Unsupported
from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.origin import Origin
from moeplan.ops.cost import Cost
from moeplan.ops.gemm import gemm
from moeplan.ops.grouped_gemm import grouped_gemm
from moeplan.ops.machine import Machine
from moeplan.routing.slots import ExpertLoad
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
FP8, BF16 = weight_format("fp8_block"), weight_format("bf16")
CLUSTER = CATALOG.cluster("h800-cx7")


class Fixed(KernelLibrary, frozen=True):
    """Half of the peak, four fifths of the bandwidth, whatever the shape."""

    def gemm(self, **_: object) -> Efficiency:
        return Efficiency(compute=0.5, memory=0.8, origin=Origin.ASSUMED, source="this test")

    grouped_gemm = gemm


def machine(gpu: str = "h800") -> Machine:
    cluster = replace(CLUSTER, gpu=CATALOG.gpu(gpu))
    return Machine(cluster, Fixed.of(cluster.gpu, CATALOG))


def load(*, rows: float, active: float) -> ExpertLoad:
    return ExpertLoad(rows=rows, slots=active, active=active, mean_rows_per_slot=rows / active)


def test_a_dense_product_in_bf16() -> None:
    cost = gemm("x", machine(), m=64, n=512, k=7168, weights=BF16)
    assert cost.flops == 2 * 64 * 512 * 7168
    assert cost.bytes_ == 2 * (64 * 7168 + 512 * 7168 + 64 * 512)
    assert cost.seconds == pytest.approx(max(cost.flops / (989.4e12 * 0.5), cost.bytes_ / (3.35e12 * 0.8)))
    assert cost.bound_by == "memory"


def test_a_dense_product_in_fp8_pays_for_its_scales() -> None:
    """One fp32 per 128 activations and per 128 × 128 weights; the output is bf16."""
    cost = gemm("x", machine(), m=128, n=7168, k=16384, weights=FP8)
    activations = 128 * 16384 + 128 * (16384 // 128) * 4
    weights = 7168 * 16384 + (7168 // 128) * (16384 // 128) * 4
    assert cost.bytes_ == activations + weights + 128 * 7168 * 2
    assert float(cost.parts["compute"]) == pytest.approx(2 * 128 * 7168 * 16384 / (1978.9e12 * 0.5))


def test_a_batched_product_is_so_many_dense_ones() -> None:
    one = gemm("x", machine(), m=128, n=512, k=128, weights=BF16)
    many = gemm("x", machine(), m=128, n=512, k=128, weights=BF16, copies=128)
    assert many.flops == 128 * one.flops
    assert many.bytes_ == 128 * one.bytes_
    assert many.seconds == pytest.approx(128 * one.seconds)


def test_a_grouped_product_reads_the_weights_of_active_groups_only() -> None:
    cost = grouped_gemm("x", machine(), load=load(rows=100.0, active=2.0), n=4096, k=7168, weights=FP8, down=False)
    weights = 2 * (4096 * 7168 + 32 * 56 * 4)
    activations = 100 * (7168 + 56 * 4)
    assert cost.flops == 2 * 100 * 4096 * 7168
    assert cost.bytes_ == pytest.approx(weights + activations + 100 * 4096 * 2, rel=1e-12)


def test_a_group_of_one_is_a_dense_product() -> None:
    dense = gemm("x", machine(), m=96, n=4096, k=7168, weights=FP8)
    grouped = grouped_gemm("x", machine(), load=load(rows=96.0, active=1.0), n=4096, k=7168, weights=FP8, down=False)
    assert grouped.seconds == pytest.approx(dense.seconds, rel=1e-12)
    assert grouped.bytes_ == pytest.approx(dense.bytes_, rel=1e-12)


def test_the_ridge_of_the_weights() -> None:
    """Batch article: below Ridge·bpp/2 rows a weight product is bound by memory; 37 rows for FP8 on H20."""
    h20 = machine("h20")
    ridge = 296e12 / 4.0e12
    assert ridge / 2 == pytest.approx(37)

    def bound_by(rows: int) -> str:
        # n and k so large that activations do not count; both efficiencies 1 by way of their ratio
        cost = gemm("x", h20, m=rows, n=10**6, k=10**6, weights=weight_format("fp8"))
        parts = {"compute": float(cost.parts["compute"]) * 0.5, "memory": float(cost.parts["memory"]) * 0.8}
        return max(parts, key=lambda name: parts[name])

    assert (bound_by(36), bound_by(38)) == ("memory", "compute")


def test_arrays_of_rows() -> None:
    rows = np.array([1.0, 7.0, 64.0, 500.0])
    costs: list[Cost] = [gemm("x", machine(), m=float(m), n=512, k=7168, weights=FP8) for m in rows]
    together = gemm("x", machine(), m=rows, n=512, k=7168, weights=FP8)
    assert together.seconds == pytest.approx([cost.seconds for cost in costs], rel=1e-12)


def test_a_precision_that_the_gpu_lacks() -> None:
    with pytest.raises(Unsupported, match="no fp4 on H800"):
        gemm("x", machine(), m=1, n=16, k=16, weights=weight_format("nvfp4"))
    with pytest.raises(Unsupported, match="no fp4 on H800"):
        grouped_gemm(
            "x", machine(), load=load(rows=1.0, active=1.0), n=16, k=16, weights=weight_format("nvfp4"), down=False
        )


def test_a_substitute_lends_its_rate() -> None:
    """A100 has no fp8; int8 stands in at 624 TOP/s."""
    cost = gemm("x", machine("a100"), m=4096, n=4096, k=4096, weights=FP8)
    assert float(cost.parts["compute"]) == pytest.approx(2 * 4096**3 / (624e12 * 0.5))
