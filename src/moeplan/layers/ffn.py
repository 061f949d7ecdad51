"""The feed-forward half of a layer: dense, or router, shared and routed experts."""

from __future__ import annotations

from moeplan.kinds import Real
from moeplan.layers.step import Step
from moeplan.ops.cost import Cost
from moeplan.ops.elementwise import elementwise
from moeplan.ops.fused_moe import fused_moe
from moeplan.ops.gemm import gemm
from moeplan.ops.grouped_gemm import grouped_gemm
from moeplan.specs.model import Experts
from moeplan.specs.precision import weight_format

BF16, FP32 = 2.0, 4.0


def dense_ffn(step: Step) -> list[Cost]:
    """Norm, gate_up, activation, down of a dense layer, its width dealt over the TP group."""
    norm = elementwise("post_norm", step.machine, rows=step.rows, bytes_per_row=4 * step.model.hidden * BF16)
    return [norm, *_gated_ffn("dense", step, step.rows, step.model.dense_width // step.tp)]


def shared_expert(step: Step) -> list[Cost]:
    """The shared experts as one dense FFN over the rank's own tokens; none for models without."""
    width = experts_of(step).shared_width
    return _gated_ffn("shared", step, step.own_rows, width // step.dense_tp) if width else []


def router(step: Step) -> list[Cost]:
    """Norm, the gate's product (bf16) and top-k."""
    experts, machine, rows = experts_of(step), step.machine, step.own_rows
    return [
        elementwise("post_norm", machine, rows=rows, bytes_per_row=4 * step.model.hidden * BF16),
        gemm("router", machine, m=rows, n=experts.count, k=step.model.hidden, weights=weight_format("bf16")),
        elementwise("top_k", machine, rows=rows, bytes_per_row=2 * experts.count * FP32),
    ]


def routed_experts(step: Step) -> list[Cost]:
    """gate_up, activation and down over the rows of the fullest rank.

    Behind an all-to-all two grouped products work on the rows as they lie in its buffer; where all tokens are at hand,
    one fused kernel sorts them by expert, works and adds up.
    """
    experts, load, weights = experts_of(step), step.load(), step.precision.experts
    assert load is not None, "a sparse layer has a load"
    width, hidden = experts.width, step.model.hidden
    if not step.all_to_all:
        return [
            fused_moe(
                "routed_experts",
                step.machine,
                load=load,
                tokens=step.tokens,
                hidden=hidden,
                width=width,
                top_k=experts.top_k,
                ep=step.ep,
                tp=step.moe_tp,
                weights=weights,
            )
        ]
    return [
        grouped_gemm("routed_gate_up", step.machine, load=load, n=2 * width, k=hidden, weights=weights, down=False),
        _activation("routed_silu", step, width, load.rows),
        grouped_gemm("routed_down", step.machine, load=load, n=hidden, k=width, weights=weights, down=True),
    ]


def experts_of(step: Step) -> Experts:
    """The experts of a model that has them."""
    assert step.model.experts is not None, "a sparse layer belongs to a model with experts"
    return step.model.experts


def _gated_ffn(name: str, step: Step, rows: Real, width: int) -> list[Cost]:
    machine, hidden, weights = step.machine, step.model.hidden, step.precision.linear
    return [
        gemm(f"{name}_gate_up", machine, m=rows, n=2 * width, k=hidden, weights=weights),
        _activation(f"{name}_silu", step, width, rows),
        gemm(f"{name}_down", machine, m=rows, n=hidden, k=width, weights=weights),
    ]


def _activation(name: str, step: Step, width: int, rows: Real) -> Cost:
    """Read gate and up in bf16, write their product, quantised or not."""
    return elementwise(name, step.machine, rows=rows, bytes_per_row=2 * width * BF16 + width * BF16)
