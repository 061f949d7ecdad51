"""The forms by name."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from moeplan.errors import UnknownName
from moeplan.kernels.forms.form import Form

FORMS: Final = (
    "gemm",
    "batched_gemm",
    "grouped_gemm",
    "moe",
    "mla_decode",
    "mla_prefill",
    "mla_module",
    "gqa_decode",
    "gqa_prefill",
    "deepep_low_latency",
    "deepep_normal",
    "nvlink_all_to_all",
    "all_reduce",
    "nccl",
)


def form_named(name: str) -> Form:
    """Return a form; raise UnknownName. Each is imported when it is asked for."""
    if name not in FORMS:
        raise UnknownName("form", name, FORMS)
    form: Form = import_module(f"moeplan.kernels.forms.{name}").FORM
    return form
