"""FlashInfer's batched MLA kernel."""

from __future__ import annotations

from typing import Any

from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.backends.mla_data import SOFTMAX_SCALE, MlaData
from moeplan.bench.expected import LATENT, ROPE
from moeplan.bench.family import Shape
from moeplan.bench.libraries import load

PAGE = 64
WORKSPACE = 128 << 20  # bytes, what its documentation asks for


class FlashInferMla(Backend):
    """Absorbed MLA over a paged cache, bf16; FlashInfer chooses between its FA2 and FA3 kernels."""

    backend = "flashinfer"
    libraries = ("torch", "flashinfer")

    @property
    def name(self) -> str:
        """Library and version."""
        return f"FlashInfer {self.version()} BatchMLAPagedAttentionWrapper, bf16, pages of {PAGE}"

    @property
    def table(self) -> str:
        """The family's own."""
        return "mla_decode_bf16"

    def prepare(self, shape: Shape) -> Ready:
        """Make random queries and caches and plan once."""
        torch = self.torch
        data = MlaData(self, shape, page=PAGE)
        kind = {"dtype": torch.int32, "device": self.setup.device}
        workspace = torch.empty(WORKSPACE, dtype=torch.int8, device=self.setup.device)
        wrapper = load("flashinfer.mla").BatchMLAPagedAttentionWrapper(workspace)
        requests = torch.arange(data.batch + 1, **kind)
        wrapper.plan(
            requests * data.q_len,
            requests * data.pages,
            torch.arange(data.batch * data.pages, **kind),
            torch.full((data.batch,), data.context, **kind),
            data.heads,
            LATENT,
            ROPE,
            PAGE,
            data.q_len > 1,
            SOFTMAX_SCALE,
            torch.bfloat16,
            torch.bfloat16,
        )
        query = data.q.view(data.batch * data.q_len, data.heads, LATENT + ROPE)
        cache = data.cache.view(data.batch * data.pages, PAGE, LATENT + ROPE)
        parts = [part.contiguous() for whole in (query, cache) for part in whole.split((LATENT, ROPE), dim=-1)]
        found: list[Any] = []

        def run() -> None:
            found[:] = [wrapper.run(*parts)]

        return Ready(run, lambda: data.check(found[0].view(data.batch, data.q_len, data.heads, LATENT)))
