"""How an engine divides device memory: the pool for weights and cache, and what must stay outside of it."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from msgspec import Struct

from moeplan.engines.rules import EngineName
from moeplan.engines.rules.support import Support
from moeplan.kinds import Real
from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, read_mapping


class MemoryRule(Struct, frozen=True, kw_only=True, eq=False):
    """Read from data/engines/<engine>.yaml.

    reserve_share: share of the device kept for activations, context and allocator slack; graph_bytes_per_request: CUDA
    graphs grow with the largest captured batch; page_size: tokens per KV page; dispatch_tokens: tokens per rank that a
    low-latency all-to-all reserves at least, and takes at most; support: what this version is known to run.
    """

    engine: str
    version: str
    reserve_share: float
    graph_bytes_per_request: Annotated[float, "B"]
    page_size: int
    dispatch_tokens_default: int
    dispatch_tokens_most: int
    support: Support
    source: str

    def reserve(self, capacity: float, batch: Real) -> Real:
        """Bytes that must stay outside the pool when graphs are captured up to `batch` requests."""
        return self.reserve_share * capacity + self.graph_bytes_per_request * batch


@lru_cache(maxsize=8)
def memory_rule(catalog: Catalog, engine: EngineName) -> MemoryRule:
    """Return the engine's rule."""
    path = catalog.data_file("engines", f"{engine}.yaml")
    return build(MemoryRule, read_mapping(path), str(path))


def kv_budget(engine: EngineName, *, capacity: float, other: float, fraction: float) -> float:
    """Bytes left for the KV cache when an engine's fraction flag is set; `other` is everything but KV.

    TensorRT-LLM's free_gpu_memory_fraction takes a share of what is free after the rest; vLLM's
    gpu_memory_utilization and SGLang's mem_fraction_static take a share of the whole device. A negative budget means
    that the deployment does not fit.
    """
    if engine == "trtllm":
        return (capacity - other) * fraction
    return capacity * fraction - other
