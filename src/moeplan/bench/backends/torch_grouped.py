"""PyTorch's scaled grouped FP8 product: CUTLASS, a scale per row."""

from __future__ import annotations

from typing import Any

from moeplan.bench.backends import fp8
from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.family import Shape


class TorchGrouped(Backend):
    """Rows of all groups one after the other, (groups·m, k), by (groups, n, k) e4m3, a scale per row of each."""

    backend = "torch"

    @property
    def name(self) -> str:
        """Version and formats."""
        return f"torch {self.version()} scaled_grouped_mm, fp8, a scale per row, bf16 out"

    @property
    def table(self) -> str:
        """The family's own."""
        return "grouped_gemm_fp8"

    def prepare(self, shape: Shape) -> Ready:
        """Quantise random operands; every group has exactly m rows."""
        torch, generator = self.torch, self.generator()
        groups, m, n, k = (shape[name] for name in ("groups", "m", "n", "k"))
        a, a_scale = fp8.quantise_rows(torch, self.normal(groups * m, k, generator=generator))
        b = torch.empty(groups, n, k, dtype=torch.float8_e4m3fn, device=self.setup.device)
        b_scale = torch.empty(groups, n, dtype=torch.float32, device=self.setup.device)
        for group in range(groups):
            b[group], b_scale[group] = fp8.quantise_rows(torch, self.normal(n, k, generator=generator))
        ends = torch.arange(1, groups + 1, dtype=torch.int32, device=self.setup.device) * m
        kinds = {"offs": ends, "out_dtype": torch.bfloat16, "use_fast_accum": False}
        found: list[Any] = []

        def run() -> None:
            found[:] = [torch._scaled_grouped_mm(a, b.transpose(-2, -1), a_scale, b_scale, **kinds)]

        def error(group: int) -> float:
            rows = slice(group * m, (group + 1) * m)
            left = a[rows].float() * a_scale[rows, None]
            return self.error(found[0][rows], left @ (b[group].float() * b_scale[group, :, None]).t())

        return Ready(run, lambda: max(error(group) for group in range(groups)))
