"""Counting: parameters by module, the three conventions for «active», bytes of weights and of KV cache."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from moeplan.kinds import Real
from moeplan.specs.model import Attention, Experts, Gqa, Mla, ModelSpec
from moeplan.specs.precision import bytes_per_weight

CacheLayout = Literal["latent", "expanded"]


class Module(Struct, frozen=True, kw_only=True):
    """Weights of one kind: matrices (which a format quantises), the rest (norms, biases) in bf16, a few in fp32."""

    matrices: float = 0.0
    rest: float = 0.0
    fp32: float = 0.0

    @property
    def total(self) -> float:
        """All parameters of the module."""
        return self.matrices + self.rest + self.fp32

    def bytes_in(self, weights: str) -> float:
        """Bytes stored when the matrices are in that format."""
        kept = self.rest * bytes_per_weight("bf16") + self.fp32 * bytes_per_weight("fp32")
        return self.matrices * bytes_per_weight(weights) + kept

    def dealt(self, ranks: int, whole: float = 0.0) -> Module:
        """One rank's part of the matrices, `whole` weights of them and everything else on every rank."""
        return Module(matrices=(self.matrices - whole) / ranks + whole, rest=self.rest, fp32=self.fp32)

    def times(self, count: float) -> Module:
        """Return the module repeated."""
        return Module(matrices=self.matrices * count, rest=self.rest * count, fp32=self.fp32 * count)

    def plus(self, other: Module) -> Module:
        """Return two modules together."""
        matrices, rest = self.matrices + other.matrices, self.rest + other.rest
        return Module(matrices=matrices, rest=rest, fp32=self.fp32 + other.fp32)


def attention_module(attention: Attention, hidden: int) -> Module:
    """Projections of one attention layer, with its inner norms and biases; one layer's."""
    if isinstance(attention, Mla):
        q_out = attention.heads * attention.qk_head_dim
        if attention.q_lora_rank is None:
            query, norms = hidden * q_out, attention.kv_lora_rank
        else:
            query = hidden * attention.q_lora_rank + attention.q_lora_rank * q_out
            norms = attention.kv_lora_rank + attention.q_lora_rank
        key_value = hidden * attention.latent_dim
        key_value += attention.kv_lora_rank * attention.heads * (attention.qk_nope_head_dim + attention.v_head_dim)
        return Module(matrices=query + key_value + attention.heads * attention.v_head_dim * hidden, rest=norms)
    q_out, kv_out = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    rest = {"none": 0, "head": 2 * attention.head_dim, "layer": q_out + kv_out}[attention.qk_norm]
    rest += (q_out + 2 * kv_out) * attention.qkv_bias + hidden * attention.out_bias + attention.heads * attention.sinks
    return Module(matrices=hidden * (q_out + 2 * kv_out) + q_out * hidden, rest=rest)


def attention_whole(attention: Attention, hidden: int, *, tp: int) -> float:
    """Weights of one attention layer that every rank of a TP group holds: latents' projections, the last KV heads."""
    if isinstance(attention, Mla):
        return hidden * (attention.latent_dim + (attention.q_lora_rank or 0))
    repeated = max(tp / attention.kv_heads - 1.0, 0.0)  # copies of every KV head beyond the first
    return hidden * 2 * attention.kv_heads * attention.head_dim * repeated / max(tp - 1, 1)


def attention_output(attention: Attention, hidden: int) -> float:
    """Weights of the output projection of one attention layer, biases left out."""
    width = attention.v_head_dim if isinstance(attention, Mla) else attention.head_dim
    return attention.heads * width * hidden


def expert_module(experts: Experts, hidden: int) -> Module:
    """One routed expert: gate, up and down."""
    bias = (2 * experts.width + hidden) * experts.expert_bias
    return Module(matrices=3 * hidden * experts.width, rest=bias)


