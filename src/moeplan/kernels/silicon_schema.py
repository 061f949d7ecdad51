"""What the columns of every silicon table are called, of which type they are and in which unit; written as data.

A schema is strict: aiconfigurator-core changes its tables between versions, and a column that is new, gone or of
another type may mean another quantity. Text of column names is split at spaces.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Kind = Literal["text", "whole", "real", "yes_no"]

MS: Final = 1e-3
US: Final = 1e-6
GB: Final = 1e9

# Bytes of one element, by the names that the collectives' tables use.
ELEMENT_BYTES: Final = {"bfloat16": 2, "half": 2, "float16": 2, "float32": 4, "fp8": 1, "int8": 1}

_COMMON: Final = "op_name kernel_source"
# Where a row comes from: not in NCCL's oldest files. Read apart, never an axis of the table.
PROVENANCE: Final = ("framework", "version", "device")
# Repeats kernel_source, or is not timing.
_UNUSED_TEXT: Final = "backend implementation"
_UNUSED_REAL: Final = "power power_limit"


class Column(Struct, frozen=True, kw_only=True):
    """One column: its raw name and type; the name and unit it is given, and the factor that brings it there."""

    raw: str
    kind: Kind
    name: str
    unit: str = ""
    factor: float = 1.0
    required: bool = True
    used: bool = True
    time: bool = False  # a measured quantity, not an axis


class Schema(Struct, frozen=True, kw_only=True):
    """The folder under a system that holds a family's files, and the columns of <family>_perf.parquet."""

    folder: str
    columns: tuple[Column, ...]

    @property
    def axes(self) -> tuple[Column, ...]:
        """Columns that say what was measured."""
        return tuple(column for column in self.columns if column.used and not column.time)

    @property
    def times(self) -> tuple[Column, ...]:
        """Columns that say what came out."""
        return tuple(column for column in self.columns if column.used and column.time)

    @property
    def element_type(self) -> str:
        """The text column that names the type of a message's elements."""
        return next(column.raw for column in self.columns if column.raw.endswith("_dtype"))


def _schema(
    folder: str,
    text: str = "",
    whole: str = "",
    *,
    real: str = "",
    yes_no: str = "",
    maybe_text: str = "",
    maybe_whole: str = "",
    times: dict[str, tuple[str, float]] | None = None,
    rates: dict[str, tuple[str, float]] | None = None,
) -> Schema:
    times = {"latency": ("seconds", MS)} if times is None else times
    columns = [Column(raw=raw, kind="text", name=raw) for raw in f"{_COMMON} {text}".split()]
    columns += [Column(raw=raw, kind="text", name=raw, required=False) for raw in maybe_text.split()]
    columns += [_whole(raw) for raw in whole.split()]
    columns += [Column(raw=raw, kind="whole", name=raw, required=False) for raw in maybe_whole.split()]
    columns += [Column(raw=raw, kind="real", name=raw) for raw in real.split()]
    columns += [Column(raw=raw, kind="yes_no", name=raw) for raw in yes_no.split()]
    columns += [_measured(raw, name, "s", factor) for raw, (name, factor) in times.items()]
    columns += [_measured(raw, name, "B/s", factor) for raw, (name, factor) in (rates or {}).items()]
    columns += [_left_out(raw, "text") for raw in (*PROVENANCE, *_UNUSED_TEXT.split())]
    columns += [_left_out(raw, "real") for raw in _UNUSED_REAL.split()]
    return Schema(folder=folder, columns=tuple(columns))


def _whole(raw: str) -> Column:
    if raw == "message_size":  # elements in the file
        return Column(raw=raw, kind="whole", name="message_bytes", unit="B")
    return Column(raw=raw, kind="whole", name=raw)


def _measured(raw: str, name: str, unit: str, factor: float) -> Column:
    return Column(raw=raw, kind="real", name=name, unit=unit, factor=factor, time=True)


def _left_out(raw: str, kind: Kind) -> Column:
    return Column(raw=raw, kind=kind, name=raw, required=False, used=False)


_MOE_TEXT = "moe_dtype distribution"
_MOE = "num_tokens hidden_size inter_size topk num_experts moe_tp_size moe_ep_size"
_MLA_TEXT = "mla_dtype kv_cache_dtype"
_MLA = "num_heads batch_size isl tp_size step"
_MODULE_TEXT = f"model architecture {_MLA_TEXT} gemm_type"
_ATTENTION_TEXT = "attn_dtype kv_cache_dtype"
_ATTENTION = "batch_size isl num_heads num_key_value_heads head_dim beam_width step"
_DELTA = "batch_size seq_len num_tokens d_model d_conv num_k_heads head_k_dim num_v_heads head_v_dim"
_DEEPEP = "node_num hidden_size num_token num_topk num_experts"

