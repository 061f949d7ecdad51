"""Rows of grouped GEMMs in InferSim's benchmark: every group gets ⌊m·u⌋ rows, u even between 0.7 and 1.3.

Its tables print m alone. So half of the groups of m = 1 hold no row, and a time for them is no time of m rows each.
"""

from __future__ import annotations

from typing import Final

import numpy as np

LOW, HIGH = 0.7, 1.3
DRAWS: Final = (np.arange(20_000) + 0.5) / 20_000  # of u, evenly, which is exact to a few 1e-5


def dealt(m: float, tile: int) -> tuple[float, float, float]:
    """Of a group of m printed rows: the chance that it has any, the mean of them if so, and of rows in whole tiles."""
    rows = np.floor(m * (LOW + (HIGH - LOW) * DRAWS))
    has = rows > 0
    chance = float(has.mean())
    if chance == 0.0:
        return 0.0, 0.0, 0.0
    return chance, float(rows[has].mean()), float((np.ceil(rows[has] / tile) * tile).mean())
