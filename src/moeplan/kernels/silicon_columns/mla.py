"""Tables of multi-head latent attention: the kernel alone, and the module with its projections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from moeplan.kernels.silicon import SiliconTable
from moeplan.kinds import Array

Columns = dict[str, Array]


def _attention(table: SiliconTable) -> Columns:
    """A row of `isl` new tokens after `step` cached ones, of which the last sees both; heads of one GPU."""
    new = _real(table, "isl")
    return {
        "batch": _real(table, "batch_size"),
        "heads": _real(table, "num_heads"),
        "q_len": new,
        "context": _real(table, "step") + new,
    }


def _real(table: SiliconTable, name: str) -> Array:
    return np.asarray(table[name], dtype=float)


READERS: Final[dict[str, Callable[[SiliconTable], Columns]]] = {
    "generation_mla": _attention,
    "context_mla": _attention,
    "mla_generation_module": _attention,
    "mla_context_module": _attention,
}
