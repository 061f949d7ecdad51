"""The whole MLA module of DeepSeek-V3's width: projections, attention and what is done per token between them.

Decode is absorbed: queries go into the latent space by one batched GEMM and come back by another. Prefill expands the
latents to keys and values of every head. Norms, rotary embedding and the rounding of activations are a time per token
that is shared among SMs; as traffic they would shrink with memory bandwidth, and between H100 and H200 they do not.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms import mla_decode, mla_prefill
from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import Format, weight_format

HIDDEN, Q_LORA, KV_LORA = 7168, 1536, 512
NOPE, ROPE, VALUE = 128, 64, 128  # width of a head's key without and with position, and of its value
ROWS: Final = 64  # of a GEMM's tile: fewer tokens cost as much
BLOCK: Final = 128**3  # multiply-adds that `gemm` is stated for
PEAK_SHARE: Final = 0.95
ELEMENT: Final = 2.0  # bytes of an activation
FIXED: Final = {"floor": 0.0, "tail": 0.3, "fetch": 1e-8, "split": 2e-6, "passes": 1.0}  # of attention
FIXED_PREFILL: Final = {**FIXED, "tail": 1.0}
PREFILL_TILES: Final = 4  # sizes that a kernel of prefill names, see mla_prefill; one of decode names two or three


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """Sum floor + token·tokens/SMs + GEMMs + attention, each (memoryᵖ + computeᵖ)^(1/p), p = power; see PARAMETERS.

    batch, heads (of this GPU), q_len, context. kernel.tiles as mla_prefill's for prefill, else mla_decode's.
    """
    heads = np.asarray(shape["heads"], dtype=float)
    tokens = np.asarray(shape["batch"], dtype=float) * np.asarray(shape["q_len"])
    weights, bf16 = kernel.formats["weights"], weight_format("bf16")
    gemms: list[tuple[Format, Real, Real, Real]] = [
        (weights, Q_LORA + KV_LORA + ROPE, HIDDEN, 1.0),
        (weights, heads * (NOPE + ROPE), Q_LORA, 1.0),
        (weights, HIDDEN, heads * VALUE, 1.0),
    ]
    if len(kernel.tiles) == PREFILL_TILES:
        gemms.append((weights, heads * (NOPE + VALUE), KV_LORA, 1.0))
        attention = mla_prefill.parts(gpu, kernel, shape, {**FIXED_PREFILL, **given, "floor": 0.0})
    else:
        gemms += [(bf16, KV_LORA, NOPE, heads), (bf16, VALUE, KV_LORA, heads)]
        attention = mla_decode.parts(gpu, kernel, shape, {**FIXED, **given, "floor": 0.0})
    compute, memory, seconds = attention.compute, attention.memory, attention.seconds
    for stored, n, k, copies in gemms:
        arithmetic = _arithmetic(gpu, stored, tokens, n * k * copies, given["gemm"])
        traffic = copies * (n * k * stored.bytes_per_element + tokens * (n + k) * ELEMENT)
        traffic = traffic / (given["bandwidth"] * gpu.memory.bandwidth)
        compute, memory = compute + arithmetic, memory + traffic
        seconds = seconds + blend(given["power"], traffic, arithmetic)
    seconds = seconds + given["floor"] + given["token"] * tokens / gpu.units
    return Parts(seconds=seconds, compute=compute, memory=memory)


def _arithmetic(gpu: Gpu, stored: Format, tokens: Real, weights: Real, block: float) -> Real:
    """FLOP at the tensor peak and a fixed time per 128³ multiply-adds on an SM, whole tiles of tokens."""
    products = np.ceil(tokens / ROWS) * ROWS * weights
    seconds: Real = products * (2.0 / (PEAK_SHARE * gpu.peak(stored.computes_in)) + block / (BLOCK * gpu.units))
    return seconds


PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=3e-5, low=1e-6, high=3e-4, meaning="start and end of all its kernels"),
    Parameter(name="token", unit="s", start=1e-6, low=1e-9, high=1e-4, meaning="one token on one SM, outside of GEMMs"),
    Parameter(name="bandwidth", unit="", start=0.85, low=0.6, high=0.92, meaning="share of memory bandwidth reached"),
    Parameter(name="gemm", unit="s", start=1e-7, low=1e-9, high=1e-5, meaning="per 128³ multiply-adds on one SM"),
    Parameter(name="power", unit="", start=2.0, low=1.0, high=6.0, meaning="overlap of memory and compute, 1 is none"),
    Parameter(name="softmax", unit="", start=2.0, low=0.05, high=100.0, meaning="vector operations per score"),
    Parameter(name="block", unit="s", start=2e-6, low=1e-9, high=4e-5, meaning="start and end of a wave of CTAs"),
    Parameter(name="least", unit="", start=256.0, low=64.0, high=1e6, meaning="decode: fewest keys of a split CTA"),
    Parameter(name="join", unit="s", start=5e-8, low=1e-10, high=1e-6, meaning="decode: joining, per CTA of one tile"),
    Parameter(name="chain", unit="", start=1.0, low=0.3, high=6.0, meaning="prefill: a lone tile's time"),
)
FORM: Final = Form(
    name="mla_module",
    shape=("batch", "heads", "q_len", "context"),
    whole=("batch", "heads", "q_len", "context"),
    roles=("core", "cache", "weights"),
    parameters=PARAMETERS,
    parts=parts,
)
