"""What fills a GPU: weights, KV cache, all-to-all buffer, reserve; and the largest batch that fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from moeplan.engines.rules.memory_rule import MemoryRule
from moeplan.kinds import Real
from moeplan.routing.slots import Slots
from moeplan.specs.deployment import Deployment
from moeplan.specs.model import ModelSpec
from moeplan.specs.parameters import kv_bytes, kv_shard_factor, replicated_bytes, routed_bytes

BufferRevision = Literal["2025-02", "2025-06", "current"]
LARGEST_BATCH = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryUse:
    """Bytes on the fullest GPU, by use; scalars or arrays."""

    capacity: float
    replicated_weights: Real
    expert_weights: Real
    kv_cache: Real
    all_to_all_buffer: Real
    reserve: Real

    @property
    def total(self) -> Real:
        """All of it."""
        pool = self.replicated_weights + self.expert_weights + self.kv_cache
        return pool + self.all_to_all_buffer + self.reserve

    @property
    def free(self) -> Real:
        """What is left; negative when it does not fit."""
        return self.capacity - self.total

    @property
    def static_fraction(self) -> Real:
        """Share of the device that weights and KV cache may take: what is left beside buffer and reserve."""
        return (self.capacity - self.all_to_all_buffer - self.reserve) / self.capacity


def low_latency_buffer(*, experts: Real, tokens: Real, hidden: int, revision: BufferRevision = "current") -> Real:
    """Bytes of DeepEP's low-latency buffer, send and receive, both doubled.

    Every expert slot of the group reserves room for `tokens` tokens of every message: 2·slots·tokens·(send + receive).
    A dispatch message is 2·hidden + 16; a combine message was 2·hidden + 16 in 2025-02, 2·hidden in 2025-06, and has
    a scale pair per 128 elements since (DeepEP's layout; its log lines of 1,880 MB and 2,116 MB come out exactly).
    """
    dispatch = 2.0 * hidden + 16
    combine = {
        "2025-02": 2.0 * hidden + 16,
        "2025-06": 2.0 * hidden,
        "current": 2.0 * hidden + 4.0 * (hidden // 128),
    }[revision]
    send, receive = combine, max(dispatch, combine)
    size: Real = 2.0 * experts * tokens * (send + receive) + 8.0 * experts
    return size


def dispatch_tokens(deployment: Deployment, rule: MemoryRule) -> Real:
    """Tokens per GPU that the buffer must hold: batch·q_len/tp, no less than the engine's default."""
    return np.maximum(np.ceil(deployment.batch * deployment.q_len / deployment.tp), rule.dispatch_tokens_default)


def memory_use(
    model: ModelSpec, deployment: Deployment, slots: Slots | None, *, capacity: float, rule: MemoryRule
) -> MemoryUse:
    """Bytes on one GPU; `model` carries the deployment's formats."""
    mtp = bool(np.any(np.greater(deployment.drafts, 0)))
    # Formats and counts do not depend on the axes, only whether the MTP module is loaded does.
    with_mtp = np.greater(deployment.drafts, 0) if mtp else False
    sharing = {"tp": deployment.tp, "shared_tp": 1 if deployment.all_to_all else deployment.tp}
    replicated = np.where(
        with_mtp, replicated_bytes(model, mtp=True, **sharing), replicated_bytes(model, mtp=False, **sharing)
    )
    expert: Real = 0.0
    buffer: Real = 0.0
    if slots is not None and model.experts is not None:
        per_expert = np.where(with_mtp, routed_bytes(model, mtp=True), routed_bytes(model, mtp=False))
        expert = per_expert / model.experts.count * slots.per_full_rank / deployment.moe_tp
        tokens = dispatch_tokens(deployment, rule)
        size = low_latency_buffer(experts=slots.total, tokens=tokens, hidden=model.hidden)
        buffer = np.where(np.greater(slots.ep, 1), size, 0.0) if deployment.all_to_all else 0.0
    tokens_kept = np.ceil((deployment.context + deployment.q_len) / rule.page_size) * rule.page_size
    kv_name = deployment.precision.kv.name
    per_request = np.where(
        with_mtp,
        kv_bytes(model, tokens_kept, kv=kv_name, mtp=True),
        kv_bytes(model, tokens_kept, kv=kv_name),
    )
    return MemoryUse(
        capacity=capacity,
        replicated_weights=replicated,
        expert_weights=expert,
        kv_cache=deployment.batch * per_request / kv_shard_factor(model.attention, tp=deployment.tp),
        all_to_all_buffer=buffer,
        reserve=rule.reserve(capacity, deployment.batch),
    )