def router_module(experts: Experts, hidden: int) -> Module:
    """Return the gate of one layer, never quantised; the bias that steers the choice of experts is kept in fp32."""
    bias = experts.count * experts.router_bias
    return Module(rest=experts.count * hidden + bias, fp32=experts.count * experts.selection_bias)


class Parameters(Struct, frozen=True, kw_only=True):
    """All modules of the main model (MTP apart), each summed over its layers; `mtp`: what the MTP modules add."""

    attention: Module
    norms: Module
    dense: Module
    shared: Module
    router: Module
    routed: Module
    embedding: Module
    head: Module
    mtp: Module
    mtp_routed: Module
    active_routed: float  # routed-expert parameters that one token uses

    @property
    def total(self) -> float:
        """Every parameter of the main model."""
        return self.replicated.total + self.routed.total

    @property
    def replicated(self) -> Module:
        """Everything but the routed experts: what each rank of attention-DP × EP holds in full."""
        result = self.attention
        for module in (self.norms, self.dense, self.shared, self.router, self.embedding, self.head):
            result = result.plus(module)
        return result

    @property
    def total_with_mtp(self) -> float:
        """Main model and MTP modules, their copies of embedding and head not counted again."""
        return self.total + self.mtp.total + self.mtp_routed.total

    @property
    def active(self) -> float:
        """Active per token, embedding and head included (Qwen3's, Mixtral's convention)."""
        return self.active_without_embedding + self.embedding.total

    @property
    def active_without_embedding(self) -> float:
        """Active per token, input embedding excluded, head included (gpt-oss's, Kimi-K2's convention)."""
        return self.active_without_embedding_and_head + self.head.total

    @property
    def active_without_embedding_and_head(self) -> float:
        """Active per token, embedding and head excluded (GLM-4.5's, MiniMax-M2's convention)."""
        body = (self.attention, self.norms, self.dense, self.shared, self.router)
        return sum(module.total for module in body) + self.active_routed


def parameters(model: ModelSpec) -> Parameters:
    """Count the parameters of a model by module."""
    hidden, experts, layers = model.hidden, model.experts, model.layer_count
    attention = attention_module(model.attention, hidden)
    norms = Module(rest=2 * hidden)
    embedding = Module(matrices=model.vocab * hidden)
    nothing = Module()
    dense = Module(matrices=3 * hidden * model.dense_width).times(layers - model.moe_layer_count)
    shared = router = routed = mtp_ffn = mtp_routed = nothing
    active_routed = 0.0
    if experts is not None:
        one = expert_module(experts, hidden)
        shared_one = Module(matrices=3 * hidden * experts.shared_width)
        router_one = router_module(experts, hidden)
        shared, router = shared_one.times(model.moe_layer_count), router_one.times(model.moe_layer_count)
        routed = one.times(experts.count * model.moe_layer_count)
        active_routed = one.total * experts.top_k * model.moe_layer_count
        mtp_ffn = shared_one.plus(router_one)
        mtp_routed = one.times(experts.count * model.mtp_layers)
    # One MTP module: a layer like the others, two norms of its inputs, one before its head, a 2h -> h projection that
    # no checkpoint quantises (SGLang and vLLM hold eh_proj in plain bf16; so do the 688,586,727,753 B of DeepSeek-V3).
    mtp_one = attention.plus(norms).plus(mtp_ffn).plus(Module(rest=2 * hidden * hidden + 3 * hidden))
    return Parameters(
        attention=attention.times(layers),
        norms=norms.times(layers).plus(Module(rest=hidden)),
        dense=dense,
        shared=shared,
        router=router,
        routed=routed,
        embedding=embedding,
        head=nothing if model.tied_embeddings else embedding,
        mtp=mtp_one.times(model.mtp_layers),
        mtp_routed=mtp_routed,
        active_routed=active_routed,
    )


