"""The attention half of a layer, in true dimensions: front up to the query, back from the core to the output."""

from __future__ import annotations

import numpy as np

from moeplan.kinds import Real
from moeplan.layers.step import Step
from moeplan.ops.attention import gqa_decode, mla_decode
from moeplan.ops.cost import Cost
from moeplan.ops.elementwise import elementwise
from moeplan.ops.gemm import gemm
from moeplan.specs.model import Gqa, Mla
from moeplan.specs.precision import weight_format

BF16 = 2.0


def attention_front(step: Step) -> list[Cost]:
    """Operators from the layer's input to the query and the new cache entries."""
    attention = step.attention
    return _mla_front(step, attention) if isinstance(attention, Mla) else _gqa_front(step, attention)


def attention_back(step: Step, *, window: int | None) -> list[Cost]:
    """The attention core and this GPU's part of the output projection; a window bounds the keys that are seen."""
    attention, weights = step.attention, step.precision.attention_output
    context = np.minimum(step.context, window) if window is not None else step.context
    core = mla_core if isinstance(attention, Mla) else gqa_core
    costs = core(step, context)
    out = attention.heads * (attention.v_head_dim if isinstance(attention, Mla) else attention.head_dim)
    if weights.computes_in != "bf16":
        costs.append(_quantise("o_quant", step, out))
    costs.append(gemm("o_proj", step.machine, m=step.rows, n=step.model.hidden, k=out, weights=weights))
    return costs


def mla_core(step: Step, context: Real) -> list[Cost]:
    """Absorbed attention and the product that takes its output from the latent to the heads."""
    attention, precision = step.attention, step.precision
    assert isinstance(attention, Mla), "called for MLA only"
    core = mla_decode(
        "mla_core",
        step.machine,
        attention,
        batch=step.batch,
        q_len=step.q_len,
        context=context,
        core=precision.core,
        cache=precision.kv,
    )
    absorb = gemm(
        "v_absorb",
        step.machine,
        m=step.rows,
        n=attention.v_head_dim,
        k=attention.kv_lora_rank,
        weights=weight_format("bf16"),
        copies=attention.heads,
    )
    return [core, absorb]


def gqa_core(step: Step, context: Real) -> list[Cost]:
    """Attention with grouped queries."""
    attention, precision = step.attention, step.precision
    assert isinstance(attention, Gqa), "called for GQA only"
    return [
        gqa_decode(
            "gqa_core",
            step.machine,
            attention,
            batch=step.batch,
            q_len=step.q_len,
            context=context,
            core=precision.core,
            cache=precision.kv,
        )
    ]


def _mla_front(step: Step, attention: Mla) -> list[Cost]:
    machine, rows, hidden, weights = step.machine, step.rows, step.model.hidden, step.precision.attention_linear
    query = attention.heads * attention.qk_head_dim
    norm = elementwise("input_norm", machine, rows=rows, bytes_per_row=4 * hidden * BF16)
    if attention.q_lora_rank is None:
        costs = [
            norm,
            gemm("q_proj", machine, m=rows, n=query, k=hidden, weights=weights),
            gemm("kv_a_proj", machine, m=rows, n=attention.latent_dim, k=hidden, weights=weights),
            elementwise("latent_norm", machine, rows=rows, bytes_per_row=2 * attention.latent_dim * BF16),
        ]
    else:
        down = attention.q_lora_rank + attention.latent_dim
        costs = [
            norm,
            gemm("q_a_kv_a_proj", machine, m=rows, n=down, k=hidden, weights=weights),
            elementwise("latent_norm", machine, rows=rows, bytes_per_row=2 * down * BF16),
        ]
        if weights.computes_in != "bf16":
            costs.append(_quantise("q_quant", step, attention.q_lora_rank))
        costs.append(gemm("q_b_proj", machine, m=rows, n=query, k=attention.q_lora_rank, weights=weights))
    absorb = gemm(
        "q_absorb",
        machine,
        m=rows,
        n=attention.kv_lora_rank,
        k=attention.qk_nope_head_dim,
        weights=weight_format("bf16"),
        copies=attention.heads,
    )
    rotated = 2 * attention.heads * attention.qk_rope_head_dim + 2 * attention.latent_dim
    return [*costs, absorb, elementwise("rope_and_cache", machine, rows=rows, bytes_per_row=rotated * BF16)]


def _gqa_front(step: Step, attention: Gqa) -> list[Cost]:
    machine, rows, hidden = step.machine, step.rows, step.model.hidden
    width = (attention.heads + 2 * attention.kv_heads) * attention.head_dim
    return [
        elementwise("input_norm", machine, rows=rows, bytes_per_row=4 * hidden * BF16),
        gemm("qkv_proj", machine, m=rows, n=width, k=hidden, weights=step.precision.attention_linear),
        elementwise("rope_and_cache", machine, rows=rows, bytes_per_row=2 * width * BF16),
    ]


def _quantise(name: str, step: Step, width: int) -> Cost:
    """Read bf16, write fp8."""
    return elementwise(name, step.machine, rows=step.rows, bytes_per_row=3.0 * width)
