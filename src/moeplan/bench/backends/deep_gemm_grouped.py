"""DeepGEMM's masked grouped FP8 product, which CUDA graphs of a decode step hold."""

from __future__ import annotations

from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.backends.deep_gemm_dense import aligned, smallest_tile
from moeplan.bench.backends.grouped_data import GroupedData
from moeplan.bench.family import Shape
from moeplan.bench.libraries import load


class DeepGemmGrouped(Backend):
    """`groups` products of m rows each, in a buffer of m rounded up to 128 rows per group."""

    backend = "deep_gemm"
    libraries = ("torch", "deep_gemm")

    @property
    def name(self) -> str:
        """Library, version, layout."""
        return f"DeepGEMM {self.version()} masked grouped fp8 gemm, 1x128 and 128x128 scales, bf16 out"

    @property
    def table(self) -> str:
        """The family's own."""
        return "grouped_gemm_fp8"

    @property
    def tile_rows(self) -> int:
        """Its smallest tile, on Hopper; elsewhere unknown here."""
        return smallest_tile(self.torch)

    def prepare(self, shape: Shape) -> Ready:
        """Quantise random operands; every group has exactly m rows."""
        torch, library = self.torch, load("deep_gemm")
        data = GroupedData(self, shape, room=-(-shape["m"] // 128) * 128)
        rows = torch.full((data.groups,), data.m, dtype=torch.int32, device=self.setup.device)
        old = "m_grouped_gemm_fp8_fp8_bf16_nt_masked"  # the name until 2025-07
        product = getattr(library, "m_grouped_fp8_gemm_nt_masked", None) or getattr(library, old)
        left, right = (data.a, aligned(torch, library, data.a_scale)), (data.b, data.b_scale)
        return Ready(lambda: product(left, right, data.out, rows, data.m), data.check)
