"""One function per model family: the keys of its config.json -> its architecture.

Key names and their traps follow the modelling code of transformers 5.24; each function reads only the keys that its
family uses (Qwen3-MoE has an intermediate_size that no layer uses; an MLA config may have a head_dim that is not one).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from moeplan.specs.hf_fields import MOST_LAYERS, Fields
from moeplan.specs.model import Attention, Experts, Gqa, LayerGroup, Mla

QkNorm = Literal["none", "head", "layer"]


class Architecture(Struct, frozen=True, kw_only=True, eq=False):
    """What a family function finds; layers: one entry (of count 1) per main layer, in order."""

    layers: tuple[LayerGroup, ...]
    attention: Attention
    dense_width: int = 0
    experts: Experts | None = None
    mtp_layers: int = 0


class Family(Struct, frozen=True, kw_only=True):
    """How to read a family, and which `architectures` name it."""

    read: Callable[[Fields], Architecture]
    architecture: str


def deepseek_v3(fields: Fields) -> Architecture:
    """DeepSeek-V3, R1, V3.1 and Kimi-K2: MLA, dense first layers, a bias per expert that steers the router."""
    experts = _deepseek_experts(fields, topk_method="noaux_tc")
    mtp = fields.whole("num_nextn_predict_layers", default=0, least=0, most=MOST_LAYERS)
    return _deepseek(fields, experts=experts, mtp_layers=mtp)


def deepseek_v2(fields: Fields) -> Architecture:
    """DeepSeek-V2 and V2-Lite: MLA, dense first layers, softmax routing without a bias, no MTP."""
    return _deepseek(fields, experts=_deepseek_experts(fields, topk_method=None), mtp_layers=0)


def glm4_moe(fields: Fields) -> Architecture:
    """GLM-4.5, 4.6, 4.7 and Air: GQA with biases on q, k, v (none on the output), dense first layers, router bias."""
    qk_norm: QkNorm = "head" if fields.flag("use_qk_norm", default=False) else "none"
    bias = fields.flag("attention_bias", default=False)
    return Architecture(
        layers=_dense_first(fields),
        attention=_gqa(fields, head_dim=_head_dim(fields), qkv_bias=bias, qk_norm=qk_norm),
        dense_width=fields.whole("intermediate_size"),
        experts=_grouped(fields, replace(_experts(fields, "n_routed_experts"), selection_bias=True)),
        mtp_layers=fields.whole("num_nextn_predict_layers", default=0, least=0, most=MOST_LAYERS),
    )


def qwen3_moe(fields: Fields) -> Architecture:
    """Qwen3-MoE: every decoder_sparse_step-th layer is sparse unless listed in mlp_only_layers; a window is of all."""
    layers, step = _layer_count(fields), fields.whole("decoder_sparse_step", default=1, most=MOST_LAYERS)
    dense = set(fields.wholes("mlp_only_layers", most=MOST_LAYERS))
    sparse = [index not in dense and (index + 1) % step == 0 for index in range(layers)]
    fields.expect("shared_expert_intermediate_size", 0, "but Qwen3 has no shared expert")
    if fields.sound("decoder_sparse_step", "mlp_only_layers", "num_hidden_layers") and not any(sparse):
        fields.fault("decoder_sparse_step", f"holds {step}: none of {layers} layers is sparse", "write 1")
    window = _qwen_window(fields)
    return Architecture(
        layers=tuple(_layer("moe" if is_sparse else "dense", window) for is_sparse in sparse),
        attention=_qwen_attention(fields),
        dense_width=0 if all(sparse) else fields.whole("intermediate_size"),
        experts=_experts(fields, "num_experts", shared=None),
    )


def qwen3(fields: Fields) -> Architecture:
    """Dense Qwen3: where windows are used at all, the layers from max_window_layers on have one."""
    layers, window = _layer_count(fields), _qwen_window(fields)
    full = layers if window is None else fields.whole("max_window_layers", least=0, most=MOST_LAYERS)
    return Architecture(
        layers=tuple(_layer("dense", None if index < full else window) for index in range(layers)),
        attention=_qwen_attention(fields),
        dense_width=fields.whole("intermediate_size"),
    )


def mixtral(fields: Fields) -> Architecture:
    """Mixtral: every layer sparse; intermediate_size is the width of an expert."""
    window = fields.whole_or_null("sliding_window")
    return Architecture(
        layers=(_layer("moe", window),) * _layer_count(fields),
        attention=_gqa(fields, head_dim=_head_dim(fields, derived=True)),
        experts=_experts(fields, "num_local_experts", width="intermediate_size", shared=None),
    )


def minimax_m2(fields: Fields) -> Architecture:
    """MiniMax-M2, M2.5, M2.7: every layer sparse; one norm of q and one of k span all heads.

    mtp_layers is 0 although use_mtp is true and num_mtp_modules is 3: the published weights hold no MTP tensors
    (MiniMax-AI/MiniMax-M2.7 issue 16, MiniMax-M2.5 issue 8).
    """
    experts = _experts(fields, "num_local_experts", width="intermediate_size", shared=None)
    shared = fields.whole("shared_intermediate_size", default=0, least=0)
    if 0 in fields.wholes("attn_type_list", most=1):
        fields.fault("attn_type_list", "has a 0: linear attention", "only full attention (1) is supported")
    fields.word("qk_norm_type", ("per_layer",), default="per_layer")
    norm: QkNorm = "layer" if fields.flag("use_qk_norm", default=True) else "none"
    return Architecture(
        layers=(_layer("moe"),) * _layer_count(fields),
        attention=_gqa(fields, head_dim=_head_dim(fields), qk_norm=norm),
        experts=replace(experts, shared_width=shared, selection_bias=fields.flag("use_routing_bias", default=True)),
    )


def gpt_oss(fields: Fields) -> Architecture:
    """gpt-oss: layer_types says which layers see only sliding_window keys; biases everywhere, one sink per head."""
    layers, bias = _layer_count(fields), fields.flag("attention_bias", default=True)
    kinds = fields.words("layer_types", ("full_attention", "sliding_attention"), required=True)
    if fields.sound("layer_types", "num_hidden_layers") and len(kinds) != layers:
        problem = f"lists {len(kinds)} layers, num_hidden_layers says {layers}"
        fields.fault("layer_types", problem, "list each layer once")
    window = fields.whole("sliding_window") if "sliding_attention" in kinds else None
    experts = _experts(fields, "num_local_experts", width="intermediate_size", shared=None)
    twin = fields.whole("experts_per_token", default=experts.top_k)
    if fields.sound("experts_per_token", "num_experts_per_tok") and twin != experts.top_k:
        fields.fault("experts_per_token", f"holds {twin}, num_experts_per_tok {experts.top_k}", "make them equal")
    attention = _gqa(fields, head_dim=_head_dim(fields), qkv_bias=bias)
    return Architecture(
        layers=tuple(_layer("moe", window if kind == "sliding_attention" else None) for kind in kinds),
        attention=replace(attention, out_bias=bias, sinks=True),
        experts=replace(experts, router_bias=True, expert_bias=True),
    )


def llama(fields: Fields) -> Architecture:
    """Llama-3.x: dense; head_dim is hidden_size / num_attention_heads unless it is given."""
    fields.expect("mlp_bias", False, "but biases of the FFN are not counted")
    bias = fields.flag("attention_bias", default=False)
    attention = _gqa(fields, head_dim=_head_dim(fields, derived=True), qkv_bias=bias)
    return Architecture(
        layers=(_layer("dense"),) * _layer_count(fields),
        attention=replace(attention, out_bias=bias),
        dense_width=fields.whole("intermediate_size"),
    )


FAMILIES: Final = {  # model_type -> family
    "deepseek_v2": Family(read=deepseek_v2, architecture="DeepseekV2ForCausalLM"),
    "deepseek_v3": Family(read=deepseek_v3, architecture="DeepseekV3ForCausalLM"),
    "glm4_moe": Family(read=glm4_moe, architecture="Glm4MoeForCausalLM"),
    "gpt_oss": Family(read=gpt_oss, architecture="GptOssForCausalLM"),
    "kimi_k2": Family(read=deepseek_v3, architecture="DeepseekV3ForCausalLM"),
    "llama": Family(read=llama, architecture="LlamaForCausalLM"),
    "minimax_m2": Family(read=minimax_m2, architecture="MiniMaxM2ForCausalLM"),
    "mixtral": Family(read=mixtral, architecture="MixtralForCausalLM"),
    "qwen3": Family(read=qwen3, architecture="Qwen3ForCausalLM"),
    "qwen3_moe": Family(read=qwen3_moe, architecture="Qwen3MoeForCausalLM"),
}


def _layer(ffn: Literal["dense", "moe"], window: int | None = None) -> LayerGroup:
    return LayerGroup(count=1, ffn=ffn, window=window)


def _layer_count(fields: Fields) -> int:
    return fields.whole("num_hidden_layers", most=MOST_LAYERS)


def _dense_first(fields: Fields) -> tuple[LayerGroup, ...]:
    """Make the first first_k_dense_replace layers dense, and of the rest every moe_layer_freq-th sparse."""
    layers = _layer_count(fields)
    first = fields.whole("first_k_dense_replace", least=0, most=MOST_LAYERS)
    every = fields.whole("moe_layer_freq", default=1, most=MOST_LAYERS)
    sparse = [index >= first and index % every == 0 for index in range(layers)]
    if fields.sound("num_hidden_layers", "first_k_dense_replace", "moe_layer_freq") and not any(sparse):
        fields.fault("first_k_dense_replace", f"holds {first}: none of {layers} layers is sparse", "write fewer")
    return tuple(_layer("moe" if is_sparse else "dense") for is_sparse in sparse)


def _deepseek(fields: Fields, *, experts: Experts, mtp_layers: int) -> Architecture:
    fields.expect("attention_bias", False, "but biases of MLA are not counted")
    # num_key_value_heads and head_dim may be there too, but neither is the cache of MLA or its width
    attention = Mla(
        heads=fields.whole("num_attention_heads"),
        kv_lora_rank=fields.whole("kv_lora_rank"),
        qk_nope_head_dim=fields.whole("qk_nope_head_dim"),
        qk_rope_head_dim=fields.whole("qk_rope_head_dim"),
        v_head_dim=fields.whole("v_head_dim"),
        q_lora_rank=fields.whole_or_null("q_lora_rank", required=True),
    )
    return Architecture(
        layers=_dense_first(fields),
        attention=attention,
        dense_width=fields.whole("intermediate_size"),
        experts=_grouped(fields, experts),
        mtp_layers=mtp_layers,
    )


def _deepseek_experts(fields: Fields, *, topk_method: str | None) -> Experts:
    """Only «noaux_tc» routing has e_score_correction_bias, one figure per expert."""
    method = fields.word("topk_method", ("greedy", "group_limited_greedy", "noaux_tc"), default=topk_method)
    return replace(_experts(fields, "n_routed_experts"), selection_bias=method == "noaux_tc")


def _experts(
    fields: Fields, count: str, *, width: str = "moe_intermediate_size", shared: str | None = "n_shared_experts"
) -> Experts:
    experts, top_k = fields.whole(count), fields.whole("num_experts_per_tok")
    if fields.sound(count, "num_experts_per_tok") and top_k > experts:
        fields.fault("num_experts_per_tok", f"is {top_k} of {experts} experts", f"write at most {experts}")
    one = fields.whole(width)
    copies = (fields.whole_or_null(shared, required=True, least=0) or 0) if shared else 0
    return Experts(count=experts, top_k=top_k, width=one, shared_width=copies * one)


def _grouped(fields: Fields, experts: Experts) -> Experts:
    """Add the limit of a token to topk_group of n_group groups of experts."""
    groups = fields.whole_or_null("n_group", required=True) or 1
    chosen = fields.whole_or_null("topk_group", required=True) or 1
    if fields.sound("n_group", "topk_group") and chosen > groups:
        fields.fault("topk_group", f"is {chosen} of {groups} groups", "write at most n_group")
    if fields.sound("n_group", "n_routed_experts") and experts.count % groups:
        fields.fault("n_group", f"{groups} groups do not divide {experts.count} experts", "write a divisor")
    return replace(experts, n_group=groups, topk_group=chosen)


def _head_dim(fields: Fields, *, derived: bool = False) -> int:
    """Return head_dim where given, which always wins; only families that define it as hidden / heads may omit it."""
    if not derived or fields.has("head_dim"):
        return fields.whole("head_dim")
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if fields.sound("hidden_size", "num_attention_heads") and hidden % heads:
        problem = f"is missing, and {heads} heads do not divide hidden_size {hidden}"
        fields.fault("head_dim", problem, "add «head_dim: …» as in the model's published config.json")
    return max(1, hidden // heads)


def _gqa(fields: Fields, *, head_dim: int, qkv_bias: bool = False, qk_norm: QkNorm = "none") -> Gqa:
    heads, kv_heads = fields.whole("num_attention_heads"), fields.whole("num_key_value_heads")
    if fields.sound("num_attention_heads", "num_key_value_heads") and heads % kv_heads:
        fields.fault("num_key_value_heads", f"{kv_heads} KV heads do not divide {heads} query heads", "write a divisor")
    return Gqa(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=qkv_bias, qk_norm=qk_norm)


def _qwen_attention(fields: Fields) -> Gqa:
    bias = fields.flag("attention_bias", default=False)
    return replace(_gqa(fields, head_dim=_head_dim(fields), qkv_bias=bias, qk_norm="head"), out_bias=bias)


def _qwen_window(fields: Fields) -> int | None:
    """sliding_window and max_window_layers mean nothing unless use_sliding_window is true."""
    if not fields.flag("use_sliding_window", default=False):
        return None
    return fields.whole_or_null("sliding_window")
