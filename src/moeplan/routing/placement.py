"""Which expert lies in which slot of which rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array
from moeplan.routing.popularity import Popularity
from moeplan.routing.slots import deal

PlacementName = Literal["in order", "shuffled", "balanced"]
Whole = NDArray[np.int64]


class Placement(Struct, frozen=True, kw_only=True, eq=False):
    """expert and rank: of every slot, (slots,), rank by rank; a token takes a replica of its expert at random."""

    name: str
    experts: int
    ep: int
    expert: Whole
    rank: Whole

    @property
    def copies(self) -> Whole:
        """Replicas of every expert, at least one: (experts,)."""
        return np.bincount(self.expert, minlength=self.experts)

    @property
    def shares(self) -> Array:
        """Part of an expert's rows that a rank serves: (ranks, experts), Σ over ranks = 1."""
        shares = np.zeros((self.ep, self.experts))
        np.add.at(shares, (self.rank, self.expert), 1.0 / self.copies[self.expert])
        return shares

    def of_slots(self, per_expert: Array) -> Array:
        """What a slot gets of its expert's share: (slots,)."""
        result: Array = per_expert[self.expert] / self.copies[self.expert]
        return result


def in_order(experts: int, *, ep: int, redundant: int | None = 0) -> Placement:
    """Slot i holds expert i mod experts, as engines start; the first ranks are the full ones."""
    rank = _ranks(experts, ep, redundant)
    slot = np.arange(len(rank))
    return Placement(name="in order", experts=experts, ep=ep, expert=slot % experts, rank=rank)


def balanced(popularity: Popularity, *, ep: int, redundant: int | None = 0) -> Placement:
    """Replicas one by one to the hottest slot, then the hottest slots first to the idlest rank with room.

    Greedy replication and LPT packing (batch article, EPLB); a rank takes a second replica of an expert only when no
    other rank has room.
    """
    rank = _ranks(popularity.experts, ep, redundant)
    copies = np.ones(popularity.experts, dtype=np.int64)
    for _ in range(len(rank) - popularity.experts):
        copies[np.argmax(popularity.probability / copies)] += 1
    expert = np.repeat(np.arange(popularity.experts), copies)
    load = popularity.probability[expert] / copies[expert]
    room, filled = np.bincount(rank, minlength=ep), np.zeros(ep)
    holds = np.zeros((ep, popularity.experts), dtype=bool)
    where = np.empty(len(expert), dtype=np.int64)
    for slot in np.argsort(-load, kind="stable"):
        penalty = np.where(room > 0, np.where(holds[:, expert[slot]], 1e6, 0.0), np.inf)
        where[slot] = np.argmin(filled + penalty)
        filled[where[slot]] += load[slot]
        room[where[slot]] -= 1
        holds[where[slot], expert[slot]] = True
    order = np.argsort(where, kind="stable")
    return Placement(name="balanced", experts=popularity.experts, ep=ep, expert=expert[order], rank=where[order])


def given(slot_experts: Sequence[int] | Whole, *, experts: int, ep: int) -> Placement:
    """The expert of every slot, rank by rank, as a load balancer writes it.

    Raises InputError when an expert has no slot, there is no such expert, or the ranks would not hold as many slots.
    """
    expert = np.asarray(slot_experts, dtype=np.int64)
    faults = []
    if len(expert) % ep:
        faults.append(Fault("placement", f"{len(expert)} slots do not divide over {ep} ranks", "give as many to each"))
    outside = [int(one) for one in expert if not 0 <= one < experts]
    if outside:
        faults.append(Fault("placement", f"no expert {outside[0]} among {experts}", f"0 to {experts - 1}"))
    else:
        missing = np.flatnonzero(np.bincount(expert, minlength=experts) == 0)
        if missing.size:
            fix = "give every expert a slot"
            faults.append(Fault("placement", f"{missing.size} experts have no slot, the first is {missing[0]}", fix))
    if faults:
        raise InputError("placement", faults)
    rank = np.repeat(np.arange(ep), len(expert) // ep)
    return Placement(name="given", experts=experts, ep=ep, expert=expert, rank=rank)


def _ranks(experts: int, ep: int, redundant: int | None) -> Whole:
    """The rank of every slot, dealt as `deal` counts them."""
    if redundant is not None and ep > experts + redundant:
        deal(experts, ep, redundant)  # raises, with the replicas that it would take
    slots = deal(experts, ep, redundant)
    full, most = int(slots.full_ranks), int(slots.per_full_rank)
    return np.repeat(np.arange(ep), np.where(np.arange(ep) < full, most, most - 1))
