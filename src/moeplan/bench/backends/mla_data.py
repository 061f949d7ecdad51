"""Random queries and caches of absorbed MLA, and the reference of its result."""

from __future__ import annotations

from typing import Any

from moeplan.bench.backends.base import Backend
from moeplan.bench.expected import LATENT, ROPE
from moeplan.bench.family import Shape

WIDTH = LATENT + ROPE
SOFTMAX_SCALE = (128 + ROPE) ** -0.5  # of the query head before absorption


class MlaData:
    """q: (batch, q_len, heads, 576), cache: (batch, context rounded up to a page, 576), both bf16.

    The last query sees the whole context, each one before it a token less (causal, aligned at the end).
    """

    def __init__(self, backend: Backend, shape: Shape, *, page: int = 1) -> None:
        torch, generator = backend.torch, backend.generator()
        self.backend = backend
        self.batch, self.heads, self.q_len, self.context = (
            shape[name] for name in ("batch", "heads", "q_len", "context")
        )
        self.pages = -(-self.context // page)
        kind = {"dtype": torch.bfloat16, "device": backend.setup.device}
        self.q = torch.empty(self.batch, self.q_len, self.heads, WIDTH, **kind).normal_(generator=generator)
        self.cache = torch.empty(self.batch, self.pages * page, WIDTH, **kind).normal_(generator=generator)

    def check(self, found: Any) -> float:
        """The largest relative error of a request; found: (batch, q_len, heads, 512)."""
        return max(self._error(found, request) for request in range(self.batch))

    def hidden(self) -> Any:
        """(q_len, context): true where a query does not see a token."""
        torch, device = self.backend.torch, self.backend.setup.device
        last = torch.arange(self.q_len, device=device)[:, None] + self.context - self.q_len
        return torch.arange(self.context, device=device)[None, :] > last

    def _error(self, found: Any, request: int) -> float:
        keys = self.cache[request, : self.context].float()
        scores = self.q[request].float() @ keys.t() * SOFTMAX_SCALE  # (q_len, heads, context)
        weights = scores.masked_fill(self.hidden()[:, None, :], float("-inf")).softmax(dim=-1)
        return self.backend.error(found[request], weights @ keys[:, :LATENT])
