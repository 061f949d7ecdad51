"""PyTorch's scaled FP8 product: cuBLAS or CUTLASS, a scale per row."""

from __future__ import annotations

from typing import Any

from moeplan.bench.backends import fp8
from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.family import Shape


class TorchScaledMm(Backend):
    """(m, k) by (n, k) e4m3 with a scale per row of each, bf16 out; the scales are coarser than DeepSeek's blocks."""

    backend = "torch"

    @property
    def name(self) -> str:
        """Version and formats."""
        return f"torch {self.version()} scaled_mm, fp8, a scale per row, bf16 out"

    @property
    def table(self) -> str:
        """The family's own."""
        return "gemm_fp8"

    def prepare(self, shape: Shape) -> Ready:
        """Quantise random operands."""
        torch, generator = self.torch, self.generator()
        a, a_scale = fp8.quantise_rows(torch, self.normal(shape["m"], shape["k"], generator=generator))
        b, b_scale = fp8.quantise_rows(torch, self.normal(shape["n"], shape["k"], generator=generator))
        scales = {"scale_a": a_scale[:, None], "scale_b": b_scale[None, :]}
        found: list[Any] = []

        def run() -> None:
            found[:] = [torch._scaled_mm(a, b.t(), out_dtype=torch.bfloat16, use_fast_accum=False, **scales)]

        def check() -> float:
            return self.error(found[0], (a.float() * a_scale[:, None]) @ (b.float() * b_scale[:, None]).t())

        return Ready(run, check)
