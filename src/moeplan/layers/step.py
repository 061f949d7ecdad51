"""What one micro-batch of a step looks like to a layer."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from moeplan.kinds import Real
from moeplan.ops.machine import Machine
from moeplan.routing.coverage import GroupLimit
from moeplan.routing.slots import ExpertLoad, Slots, expert_load
from moeplan.specs.deployment import LOW_LATENCY, Precision, RoutedLoads, is_all_to_all
from moeplan.specs.model import Attention, Mla, ModelSpec


class Step(Struct, frozen=True, kw_only=True, eq=False):
    """batch requests of q_len new tokens each on one attention rank of tp GPUs, context cached tokens.

    Scalars or arrays on open axes, but for tp and moe_tp. ep, moe_tp, exchange: as in Deployment.
    """

    model: ModelSpec
    machine: Machine
    precision: Precision
    batch: Real
    q_len: Real
    context: Real
    ep: Real
    slots: Slots | None
    imbalance: Real = 1.0
    routed: RoutedLoads | None = None
    even: bool = False  # every rank gets the mean, not what the fullest one is sampled
    tp: int = 1
    moe_tp: int = 1
    exchange: str = LOW_LATENCY
    corrections: Mapping[str, float] = field(default_factory=dict)

    def load(self) -> ExpertLoad | None:
        """What the fullest rank's experts get of this micro-batch; None for a dense model."""
        if self.slots is None or self.model.experts is None:
            return None
        experts = self.model.experts
        limit = GroupLimit(count=experts.n_group, taken=experts.topk_group)
        imbalance, active = self.imbalance, None
        if self.routed is not None:
            imbalance, active = self.routed.at(ep=self.slots.ep, slots=self.slots.total, tokens=self.tokens)
        return expert_load(
            self.slots,
            tokens=self.tokens,
            top_k=experts.top_k,
            even=self.even,
            limit=limit,
            imbalance=imbalance,
            active=active,
        )

    @property
    def rows(self) -> Real:
        """Rows of every dense GEMM on one rank: batch·q_len (grouped-GEMM article, eq. 1)."""
        return self.batch * self.q_len

    @property
    def gpus(self) -> Real:
        """GPUs of the instance."""
        return self.ep * self.moe_tp

    @property
    def tokens(self) -> Real:
        """New tokens of the whole instance: those of every attention rank."""
        return self.gpus / self.tp * self.rows

    @property
    def own_rows(self) -> Real:
        """Rows of what a GPU does for the experts before and after their exchange.

        An all-to-all leaves each GPU of an attention rank its share of the tokens, else all have all of the rank's.
        """
        return self.rows / self.tp if self.all_to_all else self.rows

    @property
    def dense_tp(self) -> int:
        """GPUs over which the shared expert's width is dealt: none where each has tokens of its own."""
        return 1 if self.all_to_all else self.tp

    @property
    def all_to_all(self) -> bool:
        """Whether every token travels to its experts alone."""
        return is_all_to_all(self.exchange)

    @property
    def attention(self) -> Attention:
        """One GPU's share of the attention heads; a latent and the last KV head are whole on each."""
        whole = self.model.attention
        if self.tp == 1:
            return whole
        if isinstance(whole, Mla):
            return replace(whole, heads=whole.heads // self.tp)
        return replace(whole, heads=whole.heads // self.tp, kv_heads=max(whole.kv_heads // self.tp, 1))
