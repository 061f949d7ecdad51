"""Random operands of a grouped product with block scales, and the reference of its result."""

from __future__ import annotations

from moeplan.bench.backends import fp8
from moeplan.bench.backends.base import Backend
from moeplan.bench.family import Shape


class GroupedData:
    """Activations `a` and weights `b`, both e4m3 with fp32 scales, and the result `out` in bf16.

    a: (groups, room, k), of whose rows m count, a_scale: (groups, room, k/128); b: (groups, n, k), b_scale: (groups,
    ⌈n/128⌉, k/128); out: (groups, room, n).
    """

    def __init__(self, backend: Backend, shape: Shape, *, room: int) -> None:
        torch, generator = backend.torch, backend.generator()
        self.backend = backend
        self.groups, self.m, self.n, self.k = (shape[name] for name in ("groups", "m", "n", "k"))
        narrow = {"dtype": torch.float8_e4m3fn, "device": backend.setup.device}
        wide = {"dtype": torch.float32, "device": backend.setup.device}
        parts = self.k // fp8.BLOCK
        self.a = torch.empty(self.groups, room, self.k, **narrow)
        self.a_scale = torch.empty(self.groups, room, parts, **wide)
        self.b = torch.empty(self.groups, self.n, self.k, **narrow)
        self.b_scale = torch.empty(self.groups, -(-self.n // fp8.BLOCK), parts, **wide)
        for group in range(self.groups):  # one at a time: fp32 of all would take four times the memory
            left = backend.normal(room, self.k, generator=generator)
            right = backend.normal(self.n, self.k, generator=generator)
            self.a[group], self.a_scale[group] = fp8.quantise(torch, left, 1)
            self.b[group], self.b_scale[group] = fp8.quantise(torch, right, fp8.BLOCK)
        self.out = torch.empty(self.groups, room, self.n, dtype=torch.bfloat16, device=backend.setup.device)

    def check(self) -> float:
        """The largest relative error of a group."""
        return max(self._error(group) for group in range(self.groups))

    def _error(self, group: int) -> float:
        left = fp8.widen(self.a[group], self.a_scale[group], 1)[: self.m]
        right = fp8.widen(self.b[group], self.b_scale[group], fp8.BLOCK)
        return self.backend.error(self.out[group, : self.m], left @ right.t())
