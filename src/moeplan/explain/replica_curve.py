"""How much each redundant expert slot evens out, what it costs in memory, and how many are worth having."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from moeplan.explain.batch_article import gain_of_balancing
from moeplan.kinds import Array
from moeplan.routing.eplb import balanced_map

WORTH = 0.01  # of the fullest rank's load, per slot that every rank adds
STEPS = 8


class ReplicaPoint(Struct, frozen=True, kw_only=True):
    """redundant slots, slots of a rank; max over mean: mean and worst of the layers; bytes: what a GPU holds for them.

    `bytes_` is None without a model. possible: False where the slots do not divide, then there is nothing more.
    """

    redundant: int
    per_rank: float
    possible: bool
    mean: float
    worst: float
    gain: float
    bytes_: float | None


def replica_curve(
    loads: Array,
    *,
    ranks: int,
    before: float,
    share: float,
    expert_bytes: float | None,
    upto: int | None = None,
    nodes: int = 1,
    groups: int = 1,
) -> list[ReplicaPoint]:
    """Rearranging alone (0 redundant) first, then every number that gives the ranks equal slots.

    before: S0 that gains are measured from. expert_bytes: of one expert in all layers. upto: most redundant slots;
    otherwise eight more per rank.
    """
    rows = np.flatnonzero(loads.sum(axis=1) > 0)
    experts = loads.shape[1]
    first = -experts % ranks
    last = first + STEPS * ranks if upto is None else upto
    sizes = sorted({0, *range(first, last + 1, ranks)})
    found = []
    for redundant in sizes:
        per_rank = (experts + redundant) / ranks
        memory = None if expert_bytes is None else redundant / ranks * expert_bytes
        if redundant % ranks != first:
            reached = np.full(1, np.nan)
        else:
            placed = balanced_map(loads[rows], slots=experts + redundant, ranks=ranks, nodes=nodes, groups=groups)
            reached = placed.max_over_mean(loads[rows])
        found.append(
            ReplicaPoint(
                redundant=redundant,
                per_rank=per_rank,
                possible=bool(np.isfinite(reached).all()),
                mean=float(reached.mean()),
                worst=float(reached.max()),
                gain=float(gain_of_balancing(share, before / float(reached.mean()))),
                bytes_=memory,
            )
        )
    return found


def worth_having(points: Sequence[ReplicaPoint], *, least: float = WORTH) -> ReplicaPoint:
    """The last point that a further slot per rank still improves on by less than `least`: more memory buys little.

    Goes up the curve while one of the next points takes off at least `least` per slot and rank.
    """
    possible = [point for point in points if point.possible]
    best = possible[0]
    for place, point in enumerate(possible[1:], start=1):
        slots = place - possible.index(best)
        if best.mean - point.mean >= least * best.mean * slots:
            best = point
    return best
