"""Tables of multi-head and grouped-query attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from moeplan.kernels.silicon import SiliconTable
from moeplan.kinds import Array

Columns = dict[str, Array]


def _attention(table: SiliconTable) -> Columns:
    """A row of `isl` new tokens after `step` cached ones: the last of them sees all.

    group: query heads per KV head, by which a file of fits picks rows; no form reads it.
    """
    heads, kv_heads, q_len = (_real(table, name) for name in ("num_heads", "num_key_value_heads", "isl"))
    return {
        "batch": _real(table, "batch_size"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": _real(table, "head_dim"),
        "q_len": q_len,
        "context": _real(table, "step") + q_len,
        "group": heads / kv_heads,
    }


def _real(table: SiliconTable, name: str) -> Array:
    return np.asarray(table[name], dtype=float)


READERS: Final[dict[str, Callable[[SiliconTable], Columns]]] = {
    "generation_attention": _attention,
    "context_attention": _attention,
}
