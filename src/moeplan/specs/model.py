"""What a model is: layers, attention, experts, formats of its weights."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from moeplan.errors import Fault, InputError


class Mla(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2): one latent of kv_lora_rank + qk_rope_head_dim per token and layer."""

    heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None  # None: the query is one dense projection (V2-Lite)

    @property
    def latent_dim(self) -> int:
        """Elements cached per token and layer, shared by all heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Width of one query head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class Gqa(Struct, frozen=True, kw_only=True):
    """Grouped-query attention: kv_heads pairs of K and V of head_dim per token and layer."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    sinks: bool = False  # one learned logit per head (gpt-oss)
    qk_norm: Literal["none", "head", "layer"] = "none"  # a norm weight per head_dim, or over all heads (MiniMax)


Attention = Mla | Gqa


class Experts(Struct, frozen=True, kw_only=True):
    """The sparse FFN: `count` routed experts of `width`, top_k per token; shared experts of shared_width in all.

    n_group and topk_group: a token may only go to topk_group of n_group groups (1 and 1: no limit).
    """

    count: int
    top_k: int
    width: int
    shared_width: int = 0
    n_group: int = 1
    topk_group: int = 1
    router_bias: bool = False  # a bias of the logits (gpt-oss)
    selection_bias: bool = False  # e_score_correction_bias: one fp32 per expert that only steers the choice
    expert_bias: bool = False


class LayerGroup(Struct, frozen=True, kw_only=True):
    """`count` layers of one kind; window: keys an attention layer sees at most, None for all."""

    count: int
    ffn: Literal["dense", "moe"]
    window: int | None = None


class WeightFormats(Struct, frozen=True, kw_only=True):
    """Storage format of each kind of weight; norms and router stay in bf16."""

    experts: str = "bf16"
    linear: str = "bf16"  # attention projections, dense FFN, shared experts
    attention: str = "bf16"  # attention projections where they differ from the other linear layers
    attention_output: str | None = None  # their output projection where it differs from them (NVFP4 DeepSeek-V3.1)
    mtp: str | None = None  # all of the MTP modules where they differ from the main layers
    embedding: str = "bf16"  # embedding and head


class ModelSpec(Struct, frozen=True, kw_only=True):
    """A decoder-only language model, dense or sparse.

    layers: the main layers only; mtp_layers: extra multi-token-prediction modules shipped with the weights.
    """

    name: str
    family: str
    repository: str
    hidden: int
    vocab: int
    layers: tuple[LayerGroup, ...]
    attention: Attention
    dense_width: int
    experts: Experts | None
    formats: WeightFormats
    mtp_layers: int = 0
    tied_embeddings: bool = False
    max_position: int | None = None
    edited: bool = False  # a figure was set by hand: no checkpoint has this shape

    def __post_init__(self) -> None:
        faults = _faults(self)
        if faults:
            raise InputError(self.name, faults)

    @property
    def layer_count(self) -> int:
        """Main layers, MTP modules not counted."""
        return sum(group.count for group in self.layers)

    @property
    def moe_layer_count(self) -> int:
        """Main layers with experts."""
        return sum(group.count for group in self.layers if group.ffn == "moe")

    @property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return self.experts is not None


def _faults(model: ModelSpec) -> list[Fault]:
    """Return every broken rule; a size of zero alone, for it makes the rules between sizes meaningless."""
    sizes = {"hidden": model.hidden, "vocab": model.vocab}
    parts: list[tuple[str, Attention | Experts | None]] = [("attention", model.attention), ("experts", model.experts)]
    for where, part in parts:
        names = ("heads", "kv_heads", "head_dim", "kv_lora_rank", "v_head_dim", "count", "width", "n_group")
        sizes |= {f"{where}.{name}": getattr(part, name) for name in names if hasattr(part, name)}
    faults = [Fault(path, f"is {size}", "give at least 1") for path, size in sizes.items() if size < 1]
    if faults:
        return faults
    if not model.layers:
        faults.append(Fault("layers", "is empty", "give at least one layer"))
    experts = model.experts
    if (experts is None) != (model.moe_layer_count == 0):
        faults.append(Fault("layers", "sparse layers and experts do not go together", "give both or none"))
    if experts is not None:
        if not 1 <= experts.top_k <= experts.count:
            faults.append(
                Fault("experts.top_k", f"is {experts.top_k} of {experts.count} experts", "1 ≤ top_k ≤ experts")
            )
        if experts.n_group > 1 and experts.count % experts.n_group:
            faults.append(Fault("experts.n_group", f"{experts.n_group} groups do not divide {experts.count} experts"))
    if isinstance(model.attention, Gqa) and model.attention.heads % model.attention.kv_heads:
        heads, kv_heads = model.attention.heads, model.attention.kv_heads
        faults.append(Fault("attention.kv_heads", f"{kv_heads} KV heads do not divide {heads} query heads"))
    return faults
