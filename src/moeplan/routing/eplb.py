"""Expert load balance: how many replicas an expert gets and where they lie, so that no rank holds up the rest.

Candidates, the best one kept for every layer: replicas that make the heaviest one lightest, packed heaviest first and
improved by exchanges; other counts of replicas where that misses the bound; one replica taken here and given there.
The published heuristic is among them, so no layer comes out worse than by it.
"""

from __future__ import annotations

import numpy as np

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array
from moeplan.routing.expert_map import ExpertMap, Whole, in_order
from moeplan.routing.packing import Packed, exchanged, packed
from moeplan.routing.published_eplb import on_nodes, packed_groups, published_eplb
from moeplan.routing.replicas import lightest_heaviest, replicas

TOLERANCE = 1e-3  # over the bound: nearer is not worth the time
RETRIED = 6e-3  # over the bound: above this other counts of replicas are tried
LEANS = (0.1, 0.25, 0.5)
ROWS_AT_ONCE = 64  # what fits a processor's cache; also what bounds memory
SHIFT_ROUNDS, SHIFT_UP_TO, SMALL = 3, 3, 64  # rounds; slots per rank, or slots in all
TAKEN, GIVEN = 8, 2  # experts that may lose a replica, over the slots of a rank, and that may gain it
GROUP_PACKINGS = 4


def balanced_map(
    loads: Array,
    *,
    slots: int,
    ranks: int,
    nodes: int = 1,
    groups: int = 1,
    current: ExpertMap | None = None,
    tolerance: float = TOLERANCE,
) -> ExpertMap:
    """Place experts with loads (layers, experts) in `slots` slots of `ranks` ranks, as many on each.

    nodes above 1 keeps each of `groups` groups of experts on one node (hierarchical, for group-limited routing). No
    layer is worse than by the published heuristic, than in order without replicas where that divides, or than
    `current`. A rank takes an expert twice only where nothing else comes as near. Deterministic; the load reached does
    not depend on how experts are numbered.

    Raises InputError for loads that are no (layers, experts) of 0 or more, and naming every size that does not divide.
    """
    if loads.ndim != 2 or not loads.size or not (np.isfinite(loads).all() and (loads >= 0).all()):
        problem = f"of the shape {loads.shape} are not layers × experts of finite numbers from 0 up"
        raise InputError("balance", [Fault("loads", problem, "ExpertLoads says which are wrong")])
    check_sizes(experts=loads.shape[1], slots=slots, ranks=ranks, nodes=nodes, groups=groups)
    expert = in_order(layers=len(loads), experts=loads.shape[1], slots=slots, ranks=ranks).expert
    if current is not None and current.expert.shape == expert.shape:
        expert = current.expert.copy()
    loaded = np.flatnonzero(loads.sum(axis=1) > 0)  # a layer without load stays as it is
    for start in range(0, len(loaded), ROWS_AT_ONCE):
        part = loaded[start : start + ROWS_AT_ONCE]
        found = _balanced(loads[part], slots, ranks, nodes, groups, tolerance)
        now = expert[part] if current is not None else None
        expert[part] = _guarded(loads[part], found, now, slots, ranks, nodes, groups)
    return ExpertMap(expert=expert, experts=loads.shape[1], ranks=ranks)


def lower_bound(loads: Array, *, slots: int, ranks: int) -> Array:
    """No placement has a fullest rank below this over the mean: (layers,); the mean, or the heaviest replica."""
    mean = loads.sum(axis=1) / ranks
    heaviest = lightest_heaviest(loads, slots=slots)
    result: Array = np.maximum(1.0, np.divide(heaviest, mean, out=np.ones_like(mean), where=mean > 0))
    return result


