"""DeepGEMM's dense FP8 product."""

from __future__ import annotations

from typing import Any

from moeplan.bench.backends import fp8
from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.family import Shape
from moeplan.bench.libraries import load


class DeepGemmDense(Backend):
    """(m, k) activations with a scale per 128 of k, by (n, k) weights with one per 128 × 128; bf16 out."""

    backend = "deep_gemm"
    libraries = ("torch", "deep_gemm")

    @property
    def name(self) -> str:
        """Library, version, formats."""
        return f"DeepGEMM {self.version()} fp8 gemm nt, 1x128 and 128x128 scales, bf16 out"

    @property
    def table(self) -> str:
        """The family's own."""
        return "gemm_fp8"

    @property
    def tile_rows(self) -> int:
        """Its smallest tile, on Hopper; elsewhere unknown here."""
        return smallest_tile(self.torch)

    def prepare(self, shape: Shape) -> Ready:
        """Quantise random operands."""
        torch, library, generator = self.torch, load("deep_gemm"), self.generator()
        m, n, k = shape["m"], shape["n"], shape["k"]
        a, a_scale = fp8.quantise(torch, self.normal(m, k, generator=generator), 1)
        b, b_scale = fp8.quantise(torch, self.normal(n, k, generator=generator), fp8.BLOCK)
        out = torch.empty(m, n, dtype=torch.bfloat16, device=self.setup.device)
        product = getattr(library, "fp8_gemm_nt", None) or library.gemm_fp8_fp8_bf16_nt  # the name until 2025-07
        left = (a, aligned(torch, library, a_scale))

        def check() -> float:
            return self.error(out, fp8.widen(a, a_scale, 1) @ fp8.widen(b, b_scale, fp8.BLOCK).t())

        return Ready(lambda: product(left, (b, b_scale), out), check)


def aligned(torch: Any, library: Any, scale: Any) -> Any:
    """The scales of activations as the Hopper kernel reads them, so that their transposition is not timed."""
    if not _hopper(torch):
        return scale
    names = ("get_mn_major_tma_aligned_tensor", "get_col_major_tma_aligned_tensor")  # the latter until 2025-07
    transpose = next((getattr(library, name) for name in names if hasattr(library, name)), None)
    return scale if transpose is None else transpose(scale)


def smallest_tile(torch: Any) -> int:
    """Rows of DeepGEMM's smallest tile: 64 on Hopper, 1 for not known elsewhere."""
    return 64 if _hopper(torch) else 1


def _hopper(torch: Any) -> bool:
    return bool(torch.cuda.get_device_capability()[0] == 9)
