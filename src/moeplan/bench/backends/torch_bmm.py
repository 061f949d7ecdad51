"""PyTorch's batched product, cuBLAS in bf16: absorbed MLA's two small products."""

from __future__ import annotations

from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.family import Shape


class TorchBmm(Backend):
    """(copies, m, k) by (copies, k, n), one weight per copy."""

    backend = "torch"

    @property
    def name(self) -> str:
        """Version."""
        return f"torch {self.version()} bmm (cuBLAS), bf16"

    @property
    def table(self) -> str:
        """The family's own."""
        return "gemm_batched_bf16"

    def prepare(self, shape: Shape) -> Ready:
        """Make random operands."""
        torch, generator = self.torch, self.generator()
        copies, m, n, k = (shape[name] for name in ("copies", "m", "n", "k"))
        a = self.normal(copies, m, k, generator=generator).bfloat16()
        b = self.normal(copies, k, n, generator=generator).bfloat16()
        out = torch.empty(copies, m, n, dtype=torch.bfloat16, device=self.setup.device)
        return Ready(lambda: torch.bmm(a, b, out=out), lambda: self.error(out, torch.bmm(a.float(), b.float())))