def check_sizes(*, experts: int, slots: int, ranks: int, nodes: int = 1, groups: int = 1) -> None:
    """Raise InputError with every size that does not fit, and what would."""
    faults = [
        Fault(name, f"is {value}", "give at least 1")
        for name, value in (("experts", experts), ("ranks", ranks), ("nodes", nodes), ("groups", groups))
        if value < 1
    ]
    if not faults:
        least = -(-max(experts, ranks) // ranks) * ranks
        if slots < experts:
            fix = f"give {least - experts} redundant slots or more, in steps of {ranks}"
            faults.append(Fault("slots", f"{slots} slots do not hold {experts} experts", fix))
        elif slots % ranks:
            down, up = slots // ranks * ranks - experts, -(-slots // ranks) * ranks - experts
            fix = f"give {down} or {up} redundant slots" if down >= 0 else f"give {up} redundant slots"
            faults.append(Fault("slots", f"{slots} slots do not divide over {ranks} ranks", fix))
        if ranks % nodes:
            faults.append(Fault("nodes", f"{ranks} ranks do not divide over {nodes} nodes", "give a divisor"))
        if nodes > 1 and groups % nodes:
            fix = f"give a divisor of {groups}, or 1 node to balance over all ranks alike"
            fix = "say how many groups of experts there are, or give 1 node" if groups == 1 else fix
            faults.append(Fault("nodes", f"{groups} groups do not divide over {nodes} nodes", fix))
        if experts % groups:
            faults.append(Fault("groups", f"{experts} experts do not divide into {groups} groups", "give a divisor"))
    if faults:
        raise InputError("balance", faults)


def _balanced(loads: Array, slots: int, ranks: int, nodes: int, groups: int, tolerance: float) -> Whole:
    """The best of our own candidates: (layers, slots)."""
    layers = len(loads)
    if nodes == 1:
        order = np.argsort(-loads, axis=1, kind="stable")  # hottest first, so that the numbering does not matter
        ordered = np.take_along_axis(loads, order, axis=1)
        alike, which = np.unique(ordered, axis=0, return_inverse=True)  # layers of one law differ by numbering alone
        pack = _one_node(alike, slots, ranks, tolerance, np.zeros(len(alike)))
        return np.take_along_axis(order, pack.expert.reshape(-1, slots)[which.ravel()], axis=1)
    best, lowest = None, np.full(layers, np.inf)
    for group in _group_packings(loads, nodes, groups):
        held = on_nodes(loads, group, groups=groups).reshape(layers * nodes, -1)
        local = np.take_along_axis(np.repeat(loads, nodes, axis=0), held, axis=1)
        order = np.argsort(-local, axis=1, kind="stable")
        held, local = np.take_along_axis(held, order, axis=1), np.take_along_axis(local, order, axis=1)
        fullest_node = local.sum(axis=1).reshape(layers, nodes).max(axis=1) / (ranks // nodes)
        enough = np.repeat(fullest_node, nodes) * (1.0 + tolerance)
        pack = _one_node(local, slots // nodes, ranks // nodes, tolerance, enough)
        expert = np.take_along_axis(held, pack.expert.reshape(layers * nodes, -1), axis=1).reshape(layers, slots)
        fullest = pack.fullest.reshape(layers, nodes).max(axis=1)
        better = fullest < lowest
        best = expert if best is None else np.where(better[:, None], expert, best)
        lowest = np.minimum(lowest, fullest)
    assert best is not None, "there is always one packing of groups"
    return best


def _group_packings(loads: Array, nodes: int, groups: int) -> list[Whole]:
    """Ways to lay groups on nodes: heaviest first, the same improved, and blends of heat that spread the hottest."""
    layers = len(loads)
    first = packed_groups(loads, nodes=nodes, groups=groups)
    found, ones = [first], np.ones((layers, groups), dtype=np.int64)
    by_group = loads.reshape(layers, groups, -1)
    for power in (1.0, 1.5, 2.0)[: GROUP_PACKINGS - 1]:
        heat = (by_group**power).sum(axis=2)
        pack = packed(heat, ones, ranks=nodes, apart=False)
        exchanged(pack, goal=heat.sum(axis=1) / nodes)
        found.append(pack.expert)
    return found


def _one_node(loads: Array, slots: int, ranks: int, tolerance: float, enough: Array) -> Packed:
    """The best packing of every row, its experts hottest first; a row is done at its bound or at `enough`."""
    bound = np.maximum(loads.sum(axis=1) / ranks, lightest_heaviest(loads, slots=slots))
    goal = np.maximum(bound * (1.0 + tolerance), enough)
    best = _tried(loads, replicas(loads, slots=slots, most=slots), ranks, goal, apart=False)
    if (twice := np.flatnonzero(best.doubled > 0)).size:
        counts = replicas(loads[twice], slots=slots, most=ranks)
        apart = _tried(loads[twice], counts, ranks, goal[twice], apart=True)
        as_near = apart.fullest <= best.fullest[twice] * (1.0 + LEAST)
        _put(best, twice[as_near], apart, np.flatnonzero(as_near))
    if slots == loads.shape[1] or ranks in (1, slots):
        return best
    retried = np.maximum(bound * (1.0 + max(RETRIED, tolerance)), enough)
    rest = np.flatnonzero(best.fullest > retried)
    if rest.size:
        leant = [replicas(loads[rest], slots=slots, most=ranks, lean=lean) for lean in LEANS]
        owner = np.tile(np.arange(len(rest)), len(LEANS))
        _keep_better(best, rest, loads, np.concatenate(leant), owner, ranks, goal)
    if slots // ranks <= SHIFT_UP_TO or slots <= SMALL:
        _shift(loads, best, ranks, retried)
    return best


LEAST = 1e-12


def _tried(loads: Array, counts: Whole, ranks: int, goal: Array, *, apart: bool) -> Packed:
    pack = packed(loads, counts, ranks=ranks, apart=apart)
    exchanged(pack, goal=goal)
    return pack


def _put(best: Packed, rows: Whole, other: Packed, which: Whole) -> None:
    best.expert[rows], best.load[rows], best.filled[rows] = other.expert[which], other.load[which], other.filled[which]


def _keep_better(
    best: Packed, rows: Whole, loads: Array, counts: Whole, owner: Whole, ranks: int, goal: Array
) -> Whole:
    """Pack every trial of counts, keep the best of each row where it is better; returns the rows that it helped.

    owner: which of `rows` a trial is of. All trials at once: they cost little more than one.
    """
    of = rows[owner]
    pack = _tried(loads[of], counts, ranks, goal[of], apart=True)
    order = np.lexsort((pack.fullest, owner))
    who, first = np.unique(owner[order], return_index=True)
    winner = order[first]
    better = pack.fullest[winner] < best.fullest[rows[who]] * (1.0 - LEAST)
    _put(best, rows[who[better]], pack, winner[better])
    return rows[who[better]]


def _shift(loads: Array, best: Packed, ranks: int, goal: Array) -> None:
    """Take a replica where it hurts least, give it to an expert of the fullest rank, pack again; in place."""
    rows = np.flatnonzero(best.fullest > goal)
    for _ in range(SHIFT_ROUNDS):
        if not rows.size:
            return
        counts = _counts(best.expert[rows], loads.shape[1])
        trial, owner = _shifted(loads[rows], counts, best, rows)
        if not owner.size:
            return
        rows = _keep_better(best, rows, loads, trial, owner, ranks, goal)
        rows = rows[best.fullest[rows] > goal[rows]]


def _shifted(loads: Array, counts: Whole, best: Packed, rows: Whole) -> tuple[Whole, Whole]:
    """Counts with one replica moved, and the row that each is of."""
    row = np.arange(len(rows))
    after = np.where(counts > 1, loads / np.maximum(counts - 1, 1), np.inf)
    taken = max(TAKEN // best.expert.shape[2], 2)  # with few slots packing is quick, and the counts matter more
    losers = np.argsort(after, axis=1, kind="stable")[:, :taken]
    rank = best.filled[rows].argmax(axis=1)
    held, load = best.expert[rows, rank], best.load[rows, rank]
    winners = np.take_along_axis(held, np.argsort(-load, axis=1, kind="stable")[:, :GIVEN], axis=1)
    trials, owners = [], []
    for loser in losers.T:
        for winner in winners.T:
            able = np.flatnonzero((counts[row, loser] > 1) & (loser != winner))
            moved = counts[able].copy()
            moved[np.arange(len(able)), loser[able]] -= 1
            moved[np.arange(len(able)), winner[able]] += 1
            trials.append(moved)
            owners.append(able)
    return np.concatenate(trials), np.concatenate(owners)


def _counts(expert: Whole, experts: int) -> Whole:
    rows = len(expert)
    place = expert.reshape(rows, -1) + experts * np.arange(rows)[:, None]
    return np.bincount(place.ravel(), minlength=rows * experts).reshape(rows, experts)


def _guarded(loads: Array, found: Whole, now: Whole | None, slots: int, ranks: int, nodes: int, groups: int) -> Whole:
    """What no layer may be worse than: the published heuristic, no replicas, the placement at hand."""
    layers, experts = loads.shape
    rivals = [published_eplb(loads, slots=slots, ranks=ranks, nodes=nodes, groups=groups).expert]
    if experts % ranks == 0 and nodes == 1:
        plain = np.arange(experts).reshape(ranks, -1)
        extra = plain[
            :, np.arange(slots // ranks - experts // ranks) % plain.shape[1]
        ]  # twice on a rank: no load moves
        rivals.append(np.tile(np.concatenate([plain, extra], axis=1).ravel(), (layers, 1)))
    fullest = _fullest(loads, found, ranks)
    for rival in rivals:
        lower = _fullest(loads, rival, ranks)
        better = lower < fullest * (1.0 - LEAST)
        found = np.where(better[:, None], rival, found)
        fullest = np.minimum(fullest, lower)
    if now is not None:  # no move for nothing
        as_good = _fullest(loads, now, ranks) <= fullest * (1.0 + LEAST)
        found = np.where(as_good[:, None], now, found)
    return found


def _fullest(loads: Array, expert: Whole, ranks: int) -> Array:
    share = np.take_along_axis(loads / _counts(expert, loads.shape[1]), expert, axis=1)
    result: Array = share.reshape(len(loads), ranks, -1).sum(axis=2).max(axis=1)
    return result
