"""Where the heat lies: the distinct laws of slots and ranks for one EP size, before any number of tokens is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array
from moeplan.routing.picks import Picks
from moeplan.routing.placement import Placement, PlacementName, balanced, given, in_order
from moeplan.routing.popularity import Popularity

Whole = NDArray[np.int64]


class SlotMix(Struct, frozen=True, kw_only=True, eq=False):
    """Slots of a rank: `times` of each law in `laws`; as many `ranks` hold just the same.

    correlation: mean one between the rows of two slots, below 0 as top_k is shared, above it inside a group of a limit.
    """

    laws: Whole
    times: Array
    ranks: int
    correlation: float


class Layout(Struct, frozen=True, kw_only=True, eq=False):
    """Slots and ranks that are alike are one law.

    slot_chance: (slot laws,) probability that a token adds a row; slot_times: how many slots have it. rank_chance:
    (rank laws, top_k + 1) probability that a token adds i rows; rank_times: how many ranks have it. mixes: the slots of
    ranks. slot_law: the law of every slot.
    """

    token_law: Picks
    placement: Placement
    slot_chance: Array
    slot_times: Array
    rank_chance: Array
    rank_times: Array
    mixes: tuple[SlotMix, ...]

    @property
    def targets(self) -> float:
        """Different ranks that a token goes to."""
        return float(self.rank_times @ (1.0 - self.rank_chance[:, 0]))


def layout(
    heat: Popularity, token_law: Picks, name: PlacementName | Sequence[int], *, ep: int, redundant: int | None
) -> Layout:
    """Place the experts on `ep` ranks and find the laws.

    Raises InputError for an unknown placement, or one that leaves a rank or an expert without a slot.
    """
    placement = _placement(heat, name, ep=ep, redundant=redundant)
    chance, slot_law, slot_times = _alike(placement.of_slots(heat.probability)[:, None])
    ranks, rank_law, rank_times = _alike(token_law.on_ranks(placement.shares))
    held: dict[tuple[int, ...], int] = {}
    for rank in range(ep):
        key = (int(rank_law[rank]), *np.sort(slot_law[placement.rank == rank]).tolist())
        held[key] = held.get(key, 0) + 1
    mixes = []
    for (law, *local), count in held.items():
        laws, times = np.unique(np.array(local, dtype=np.int64), return_counts=True)
        number = times.astype(float)
        correlation = _correlation(chance[laws, 0], number, ranks[law])
        mixes.append(SlotMix(laws=laws, times=number, ranks=count, correlation=correlation))
    return Layout(
        token_law=token_law,
        placement=placement,
        slot_chance=chance[:, 0],
        slot_times=slot_times,
        rank_chance=ranks,
        rank_times=rank_times,
        mixes=tuple(mixes),
    )


def _correlation(slot_chance: Array, times: Array, rank_chance: Array) -> float:
    """(Var of the rank's rows − Σσ²) / ((Σσ)² − Σσ²): the variance of a sum tells how its terms lean on each other."""
    picked = np.arange(len(rank_chance))
    whole = float(rank_chance @ picked**2 - (rank_chance @ picked) ** 2)
    deviation = np.sqrt(slot_chance * (1.0 - slot_chance))
    own = float(times @ deviation**2)
    cross = float(times @ deviation) ** 2 - own
    return min(max((whole - own) / cross, -1.0), 1.0) if cross > 1e-12 else 0.0


def _placement(heat: Popularity, name: PlacementName | Sequence[int], *, ep: int, redundant: int | None) -> Placement:
    if not isinstance(name, str):
        return given(name, experts=heat.experts, ep=ep)
    if name == "balanced":
        return balanced(heat, ep=ep, redundant=redundant)
    if name in ("in order", "shuffled"):
        return in_order(heat.experts, ep=ep, redundant=redundant)
    fix = "in order, shuffled, balanced, or the expert of every slot"
    raise InputError("placement", [Fault("placement", f"unknown {cast(str, name)!r}", fix)])


def _alike(laws: Array) -> tuple[Array, Whole, Array]:
    """Rows that agree to 12 digits as one; which of them each row is; how many rows each stands for."""
    _, first, place, times = np.unique(
        np.round(laws, 12), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    return laws[first], np.ravel(place), times.astype(float)
