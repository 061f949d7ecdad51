"""FlashMLA's dense decode kernel."""

from __future__ import annotations

from typing import Any

from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.backends.mla_data import SOFTMAX_SCALE, WIDTH, MlaData
from moeplan.bench.expected import LATENT
from moeplan.bench.family import Shape
from moeplan.bench.libraries import load

PAGE = 64


class FlashMla(Backend):
    """Absorbed MLA over a cache in pages of 64 tokens, bf16."""

    backend = "flash_mla"
    libraries = ("torch", "flash_mla")

    @property
    def name(self) -> str:
        """Library and version."""
        return f"FlashMLA {self.version()}, dense, bf16, pages of {PAGE}"

    @property
    def table(self) -> str:
        """The family's own."""
        return "mla_decode_bf16"

    def prepare(self, shape: Shape) -> Ready:
        """Make random queries and caches; the plan of the splits is made once, as in a decode step of many layers."""
        torch, library = self.torch, load("flash_mla")
        data = MlaData(self, shape, page=PAGE)
        kind = {"dtype": torch.int32, "device": self.setup.device}
        lengths = torch.full((data.batch,), data.context, **kind)
        table = torch.arange(data.batch * data.pages, **kind).view(data.batch, data.pages)
        cache = data.cache.view(data.batch * data.pages, PAGE, 1, WIDTH)
        plan = library.get_mla_metadata(lengths, data.q_len * data.heads, 1)  # arguments that newer versions ignore
        options: dict[str, Any] = {"softmax_scale": SOFTMAX_SCALE, "causal": data.q_len > 1}
        found: list[Any] = []

        def run() -> None:
            found[:] = library.flash_mla_with_kvcache(data.q, cache, table, lengths, LATENT, *plan, **options)

        return Ready(run, lambda: data.check(found[0]))
