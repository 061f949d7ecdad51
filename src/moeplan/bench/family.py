"""Which kernels are measured: the columns that make a shape, in the order of their table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Family = Literal["gemm_fp8", "gemm_batched_bf16", "grouped_gemm_fp8", "mla_decode_bf16", "copy", "dispatch", "combine"]
Shape = Mapping[str, int]

_ALL_TO_ALL: Final = ("ep", "tokens", "hidden", "top_k")
COLUMNS: Final[dict[Family, tuple[str, ...]]] = {
    "gemm_fp8": ("m", "n", "k"),
    "gemm_batched_bf16": ("copies", "m", "n", "k"),
    "grouped_gemm_fp8": ("groups", "m", "n", "k"),
    "mla_decode_bf16": ("batch", "heads", "q_len", "context"),
    "copy": ("bytes",),
    "dispatch": _ALL_TO_ALL,
    "combine": _ALL_TO_ALL,
}
COMMANDS: Final[dict[str, tuple[Family, ...]]] = {
    "gemm": ("gemm_fp8", "gemm_batched_bf16"),
    "grouped-gemm": ("grouped_gemm_fp8",),
    "attention": ("mla_decode_bf16",),
    "all-to-all": ("dispatch", "combine"),
    "copy": ("copy",),
}


def key(shape: Shape, family: Family) -> tuple[int, ...]:
    """The shape as a tuple in the order of its table's columns."""
    return tuple(shape[column] for column in COLUMNS[family])


def words(shape: Shape) -> str:
    """The shape for people: «groups 8, m 16, n 4096, k 7168»."""
    return ", ".join(f"{name} {value:,}" for name, value in shape.items())