_moe = _schema("moe", _MOE_TEXT, _MOE)
_mla = _schema("mla", _MLA_TEXT, _MLA)
_wideep_mla = _schema("mla", _MLA_TEXT, _MLA, maybe_text="model architecture gemm_type")
_mla_module = _schema("mla", _MODULE_TEXT, _MLA)
_attention = _schema("attention", _ATTENTION_TEXT, _ATTENTION, maybe_whole="window_size")
_mlp = _schema("mlp", "quant_type", "num_token hidden_size intermediate_size", times={"avg_ms": ("seconds", MS)})
_quantize = _schema("quantize", "quant_dtype", "m k")
_msa = _schema("msa", _MODULE_TEXT, _MLA)
_dsa = _schema("sparse_attention", _MODULE_TEXT, _MLA)
_sparse = _schema("sparse_attention", _MODULE_TEXT, f"{_MLA} compress_ratio")
_local_sparse = _schema(
    "sparse_attention", _MODULE_TEXT, f"{_MLA} compress_ratio", maybe_whole="local_num_heads"
)  # vLLM's files tell local heads apart
_scored = _schema("sparse_attention", f"{_MODULE_TEXT} score_mode", f"{_MLA} compress_ratio")
_delta_rule = ("phase model_name", _DELTA)
_collective = ("nccl_dtype", "num_gpus message_size")

SCHEMAS: Final[dict[str, Schema]] = {
    "gemm": _schema("gemm", "gemm_dtype", "m n k"),
    "moe": _moe,
    "wideep_generation_moe": _moe,
    "wideep_context_moe": _moe,
    "wideep_moe": _schema(
        "moe",
        f"{_MOE_TEXT} moe_kernel simulation_mode",
        f"{_MOE} dp_num_tokens rank0_num_tokens num_slots",
    ),
    "dsv4_megamoe_module": _schema(
        "moe",
        f"{_MOE_TEXT} phase kernel_dtype source_policy pre_dispatch buffer_policy",
        f"{_MOE} global_num_tokens num_fused_shared_experts num_max_tokens_per_rank effective_num_max_tokens_per_rank",
        real="routed_scaling_factor",
        yes_no="includes_routed_scale includes_gate_topk includes_buffer_init used_cuda_graph",
    ),
    "generation_mla": _mla,
    "context_mla": _mla,
    "wideep_generation_mla": _wideep_mla,
    "wideep_context_mla": _wideep_mla,
    "mla_generation_module": _mla_module,
    "mla_context_module": _mla_module,
    "mla_bmm": _schema("mla_bmm", "bmm_dtype", "num_tokens num_heads"),
    "generation_attention": _attention,
    "context_attention": _attention,
    "encoder_attention": _schema("encoder_attention", "attn_dtype", "batch_size isl num_heads head_dim"),
    "custom_allreduce": _schema("comm", "allreduce_dtype", "num_gpus message_size"),
    "nccl": _schema("comm", *_collective),
    "oneccl": _schema("comm", *_collective),
    "wideep_deepep_ll": _schema(
        "comm",
        whole=_DEEPEP,
        times={"dispatch_avg_t_us": ("dispatch_seconds", US), "combine_avg_t_us": ("combine_seconds", US)},
        rates={
            "dispatch_bandwidth_gbps": ("dispatch_bandwidth", GB),
            "combine_bandwidth_gbps": ("combine_bandwidth", GB),
        },
    ),
    "wideep_deepep_normal": _schema(
        "comm",
        whole=f"{_DEEPEP} dispatch_sms combine_sms",
        times={
            "dispatch_transmit_us": ("dispatch_transmit_seconds", US),
            "dispatch_notify_us": ("dispatch_notify_seconds", US),
            "combine_transmit_us": ("combine_transmit_seconds", US),
            "combine_notify_us": ("combine_notify_seconds", US),
        },
    ),
    # Here `latency` is in µs: it equals transmit_us + notify_us in every row.
    "moe_a2a": _schema(
        "comm",
        "comm_backend phase comm_dtype",
        "ep_size node_num hidden_size topk num_experts num_tokens sms",
        times={
            "latency": ("seconds", US),
            "transmit_us": ("transmit_seconds", US),
            "notify_us": ("notify_seconds", US),
        },
    ),
    "trtllm_alltoall": _schema("comm", _MOE_TEXT, "num_tokens hidden_size topk num_experts moe_ep_size"),
    "gdn": _schema("linear_attention", *_delta_rule),
    "kda": _schema("kda", *_delta_rule),
    "mamba2": _schema(
        "linear_attention",
        "phase model_name",
        "batch_size seq_len num_tokens d_model d_state d_conv nheads head_dim n_groups chunk_size",
    ),
    "wideep_generation_mlp": _mlp,
    "wideep_context_mlp": _mlp,
    "computescale": _quantize,
    "scale_matrix": _quantize,
    "mhc_module": _schema("mhc", "architecture", "num_tokens num_sites hc_mult hidden_size sinkhorn_iters"),
    "msa_generation_module": _msa,
    "msa_context_module": _msa,
    "dsa_generation_module": _dsa,
    "dsa_context_module": _dsa,
    "dsv4_csa_generation_module": _sparse,
    "dsv4_csa_context_module": _sparse,
    "dsv4_hca_generation_module": _sparse,
    "dsv4_hca_context_module": _sparse,
    "dsv4_hca_attn_module": _local_sparse,
    "dsv4_paged_mqa_logits_module": _local_sparse,
    "dsv4_csa_topk_calib": _scored,
    "glm5_dsa_attn_module": _sparse,
    "glm5_mqa_logits_module": _sparse,
    "glm5_topk_module": _scored,
}
