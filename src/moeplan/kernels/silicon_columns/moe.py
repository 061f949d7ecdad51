"""Tables of fused MoE kernels: what the busiest rank gets, by the distribution that was timed.

The measured times average over a few draws of expert loads, which the tables do not hold; the same law is drawn anew
here (aiconfigurator's collector, helper.py): loads with a power law's density, whole numbers, no more than a token
each, the busiest rank timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moeplan.kernels.silicon import SiliconTable
from moeplan.kernels.silicon_flags import Flag
from moeplan.kinds import Array

Columns = dict[str, Array]
Counts = NDArray[np.int64]

BALANCED: Final = "balanced"
POWER_LAW: Final = "power_law_"
DRAWS: Final = 5
SEED: Final = 7


def _moe(table: SiliconTable) -> Columns:
    """A row of `num_tokens` entering the ranks together; inter is one expert's, before it is split over tp."""
    tokens, top_k, experts = _real(table, "num_tokens"), _real(table, "topk"), _real(table, "num_experts")
    ep = _real(table, "moe_ep_size")
    active, rows = balanced(tokens, top_k, experts, ep)
    laws = table["distribution"].astype(str)
    for law in np.unique(laws[laws != BALANCED]):
        found = laws == law
        key = np.stack([experts[found], top_k[found], ep[found], tokens[found]], axis=-1).astype(np.int64)
        keys, place = np.unique(key, axis=0, return_inverse=True)
        exponent = float(law.removeprefix(POWER_LAW))
        busiest = np.array([busiest_rank(*map(int, one), exponent) for one in keys])
        active[found], rows[found] = busiest[np.ravel(place)].T
    return {
        "tokens": tokens,
        "hidden": _real(table, "hidden_size"),
        "inter": _real(table, "inter_size"),
        "top_k": top_k,
        "experts": experts,
        "tp": _real(table, "moe_tp_size"),
        "ep": ep,
        "gated": np.where(table.having(Flag.UNGATED), 1.0, 2.0),
        "active": active,
        "rows": rows,
    }


def balanced(tokens: Array, top_k: Array, experts: Array, ep: Array) -> tuple[Array, Array]:
    """Active experts and rows of every rank where all experts get as much: min(experts/ep, ⌈rows⌉), tokens·top_k/ep."""
    rows = tokens * top_k / ep
    return np.minimum(experts / ep, np.ceil(rows)), rows


@lru_cache(maxsize=65536)
def busiest_rank(experts: int, top_k: int, ep: int, tokens: int, exponent: float) -> tuple[float, float]:
    """Mean active experts and rows of the busiest rank over DRAWS draws."""
    draw = np.random.default_rng((SEED, experts, top_k, ep, tokens, round(exponent * 1000))).random((DRAWS, experts))
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    power = 1.0 - exponent
    loads = ((high**power - low**power) * draw + low**power) ** (1.0 / power)
    loads *= tokens * top_k / loads.sum(axis=1, keepdims=True)
    counts = np.minimum(np.rint(loads).astype(np.int64), tokens)
    by_rank = _completed(counts.reshape(DRAWS, ep, experts // ep), tokens * top_k, tokens)
    rows = by_rank.sum(axis=2)
    rank = rows.argmax(axis=1)
    each = np.arange(DRAWS)
    return float(np.count_nonzero(by_rank[each, rank], axis=1).mean()), float(rows[each, rank].mean())


def _completed(counts: Counts, total: int, most: int) -> Counts:
    """Share what rounding and the limit left over among all experts, the last few rows to the idlest, rank by rank.

    Rows too many are taken from the busiest. counts: of draws, ranks, experts of a rank.
    """
    draws, ranks, local = counts.shape
    flat = counts.transpose(0, 2, 1).reshape(draws, -1)
    while np.any(left := total - flat.sum(axis=1)):
        size, sign = np.abs(left)[:, None], np.sign(left)[:, None]
        order = np.argsort(sign * flat, axis=1, kind="stable").argsort(axis=1)
        step = np.where(order < size, np.maximum(size // flat.shape[1], 1), 0)
        flat = flat + sign * np.minimum(step, np.where(sign > 0, most - flat, flat))
    return flat.reshape(draws, local, ranks).transpose(0, 2, 1)


def _real(table: SiliconTable, name: str) -> Array:
    return np.asarray(table[name], dtype=float)


READERS: Final[dict[str, Callable[[SiliconTable], Columns]]] = {"moe": _moe}
