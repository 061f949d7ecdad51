"""What fills a GPU: weights, KV cache, all-to-all buffer, reserve; and the largest batch that fits."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from moeplan.engines.rules.memory_rule import MemoryRule
from moeplan.kinds import Real
from moeplan.routing.slots import Slots
from moeplan.specs.deployment import Deployment
from moeplan.specs.exchange import exchange
from moeplan.specs.model import ModelSpec
from moeplan.specs.parameters import kv_bytes, kv_shard_factor, replicated_bytes, routed_bytes

BufferRevision = Literal["2025-02", "2025-06", "current"]
LARGEST_BATCH = 1 << 16
PEERS = 8  # ranks of a node, to DeepEP's normal kernels


class MemoryUse(Struct, frozen=True, kw_only=True, eq=False):
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


def normal_buffer(*, ep: Real, hidden: int, sms: int = 20) -> Real:
    """Bytes of DeepEP's normal buffers: a queue per channel and peer of a node, two per channel and node over RDMA.

    Its size hints: sms/2 channels; a slot is a token in bf16, 8 bytes of where it comes from, 128 top-k indices (8
    bytes) and weights (4) and 128 scales (4), over RDMA 16 bytes more. Slots per queue in its own configurations: 256
    inside a node, 288 to 64 ranks, 560 to 128, 720 beyond; 140 over RDMA (128 in steps of the 20 sent at once).
    """
    slot, channels = 2.0 * hidden + 8 + 128 * (8 + 4 + 4), sms // 2
    held = np.where(ep > 128, 720.0, np.where(ep > 64, 560.0, np.where(ep > PEERS, 288.0, 256.0)))
    across = channels * np.ceil(ep / PEERS) * 140.0 * (slot + 16) * 2 + 2**20
    size: Real = channels * np.minimum(ep, PEERS) * held * slot + np.where(ep > PEERS, across, 0.0)
    return size


def exchange_buffer(deployment: Deployment, slots: Slots, *, hidden: int, tokens: Real) -> Real:
    """Bytes that the deployment's all-to-all reserves, by the rule that its file names; tokens: of a rank, at most.

    «per rank» is a slot of every rank for each of its tokens, in bf16, on the way out and back.
    """
    backend = exchange(deployment.exchange)
    if backend.buffer == "normal":
        return normal_buffer(ep=slots.ep, hidden=hidden, sms=backend.sms)
    if backend.buffer == "per rank":
        return slots.ep * tokens * (2 * 2.0 * hidden)
    return low_latency_buffer(experts=slots.total, tokens=tokens, hidden=hidden)


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
        if deployment.all_to_all:
            tokens = dispatch_tokens(deployment, rule)
            size = exchange_buffer(deployment, slots, hidden=model.hidden, tokens=tokens)
            buffer = np.where(np.greater(slots.ep, 1), size, 0.0)
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
