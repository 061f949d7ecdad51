"""Tables of multi-head latent attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from moeplan.kernels.silicon import SiliconTable
from moeplan.kinds import Array

Columns = dict[str, Array]


def _decode(table: SiliconTable) -> Columns:
    """A row of `isl` new tokens at `step` cached ones: each attends to the new one as well."""
    return {
        "batch": _real(table, "batch_size"),
        "heads": _real(table, "num_heads"),
        "q_len": _real(table, "isl"),
        "context": _real(table, "step") + _real(table, "isl"),
    }


def _real(table: SiliconTable, name: str) -> Array:
    return np.asarray(table[name], dtype=float)


READERS: Final[dict[str, Callable[[SiliconTable], Columns]]] = {
    "generation_mla": _decode,
}
