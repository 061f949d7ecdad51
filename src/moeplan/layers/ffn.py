"""The feed-forward half of a layer: dense, or router, all-to-alls, shared and routed experts."""

from __future__ import annotations

from moeplan.kinds import Real
from moeplan.layers.step import Step
from moeplan.ops.cost import Cost
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.ops.elementwise import elementwise
from moeplan.ops.gemm import gemm
from moeplan.ops.grouped_gemm import grouped_gemm
from moeplan.specs.model import Experts
from moeplan.specs.precision import weight_format

BF16, FP32 = 2.0, 4.0


def dense_ffn(step: Step) -> list[Cost]:
    """Norm, gate_up, activation, down of a dense layer."""
    norm = elementwise("post_norm", step.machine, rows=step.rows, bytes_per_row=4 * step.model.hidden * BF16)
    return [norm, *_gated_ffn("dense", step, step.model.dense_width)]


def shared_expert(step: Step) -> list[Cost]:
    """The shared experts as one dense FFN over the rank's own tokens; none for models without."""
    width = _experts(step).shared_width
    return _gated_ffn("shared", step, width) if width else []


def router(step: Step) -> list[Cost]:
    """Norm, the gate's product (bf16) and top-k."""
    experts, machine, rows = _experts(step), step.machine, step.rows
    return [
        elementwise("post_norm", machine, rows=rows, bytes_per_row=4 * step.model.hidden * BF16),
        gemm("router", machine, m=rows, n=experts.count, k=step.model.hidden, weights=weight_format("bf16")),
        elementwise("top_k", machine, rows=rows, bytes_per_row=2 * experts.count * FP32),
    ]


def dispatch(step: Step) -> Cost:
    """Send every token to its top_k experts; fp8 where the experts take fp8."""
    return _exchange("dispatch", step)


def combine(step: Step) -> Cost:
    """Send the experts' outputs back in bf16."""
    return _exchange("combine", step)


def routed_experts(step: Step) -> list[Cost]:
    """gate_up, activation and down over the rows of the fullest rank."""
    experts, load, weights = _experts(step), step.load(), step.precision.experts
    assert load is not None, "a sparse layer has a load"
    width, hidden = experts.width, step.model.hidden
    return [
        grouped_gemm("routed_gate_up", step.machine, load=load, n=2 * width, k=hidden, weights=weights, down=False),
        _activation("routed_silu", step, width, load.rows),
        grouped_gemm("routed_down", step.machine, load=load, n=hidden, k=width, weights=weights, down=True),
    ]


def _exchange(direction: str, step: Step) -> Cost:
    experts = _experts(step)
    wire = "fp8" if step.precision.experts.computes_in == "fp8" else "bf16"
    return all_to_all(
        "dispatch" if direction == "dispatch" else "combine",
        step.machine,
        tokens=step.rows,
        hidden=step.model.hidden,
        top_k=experts.top_k,
        ep=step.ep,
        dispatch=wire,
    )


def _gated_ffn(name: str, step: Step, width: int) -> list[Cost]:
    machine, rows, hidden, weights = step.machine, step.rows, step.model.hidden, step.precision.linear
    return [
        gemm(f"{name}_gate_up", machine, m=rows, n=2 * width, k=hidden, weights=weights),
        _activation(f"{name}_silu", step, width, rows),
        gemm(f"{name}_down", machine, m=rows, n=hidden, k=width, weights=weights),
    ]


def _activation(name: str, step: Step, width: int, rows: Real) -> Cost:
    """Read gate and up in bf16, write their product, quantised or not."""
    return elementwise(name, step.machine, rows=rows, bytes_per_row=2 * width * BF16 + width * BF16)


def _experts(step: Step) -> Experts:
    assert step.model.experts is not None, "a sparse layer belongs to a model with experts"
    return step.model.experts
