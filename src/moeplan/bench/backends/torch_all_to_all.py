"""PyTorch's all_to_all_single (NCCL): as many bytes as a low-latency dispatch or combine sends, in equal parts."""

from __future__ import annotations

from typing import Any

from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.family import Shape
from moeplan.bench.libraries import load
from moeplan.kernels.all_to_all import message_bytes


class TorchAllToAll(Backend):
    """tokens·top_k messages per rank, ⌈tokens·top_k / ep⌉ to each; routing and packing are not in it."""

    backend = "torch"
    tolerance = 0.0

    @property
    def name(self) -> str:
        """Version."""
        return f"torch {self.version()} all_to_all_single, {self.setup.direction}"

    @property
    def table(self) -> str:
        """A table of its own: the predictor's is DeepEP's."""
        return f"all_to_all_{self.setup.direction}"

    def prepare(self, shape: Shape) -> Ready:
        """Make random messages, different on every rank."""
        torch, group, ranks = self.torch, load("torch.distributed"), self.setup.ranks
        each = -(-shape["tokens"] * shape["top_k"] // ranks.world)
        dispatched = self.setup.direction == "dispatch"
        size = each * int(message_bytes("dispatch" if dispatched else "combine", shape["hidden"], dispatch="fp8"))
        sent = self._messages(ranks.rank, size)
        received = torch.empty_like(sent)
        signal = torch.zeros(1, device=self.setup.device)

        def check() -> float:
            wrong = sum(not self._came(received, rank, size) for rank in range(ranks.world))
            return ranks.largest([float(wrong)])[0]

        return Ready(lambda: group.all_to_all_single(received, sent), check, lambda: group.all_reduce(signal))

    def _messages(self, rank: int, size: int) -> Any:
        torch, device = self.torch, self.setup.device
        generator = torch.Generator(device=device).manual_seed(self.setup.seed + rank)
        kind = {"dtype": torch.uint8, "device": device, "generator": generator}
        return torch.randint(256, (self.setup.ranks.world * size,), **kind)

    def _came(self, received: Any, rank: int, size: int) -> bool:
        own = self.setup.ranks.rank * size
        wanted = self._messages(rank, size)[own : own + size]
        return bool(self.torch.equal(received[rank * size : (rank + 1) * size], wanted))
