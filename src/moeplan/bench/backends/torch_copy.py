"""A copy inside device memory: the bandwidth that a kernel can reach at all."""

from __future__ import annotations

from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.family import Shape


class TorchCopy(Backend):
    """`bytes` read and as many written."""

    backend = "torch"
    tolerance = 0.0

    @property
    def name(self) -> str:
        """Version."""
        return f"torch {self.version()} copy_, device to device"

    @property
    def table(self) -> str:
        """The family's own."""
        return "copy"

    def prepare(self, shape: Shape) -> Ready:
        """Make random bytes."""
        torch = self.torch
        kind = {"dtype": torch.uint8, "device": self.setup.device}
        source = torch.randint(256, (shape["bytes"],), generator=self.generator(), **kind)
        target = torch.zeros_like(source)
        return Ready(lambda: target.copy_(source), lambda: 0.0 if bool(torch.equal(source, target)) else 1.0)
