"""The work of a kernel by the columns of its form, and its time at the chip's peaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from moeplan.kernels.forms.form import Kernel, Shape
from moeplan.kernels.work import (
    AttentionWork,
    Work,
    attention_work,
    gemm_work,
    grouped_gemm_work,
    ideal_attention_time,
    ideal_gemm_time,
)
from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu

MLA_KEY, MLA_VALUE = 576, 512  # widths of DeepSeek's latent cache, with and without its RoPE part


def ideal_seconds(form: str, gpu: Gpu, kernel: Kernel, shape: Shape) -> Real:
    """The roofline of one kernel; KeyError for a form whose work is not of one kernel."""
    work = _WORK[form](kernel, shape)
    if isinstance(work, AttentionWork):
        return ideal_attention_time(work, gpu, kernel.formats["core"].computes_in)
    return ideal_gemm_time(work, gpu, kernel.formats["weights"].computes_in)


def _gemm(kernel: Kernel, shape: Any) -> Work:
    return gemm_work(m=shape["m"], n=shape["n"], k=shape["k"], weights=kernel.formats["weights"])


def _batched(kernel: Kernel, shape: Any) -> Work:
    sizes = {name: shape[name] for name in ("m", "n", "k", "copies")}
    return gemm_work(weights=kernel.formats["weights"], **sizes)


def _grouped(kernel: Kernel, shape: Any) -> Work:
    rows = shape["groups"] * shape["m"]
    weights = kernel.formats["weights"]
    return grouped_gemm_work(rows=rows, groups=shape["groups"], n=shape["n"], k=shape["k"], weights=weights)


def _mla(kernel: Kernel, shape: Any) -> AttentionWork:
    sizes = {name: shape[name] for name in ("batch", "q_len", "context", "heads")}
    return attention_work(
        qk_dim=MLA_KEY, v_dim=MLA_VALUE, cache_elements=MLA_KEY, cache=kernel.formats["cache"], **sizes
    )


def _gqa(kernel: Kernel, shape: Any) -> AttentionWork:
    sizes = {name: shape[name] for name in ("batch", "q_len", "context", "heads")}
    width = np.asarray(shape["head_dim"])
    cached: Any = 2 * np.asarray(shape["kv_heads"]) * width
    dim: Any = width
    return attention_work(qk_dim=dim, v_dim=dim, cache_elements=cached, cache=kernel.formats["cache"], **sizes)


_WORK: Final[dict[str, Callable[[Kernel, Shape], Work | AttentionWork]]] = {
    "gemm": _gemm,
    "batched_gemm": _batched,
    "grouped_gemm": _grouped,
    "mla_decode": _mla,
    "gqa_decode": _gqa,
}
