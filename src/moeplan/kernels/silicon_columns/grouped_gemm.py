"""Tables of SGLang's DeepEPMoE: the experts of one rank of a wide expert-parallel group.

A row says how many tokens enter the group and how experts share them, not which rows the timed rank got. So rows are
dealt out as aiconfigurator's collector does and the busiest rank's are counted; the mean of many such deals stands for
the five that were timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kernels.forms.grouped_gemm import tile_rows
from moeplan.kernels.silicon import SiliconTable
from moeplan.kinds import Array

Columns = dict[str, Array]
Counts = NDArray[np.int64]

DEALS: Final = 48
SEED: Final = 1
MASKED: Final = (64, 128)  # rows of DeepGEMM's tiles
CONTIGUOUS: Final = (128,)
POWER: Final = "power_law_"
NAMES: Final = ("groups", "idle", "m", "blocks", "tokens")


def _generation(table: SiliconTable) -> Columns:
    """Masked layout: every expert has its own rows; nothing is copied."""
    return _columns(table, _masked)


def _context(table: SiliconTable) -> Columns:
    """Contiguous layout: experts' rows one behind the other in whole tiles, copied there out of all entering tokens."""
    return _columns(table, _contiguous)


def _columns(table: SiliconTable, count: Callable[[str, int, int, int, int], tuple[float, ...]]) -> Columns:
    keys = ("distribution", "num_tokens", "topk", "num_experts", "moe_ep_size")
    counted = np.array([count(*row) for row in zip(*(table[key].tolist() for key in keys), strict=True)])
    return {
        **dict(zip(NAMES, counted.T, strict=True)),
        "n": 2.0 * table["inter_size"] / table["moe_tp_size"],
        "k": np.asarray(table["hidden_size"], dtype=float),
        "both": np.ones(len(table)),
    }


@lru_cache(maxsize=2048)
def _masked(distribution: str, tokens: int, top_k: int, experts: int, ranks: int) -> tuple[float, ...]:
    """Balanced: as many rows on every expert of the rank, or single rows on some."""
    slots, each = experts // ranks, tokens * top_k // experts
    if distribution == "uniform":
        load = np.full((1, slots), each) if each else (np.arange(slots) < tokens * top_k // ranks)[None].astype(int)
    else:
        load = _busiest(distribution, tokens, top_k, experts, ranks)
    groups = np.count_nonzero(load, axis=1).mean()
    rows = load.sum(axis=1).mean()
    tile = float(tile_rows(MASKED, rows / slots))
    blocks = np.ceil(load / tile).sum(axis=1).mean() * tile / min(MASKED)
    return groups, slots - groups, rows / groups, blocks, 0.0


@lru_cache(maxsize=2048)
def _contiguous(distribution: str, tokens: int, top_k: int, experts: int, ranks: int) -> tuple[float, ...]:
    """Balanced rows fill tiles without a gap, each tile one expert's; unbalanced ones are padded per expert."""
    slots, tile = experts // ranks, CONTIGUOUS[0]
    if distribution == "uniform":
        blocks = np.array([-(-(tokens * top_k // experts * slots) // tile)])
        groups = np.minimum(slots, blocks)
    else:
        load = _busiest(distribution, tokens, top_k, experts, ranks)
        blocks, groups = np.ceil(load / tile).sum(axis=1), np.count_nonzero(load, axis=1)
    active = groups.mean()
    return active, slots - active, blocks.mean() * tile / active, blocks.mean(), float(tokens)


def _busiest(distribution: str, tokens: int, top_k: int, experts: int, ranks: int) -> Counts:
    """Rows of every expert of the rank with the most, (deals, experts / ranks)."""
    load = _dealt(distribution, tokens, top_k, experts).reshape(DEALS, ranks, -1)
    found: Counts = np.take_along_axis(load, load.sum(axis=2).argmax(axis=1)[:, None, None], axis=1)[:, 0]
    return found


@lru_cache(maxsize=256)
def _dealt(distribution: str, tokens: int, top_k: int, experts: int) -> Counts:
    """Rows of every expert, (deals, experts), which sum to tokens · top_k and nowhere exceed `tokens`.

    Weights follow x^-α between 1 and 0.8 tokens, or 0.01 and 2 where there are fewer rows than experts; what rounding
    and the limit leave over goes to the smallest.
    """
    if not distribution.startswith(POWER):
        fix = f"uniform or {POWER}<exponent>"
        raise InputError("silicon", [Fault("distribution", f"{distribution!r} is not known", fix)])
    power = 1.0 - float(distribution.removeprefix(POWER))
    total = tokens * top_k
    low, high = (1.0, 0.8 * tokens) if total > experts else (0.01, 2.0)
    drawn = np.random.default_rng(SEED).random((DEALS, experts))
    weight = ((high**power - low**power) * drawn + low**power) ** (1.0 / power)
    load: Counts = np.round(weight / weight.sum(axis=1, keepdims=True) * total).astype(np.int64)
    load = np.minimum(load, tokens)
    for deal, order in zip(load, np.argsort(weight, axis=1), strict=True):
        _settle(deal, order, total, tokens)
    return load


def _settle(deal: Counts, order: NDArray[np.intp], total: int, most: int) -> None:
    """Add or take single rows, smallest expert first, until they sum to `total`."""
    missing, place = total - int(deal.sum()), 0
    while missing:
        expert = order[place % order.size]
        if missing > 0:
            step = min(missing, most - int(deal[expert])) if missing > order.size else int(deal[expert] < most)
        elif deal[expert] > 0:
            step = -1
        else:
            expert, step = deal.argmax(), -1
        deal[expert] += step
        missing -= step
        place += 1


READERS: Final[dict[str, Callable[[SiliconTable], Columns]]] = {
    "wideep_generation_moe": _generation,
    "wideep_context_moe": _context,
}
