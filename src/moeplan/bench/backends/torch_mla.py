"""Absorbed MLA as two batched products and a softmax: what it costs when nothing is fused."""

from __future__ import annotations

from typing import Any

from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.backends.mla_data import SOFTMAX_SCALE, WIDTH, MlaData
from moeplan.bench.expected import LATENT
from moeplan.bench.family import Shape


class TorchMla(Backend):
    """Scores, softmax and values as separate kernels, bf16; the scores go through memory."""

    backend = "torch"
    by_name_only = True
    tolerance = 0.02  # scores and weights are rounded to bf16

    @property
    def name(self) -> str:
        """Version, and that it is not fused."""
        return f"torch {self.version()} bmm, softmax, bmm; not fused, bf16"

    @property
    def table(self) -> str:
        """The family's own."""
        return "mla_decode_bf16"

    def prepare(self, shape: Shape) -> Ready:
        """Make random queries and caches."""
        torch = self.torch
        data = MlaData(self, shape)
        sizes = (data.batch, data.q_len, data.heads)
        hidden = data.hidden()[None, :, None, :] if data.q_len > 1 else None
        query = data.q.view(data.batch, data.q_len * data.heads, WIDTH) * SOFTMAX_SCALE
        found: list[Any] = []

        def run() -> None:
            scores = torch.bmm(query, data.cache.transpose(1, 2))
            if hidden is not None:
                scores = scores.view(*sizes, -1).masked_fill(hidden, float("-inf")).view_as(scores)
            found[:] = [torch.bmm(scores.softmax(dim=-1), data.cache[:, :, :LATENT])]

        return Ready(run, lambda: data.check(found[0].view(*sizes, LATENT)))
