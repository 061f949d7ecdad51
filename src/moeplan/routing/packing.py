"""Replicas into ranks with equal slots: the heaviest first, then exchanges that lower the fullest rank.

Rows are independent problems (a layer, or a layer on a node); every step treats all rows at once.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.kinds import Array

Whole = NDArray[np.int64]
MOST_EXCHANGES = 1000  # per row; most end after a few dozen
LEAST_GAIN = 1e-9
SWEEPS, LEAST_SHARE = 4, 0.02  # rounds of exchanges in pairs of ranks; what one must take off their difference
SWEPT_UP_TO = 48  # slots per rank: their square bounds the memory of a round
PAIRS_UP_TO = 5  # slots per rank: with more, single exchanges already come within a fraction of a percent


class Packed(Struct, kw_only=True, eq=False):
    """expert: (rows, ranks, slots of a rank); load: the same, of each replica; filled: (rows, ranks), their sum."""

    expert: Whole
    load: Array
    filled: Array

    @classmethod
    def of(cls, loads: Array, counts: Whole, expert: Whole) -> Packed:
        """From where the replicas lie; a replica's load is its expert's over its replicas."""
        rows = expert.shape[0]
        share = np.take_along_axis(loads / counts, expert.reshape(rows, -1), axis=1).reshape(expert.shape)
        return cls(expert=expert, load=share, filled=share.sum(axis=2))

    @property
    def fullest(self) -> Array:
        """Load of the fullest rank: (rows,)."""
        result: Array = self.filled.max(axis=1)
        return result

    @property
    def doubled(self) -> Whole:
        """Slots that hold an expert which the rank holds already: (rows,)."""
        ordered = np.sort(self.expert, axis=2)
        result: Whole = np.count_nonzero(np.diff(ordered, axis=2) == 0, axis=(1, 2))
        return result


def packed(loads: Array, counts: Whole, *, ranks: int, apart: bool) -> Packed:
    """The heaviest replicas first, each to the emptiest rank that has room (LPT with equal slots).

    loads, counts: (rows, experts). apart: a rank that holds the expert already comes last.
    """
    rows = len(loads)
    slots = int(counts[0].sum())
    per_rank = slots // ranks
    share = loads / counts
    order = np.argsort(-share, axis=1, kind="stable")
    item = np.repeat(order.ravel(), np.take_along_axis(counts, order, axis=1).ravel()).reshape(rows, slots)
    load = np.take_along_axis(share, item, axis=1)
    expert = np.empty((rows, ranks, per_rank), dtype=np.int64)
    expert[:, :, 0] = item[:, :ranks]
    row, used = np.arange(rows), np.ones((rows, ranks), dtype=np.int64)
    height, latest = load[:, :ranks].copy(), item[:, :ranks].copy()  # replicas of one expert come one after another
    far = 4.0 * load.sum(axis=1, keepdims=True) + 1.0
    for place in range(ranks, slots):
        here = item[:, place]
        cost = height + far * (latest == here[:, None]) if apart else height
        rank = cost.argmin(axis=1)
        count = used[row, rank]
        expert[row, rank, count] = here
        latest[row, rank] = here
        used[row, rank] = count + 1
        height[row, rank] = np.where(count + 1 == per_rank, np.inf, height[row, rank] + load[:, place])
    return Packed.of(loads, counts, expert)


def exchanged(pack: Packed, *, goal: Array) -> None:
    """Exchange replicas between the fullest rank and another, in place, until it is at `goal` or nothing helps.

    One for one; where that is stuck and a rank has few slots, two for two. No exchange gives a rank an expert twice.
    goal: (rows,).
    """
    ranks, per_rank = pack.expert.shape[1:]
    if per_rank == 1 or ranks == 1:
        return
    singles = np.arange(per_rank)[:, None]
    pairs = np.array(list(combinations(range(per_rank), 2))) if 2 < per_rank <= PAIRS_UP_TO else None
    active = np.flatnonzero(pack.fullest > goal)
    for turn in range(SWEEPS if 2 < per_rank <= SWEPT_UP_TO else 0):
        if not active.size:
            return
        _paired(pack, active, goal=goal, turn=turn)
        active = active[pack.filled[active].max(axis=1) > goal[active]]
    for _ in range(MOST_EXCHANGES):
        if not active.size:
            return
        helped = _exchange(pack, active, singles)
        if pairs is not None and not helped.all():
            stuck = np.flatnonzero(~helped)
            helped[stuck] = _exchange(pack, active[stuck], pairs)
        active = active[helped]
        active = active[pack.filled[active].max(axis=1) > goal[active]]


def _paired(pack: Packed, rows: Whole, *, goal: Array, turn: int) -> None:
    """Between every rank above the goal and an emptier one, by turns another: the exchange that brings both nearest.

    All pairs at once, which does most of the work in a few rounds.
    """
    ranks, per_rank = pack.expert.shape[1:]
    filled = pack.filled[rows]
    order = np.argsort(-filled, axis=1, kind="stable")
    above = min(int((filled > goal[rows, None]).sum(axis=1).max()), ranks // 2)
    full, empty = order[:, :above], order[:, ranks - 1 - (np.arange(above) + turn) % (ranks - above)]
    row = rows[:, None]
    gap = pack.filled[row, full] - pack.filled[row, empty]
    ours, theirs = (np.moveaxis(pack.expert[row, one], 2, 0) for one in (full, empty))  # slots first: long inner axes
    own, other_load = (np.moveaxis(pack.load[row, one], 2, 0) for one in (full, empty))
    off = own[:, None] - (other_load[None] + 0.5 * gap)
    np.abs(off, out=off)
    same = ours[:, None] == theirs[None]
    off[same.any(axis=1)[:, None] | same.any(axis=0)[None]] = np.inf  # the other rank holds it already
    off = off.reshape(per_rank * per_rank, *gap.shape)
    best = off.argmin(axis=0)
    gains = off.min(axis=0) < 0.5 * gap * (1.0 - LEAST_SHARE)
    which, pair = np.nonzero(gains)
    mine, other = np.divmod(best[which, pair], per_rank)
    first, second = full[which, pair], empty[which, pair]
    _swap(pack, rows[which], first, second, mine[:, None], other[:, None])


def _exchange(pack: Packed, rows: Whole, places: Whole) -> NDArray[np.bool_]:
    """The best exchange of as many replicas as `places` has columns; which rows it helped."""
    filled, load = pack.filled[rows], pack.load[rows]
    row, sets, ranks = np.arange(len(rows)), len(places), filled.shape[1]
    fullest = filled.argmax(axis=1)
    top = filled[row, fullest]
    heavy = load if places.shape[1] == 1 else load[:, :, places].sum(axis=3)  # (rows, ranks, sets)
    theirs = heavy.reshape(len(rows), -1)
    without = (filled[:, :, None] - heavy).reshape(len(rows), -1)  # the other rank once it has given
    own = heavy[row, fullest]
    best, lowest = np.empty((len(rows), sets), dtype=np.int64), np.empty((len(rows), sets))
    after, other = np.empty_like(theirs), np.empty_like(theirs)
    for mine in range(sets):  # one set at a time: what it takes stays in the cache
        np.add(theirs, (top - own[:, mine])[:, None], out=after)
        np.add(without, own[:, mine, None], out=other)
        np.maximum(after, other, out=after)
        best[:, mine] = after.argmin(axis=1)
        lowest[:, mine] = after[row, best[:, mine]]
    return _exchange_best(pack, rows, places, fullest=fullest, best=best, lowest=lowest, top=top, ranks=ranks)


def _exchange_best(
    pack: Packed, rows: Whole, places: Whole, *, fullest: Whole, best: Whole, lowest: Array, top: Array, ranks: int
) -> NDArray[np.bool_]:
    """Do the exchange that lowers most and gives no rank an expert twice; best, lowest: of every set of the fullest."""
    helped, todo = np.zeros(len(rows), dtype=bool), np.arange(len(rows))
    for _ in range(len(places)):
        mine = lowest[todo].argmin(axis=1)
        gains = lowest[todo, mine] < top[todo] * (1.0 - LEAST_GAIN)
        todo, mine = todo[gains], mine[gains]
        if not todo.size:
            break
        rank, theirs = np.unravel_index(best[todo, mine], (ranks, len(places)))
        row, first = rows[todo], fullest[todo]
        out = pack.expert[row[:, None], first[:, None], places[mine]]
        into = pack.expert[row[:, None], rank[:, None], places[theirs]]
        clash = _holds(pack.expert[row, first], into) | _holds(pack.expert[row, rank], out)
        lowest[todo[clash], mine[clash]] = np.inf
        fine = ~clash
        _swap(pack, row[fine], first[fine], rank[fine], places[mine[fine]], places[theirs[fine]])
        helped[todo[fine]] = True
        todo = todo[clash]
    return helped


def _holds(held: Whole, wanted: Whole) -> NDArray[np.bool_]:
    """Whether any of `wanted` (rows, m) is among `held` (rows, slots)."""
    result: NDArray[np.bool_] = (held[:, :, None] == wanted[:, None, :]).any(axis=(1, 2))
    return result


def _swap(pack: Packed, rows: Whole, first: Whole, second: Whole, mine: Whole, theirs: Whole) -> None:
    row, a, b = rows[:, None], first[:, None], second[:, None]
    for values in (pack.expert, pack.load):
        kept = values[row, a, mine]
        values[row, a, mine] = values[row, b, theirs]
        values[row, b, theirs] = kept
    pack.filled[rows, first] = pack.load[rows, first].sum(axis=1)
    pack.filled[rows, second] = pack.load[rows, second].sum(axis=1)
