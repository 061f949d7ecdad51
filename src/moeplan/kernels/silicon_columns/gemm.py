"""Tables of dense and batched GEMMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from moeplan.kernels.silicon import SiliconTable
from moeplan.kinds import Array

LATENT: Final = (512, 128)  # DeepSeek's cache without RoPE, and one head

Columns = dict[str, Array]


def _gemm(table: SiliconTable) -> Columns:
    return {name: _real(table, name) for name in ("m", "n", "k")}


def _batched(table: SiliconTable) -> Columns:
    """One product per head: up into the latent before attention's core, down from it after."""
    before = table["op_name"] == "mla_gen_pre"
    wide, narrow = map(float, LATENT)
    return {
        "copies": _real(table, "num_heads"),
        "m": _real(table, "num_tokens"),
        "n": np.where(before, wide, narrow),
        "k": np.where(before, narrow, wide),
    }


def _real(table: SiliconTable, name: str) -> Array:
    return np.asarray(table[name], dtype=float)


READERS: Final[dict[str, Callable[[SiliconTable], Columns]]] = {
    "gemm": _gemm,
    "mla_bmm": _batched,
}