def replicated_bytes(model: ModelSpec, *, mtp: bool, tp: int = 1, shared_tp: int = 1) -> float:
    """Bytes of everything but the routed experts on one GPU of a TP group; shared_tp: ranks of the shared expert.

    Projections are dealt by heads, FFNs by width, embedding and head by words; norms, router, latents' projections and
    the MTP module's own projection are whole on each.
    """
    count, formats = parameters(model), model.formats
    whole = attention_whole(model.attention, model.hidden, tp=tp)
    attention = count.attention.dealt(tp, whole * model.layer_count)
    total = attention.bytes_in(formats.attention) + count.norms.bytes_in("bf16") + count.router.bytes_in("bf16")
    if formats.attention_output is not None:
        difference = bytes_per_weight(formats.attention_output) - bytes_per_weight(formats.attention)
        total += attention_output(model.attention, model.hidden) * model.layer_count * difference / tp
    total += count.dense.dealt(tp).bytes_in(formats.linear) + count.shared.dealt(shared_tp).bytes_in(formats.linear)
    total += count.embedding.dealt(tp).bytes_in(formats.embedding) + count.head.dealt(tp).bytes_in(formats.embedding)
    module = count.mtp.dealt(tp, whole * model.mtp_layers)
    return total + (module.bytes_in(formats.mtp or formats.linear) if mtp else 0.0)


def routed_bytes(model: ModelSpec, *, mtp: bool) -> float:
    """Bytes of all routed experts of all layers."""
    count, formats = parameters(model), model.formats
    extra = count.mtp_routed.bytes_in(formats.mtp or formats.experts) if mtp else 0.0
    return count.routed.bytes_in(formats.experts) + extra


def weight_bytes(model: ModelSpec, *, mtp: bool = False) -> float:
    """Bytes of all weights, in the formats of the checkpoint."""
    return replicated_bytes(model, mtp=mtp) + routed_bytes(model, mtp=mtp)


def cache_elements(attention: Attention, layout: CacheLayout = "latent") -> int:
    """Elements cached per token and layer.

    MLA caches one latent shared by all heads; «expanded» is what an engine stores that unfolds it into K and V by head.
    """
    if isinstance(attention, Gqa):
        return 2 * attention.kv_heads * attention.head_dim
    if layout == "latent":
        return attention.latent_dim
    return attention.heads * (attention.qk_head_dim + attention.v_head_dim)


def kv_bytes(
    model: ModelSpec, tokens: Real, *, kv: str = "bf16", layout: CacheLayout = "latent", mtp: bool = False
) -> Real:
    """KV cache of one request of that many tokens, bytes; a windowed layer keeps min(tokens, window) of them."""
    per_layer = cache_elements(model.attention, layout) * bytes_per_weight(kv)
    kept: Real = 0.0
    for group in model.layers:
        kept = kept + group.count * (np.minimum(tokens, group.window) if group.window else tokens)
    if mtp:
        kept = kept + model.mtp_layers * tokens
    return kept * per_layer


def kv_bytes_per_token(model: ModelSpec, *, kv: str = "bf16", mtp: bool = False) -> float:
    """KV bytes that one more token adds once every window is full."""
    growing = sum(group.count for group in model.layers if group.window is None) + model.mtp_layers * mtp
    return growing * cache_elements(model.attention) * bytes_per_weight(kv)


def kv_shard_factor(attention: Attention, *, tp: int, dcp: int = 1) -> int:
    """By how much the KV cache of one request is split inside a TP group.

    A latent is replicated on every TP rank; GQA heads are dealt out, at most one per rank; decode context parallelism
    splits the tokens. Data parallelism splits requests, never the cache of one.
    """
    heads = 1 if isinstance(attention, Mla) else min(tp, attention.kv_heads)
    return heads * dcp


def tokens_that_fit(model: ModelSpec, budget: float, *, kv: str = "bf16", limit: int = 1 << 26) -> int:
    """Tokens of one request whose KV cache fits in `budget` bytes: the inverse of kv_bytes, windows and all."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if float(kv_bytes(model, middle, kv=kv)) <= budget else (low, middle - 1)
    return low
