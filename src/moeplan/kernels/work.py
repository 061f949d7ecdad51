"""How much work a kernel does: FLOP, memory traffic, vector operations; and the time of that work at the peaks.

No efficiency here. A measured table is read as the fraction of this ideal time that the kernel reached; the operators
divide by the same fraction, so a measured point comes back exactly.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import Format

OUTPUT_BYTES = 2.0  # kernels write bf16


class Work(Struct, frozen=True, kw_only=True, eq=False):
    """One kernel: flops on tensor cores, bytes of memory traffic, both scalars or arrays."""

    flops: Real
    bytes_: Real


def gemm_work(*, m: Real, n: int, k: int, weights: Format, copies: int = 1) -> Work:
    """`copies` independent products of (m, k) activations by (k, n) weights; a batched one has a weight per copy."""
    return Work(
        flops=2.0 * copies * n * k * m,
        bytes_=copies * (m * k * weights.activation_bytes + n * k * weights.bytes_per_element + m * n * OUTPUT_BYTES),
    )


def grouped_gemm_work(*, rows: Real, groups: Real, n: int, k: int, weights: Format) -> Work:
    """`rows` in all over `groups` active groups, each with its own (k, n) weights."""
    return Work(
        flops=2.0 * n * k * rows,
        bytes_=rows * (k * weights.activation_bytes + n * OUTPUT_BYTES) + n * k * weights.bytes_per_element * groups,
    )


class AttentionWork(Struct, frozen=True, kw_only=True, eq=False):
    """Attention of one layer: the two GEMMs' FLOP apart, vector operations of softmax, bytes of cache read."""

    score_flops: Real
    value_flops: Real
    vector_ops: Real
    bytes_: Real

    @property
    def flops(self) -> Real:
        """FLOP of both GEMMs."""
        return self.score_flops + self.value_flops


# Vector operations per attention score: one exp2 and two reductions, maximum and sum (throughput article, FlashMLA).
VECTOR_OPS_PER_SCORE = 3.0


def attention_work(
    *,
    batch: Real,
    q_len: Real,
    context: Real,
    heads: int,
    qk_dim: int,
    v_dim: int,
    cache_elements: int,
    cache: Format,
) -> AttentionWork:
    """Decode attention: q_len new tokens of each of `batch` requests against `context` cached ones.

    scores = batch·heads·q_len·context; the score GEMM takes 2·scores·qk_dim FLOP, the value GEMM 2·scores·v_dim
    (throughput article, FlashMLA: 576 and 512 for absorbed MLA). The cache is read once per request, whatever q_len.
    """
    scores = batch * heads * q_len * context
    return AttentionWork(
        score_flops=2.0 * scores * qk_dim,
        value_flops=2.0 * scores * v_dim,
        vector_ops=VECTOR_OPS_PER_SCORE * scores,
        bytes_=batch * context * cache_elements * cache.bytes_per_element,
    )


def overlapped(score: Real, value: Real, vector: Real, gpu: Gpu) -> Real:
    """Time of attention's two GEMMs and its softmax by the GPU's overlap class (FlashAttention-3, throughput article).

    two-stage: one GEMM hides the vector work, score + max(vector, value); three-stage: both do; none: the plain sum.
    """
    if gpu.attention_overlap == "three-stage":
        return np.maximum(vector, score + value)
    if gpu.attention_overlap == "two-stage":
        return score + np.maximum(vector, value)
    return score + value + vector


def ideal_gemm_time(work: Work, gpu: Gpu, precision: str, *, padding: Real = 1.0) -> Real:
    """The roofline: arithmetic at the dense peak or traffic at the memory's bandwidth, whichever is longer.

    padding: FLOP done over FLOP asked, for a kernel that works on whole tiles.
    """
    return np.maximum(work.flops * padding / gpu.peak(precision), work.bytes_ / gpu.memory.bandwidth)


def ideal_attention_time(work: AttentionWork, gpu: Gpu, precision: str) -> Real:
    """The roofline of attention, the overlap of softmax and GEMMs in it."""
    peak = gpu.peak(precision)
    tensor = overlapped(work.score_flops / peak, work.value_flops / peak, work.vector_ops / gpu.vector_rate, gpu)
    return np.maximum(tensor, work.bytes_ / gpu.memory.bandwidth)
