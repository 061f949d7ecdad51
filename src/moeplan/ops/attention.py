"""Decode attention: absorbed MLA and grouped queries."""

from __future__ import annotations

import numpy as np

from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.work import AttentionWork, attention_work, overlapped
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.specs.model import Gqa, Mla
from moeplan.specs.precision import Format

_TENSOR = {
    "none": "scores/(peak·e_c) + values/(peak·e_c) + vector/(rate·e_v)",
    "two-stage": "scores/(peak·e_c) + max(vector/(rate·e_v), values/(peak·e_c))",
    "three-stage": "max(vector/(rate·e_v), (scores + values)/(peak·e_c))",
}


def mla_decode(
    name: str, machine: Machine, attention: Mla, *, batch: Real, q_len: Real, context: Real, core: Format, cache: Format
) -> Cost:
    """Absorbed MLA: every head works on the shared latent, 576 wide keys and 512 wide values in DeepSeek-V3."""
    work = attention_work(
        batch=batch,
        q_len=q_len,
        context=context,
        heads=attention.heads,
        qk_dim=attention.latent_dim,
        v_dim=attention.kv_lora_rank,
        cache_elements=attention.latent_dim,
        cache=cache,
    )
    efficiency = machine.kernels.mla(
        batch=batch, q_len=q_len, context=context, heads=attention.heads, core=core, cache=cache
    )
    return _attention(name, machine, work, efficiency, core, {"batch": batch, "q_len": q_len, "context": context})


def gqa_decode(
    name: str, machine: Machine, attention: Gqa, *, batch: Real, q_len: Real, context: Real, core: Format, cache: Format
) -> Cost:
    """Grouped queries: heads query heads over kv_heads cached pairs of K and V."""
    work = attention_work(
        batch=batch,
        q_len=q_len,
        context=context,
        heads=attention.heads,
        qk_dim=attention.head_dim,
        v_dim=attention.head_dim,
        cache_elements=2 * attention.kv_heads * attention.head_dim,
        cache=cache,
    )
    efficiency = machine.kernels.gqa(
        batch=batch,
        q_len=q_len,
        context=context,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        core=core,
        cache=cache,
    )
    return _attention(name, machine, work, efficiency, core, {"batch": batch, "q_len": q_len, "context": context})


def _attention(
    name: str, machine: Machine, work: AttentionWork, efficiency: Efficiency, core: Format, shown: dict[str, Real]
) -> Cost:
    gpu = machine.cluster.gpu
    peak = gpu.peak(core.computes_in)
    score = work.score_flops / (peak * efficiency.compute)
    value = work.value_flops / (peak * efficiency.compute)
    vector = work.vector_ops / (gpu.vector_rate * efficiency.vector)
    memory = work.bytes_ / (gpu.memory.bandwidth * efficiency.memory)
    tensor = overlapped(score, value, vector, gpu)
    return Cost(
        name=name,
        seconds=efficiency.floor + np.maximum(tensor, memory),
        parts={"compute": tensor, "memory": memory, "floor": efficiency.floor},
        efficiencies={"compute": efficiency.compute, "memory": efficiency.memory},
        origin=efficiency.origin,
        source=efficiency.source,
        formula=f"floor + max({_TENSOR[gpu.attention_overlap]}, bytes / (bandwidth · e_m))",
        terms={key: (amount, "") for key, amount in shown.items()}
        | {
            "scores": (work.score_flops, "FLOP"),
            "values": (work.value_flops, "FLOP"),
            "vector": (work.vector_ops, "op"),
            "bytes": (work.bytes_, "B"),
            "peak": (peak, "FLOP/s"),
            "rate": (gpu.vector_rate, "op/s"),
            "bandwidth": (gpu.memory.bandwidth, "B/s"),
            "e_c": (efficiency.compute, ""),
            "e_v": (efficiency.vector, ""),
            "e_m": (efficiency.memory, ""),
            "floor": (efficiency.floor, "s"),
        },
        flops=work.flops,
        bytes_=work.bytes_,
        error=efficiency.error,
        measurable=True,
    )
