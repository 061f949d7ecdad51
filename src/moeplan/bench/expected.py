"""What the predictor expects of a shape, by the same operators that a step uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from moeplan.bench.family import Family, Shape
from moeplan.ops.attention import mla_decode
from moeplan.ops.cost import Cost
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.ops.elementwise import elementwise
from moeplan.ops.gemm import gemm
from moeplan.ops.grouped_gemm import grouped_gemm
from moeplan.ops.machine import Machine
from moeplan.routing.slots import ExpertLoad
from moeplan.specs.exchange import Direction, exchange, usual
from moeplan.specs.model import Mla
from moeplan.specs.precision import FORMATS

LATENT, ROPE = 512, 64  # DeepSeek-V3: values 512 wide, keys 576


def expected(family: Family, shape: Shape, machine: Machine) -> Cost:
    """Predict one shape; raise Unsupported when the GPU has no such precision."""
    return _OPERATORS[family](shape, machine)


def _gemm(shape: Shape, machine: Machine) -> Cost:
    return gemm("gemm", machine, m=shape["m"], n=shape["n"], k=shape["k"], weights=FORMATS["fp8_block"])


def _batched(shape: Shape, machine: Machine) -> Cost:
    sizes = {name: shape[name] for name in ("m", "n", "k", "copies")}
    return gemm("gemm", machine, weights=FORMATS["bf16"], **sizes)


def _grouped(shape: Shape, machine: Machine) -> Cost:
    """Every group is active and has exactly m rows; the product with more outputs than inputs is the second one."""
    groups, m = shape["groups"], shape["m"]
    load = ExpertLoad(rows=groups * m, slots=groups, active=groups, mean_rows_per_slot=m)
    n, k = shape["n"], shape["k"]
    return grouped_gemm(
        "grouped gemm", machine, load=load, n=n, k=k, weights=FORMATS["fp8_block"], down=n > k, exact=True
    )


def _mla(shape: Shape, machine: Machine) -> Cost:
    attention = Mla(
        heads=shape["heads"], kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, qk_nope_head_dim=128, v_head_dim=128
    )
    sizes = {name: shape[name] for name in ("batch", "q_len", "context")}
    return mla_decode("mla decode", machine, attention, core=FORMATS["bf16"], cache=FORMATS["bf16"], **sizes)


def _copy(shape: Shape, machine: Machine) -> Cost:
    """Every byte is read once and written once."""
    return elementwise("copy", machine, rows=shape["bytes"], bytes_per_row=2.0)


def _dispatch(shape: Shape, machine: Machine) -> Cost:
    return _sent("dispatch", shape, machine)


def _combine(shape: Shape, machine: Machine) -> Cost:
    return _sent("combine", shape, machine)


def _sent(direction: Direction, shape: Shape, machine: Machine) -> Cost:
    """The usual all-to-all of the cluster, DeepEP's low latency where it can have that; 256 experts by themselves."""
    return all_to_all(
        direction,
        machine,
        exchange(usual(machine.cluster, shape["ep"])),
        tokens=shape["tokens"],
        hidden=shape["hidden"],
        top_k=shape["top_k"],
        experts=shape.get("experts", 256),
        ep=shape["ep"],
        precision="fp8",
    )


_OPERATORS: Final[dict[Family, Callable[[Shape, Machine], Cost]]] = {
    "gemm_fp8": _gemm,
    "gemm_batched_bf16": _batched,
    "grouped_gemm_fp8": _grouped,
    "mla_decode_bf16": _mla,
    "copy": _copy,
    "dispatch": _dispatch,
    "combine": _combine,
}
