"""DeepEP's low-latency dispatch and combine, each timed with the other one between runs."""

from __future__ import annotations

from typing import Any

from moeplan.bench.backends import fp8
from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.family import Shape
from moeplan.bench.libraries import load

EXPERTS = 256


class DeepEp(Backend):
    """Random routing of `tokens` per rank to top_k of 256 experts; fp8 dispatch, bf16 combine, no hook."""

    backend = "deep_ep"
    libraries = ("torch", "deep_ep")
    tolerance = 0.05  # the tokens travel in fp8

    @property
    def name(self) -> str:
        """Library, version, operation."""
        return f"DeepEP {self.version()} low-latency {self.setup.direction}"

    @property
    def table(self) -> str:
        """DeepEP's tables are apart by whether NVLink carries what stays in the node."""
        return f"low_latency_{self.setup.direction}_{'rdma' if self.setup.rdma_only else 'nvlink_rdma'}"

    def prepare(self, shape: Shape) -> Ready:
        """Route random tokens; the result of a whole round trip is x times the sum of its weights."""
        torch, ranks = self.torch, self.setup.ranks
        tokens, hidden, top_k = shape["tokens"], shape["hidden"], shape["top_k"]
        experts = -(-EXPERTS // ranks.world) * ranks.world
        buffer, generator = self._buffer(tokens, hidden, experts), self.generator()
        x = self.normal(tokens, hidden, generator=generator).bfloat16()
        index_type = getattr(load("deep_ep"), "topk_idx_t", torch.int64)
        chosen = self.normal(tokens, experts, generator=generator).topk(top_k, dim=-1)[1].to(index_type)
        weights = self.normal(tokens, top_k, generator=generator).abs()
        state: dict[str, Any] = {}

        def dispatch() -> None:
            options = {"use_fp8": True, "async_finish": False, "return_recv_hook": False}
            packed, _, state["handle"], *_ = buffer.low_latency_dispatch(x, chosen, tokens, experts, **options)
            state["packed"] = packed

        def combine() -> None:
            state["out"], *_ = buffer.low_latency_combine(state["tokens"], chosen, weights, state["handle"])

        def check() -> float:
            dispatch()
            state["tokens"] = _widened(*state["packed"])
            combine()
            return ranks.largest([self.error(state["out"], x * weights.sum(dim=1, keepdim=True))])[0]

        check()  # gives combine its tokens
        timed, other = (dispatch, combine) if self.setup.direction == "dispatch" else (combine, dispatch)
        return Ready(timed, check, lambda: self._other_half(other))

    def _other_half(self, other: Any) -> None:
        other()
        load("torch.distributed").all_reduce(self.torch.zeros(1, device=self.setup.device))

    def _buffer(self, tokens: int, hidden: int, experts: int) -> Any:
        kind, ranks = load("deep_ep").Buffer, self.setup.ranks
        group = load("torch.distributed").group.WORLD
        return kind(
            group,
            num_rdma_bytes=kind.get_low_latency_rdma_size_hint(tokens, hidden, ranks.world, experts),
            low_latency_mode=True,
            num_qps_per_rank=experts // ranks.world,
            allow_nvlink_for_low_latency_mode=not self.setup.rdma_only,
        )


def _widened(narrow: Any, scale: Any) -> Any:
    """(experts, room, hidden) e4m3 and (experts, room, hidden/128) scales → bf16."""
    return (narrow.float() * scale.float().repeat_interleave(fp8.BLOCK, -1)).bfloat16()
