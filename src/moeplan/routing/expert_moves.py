"""From one expert map to another: which experts a rank must load, the fewest that will do, and how long it takes."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array
from moeplan.routing.eplb import TOLERANCE, balanced_map
from moeplan.routing.expert_map import ExpertMap, Whole

Step = tuple[int, ...]  # (rank, slot, expert) written, or (rank, slot, rank, slot) exchanged
LEAST_GAIN = 1e-12
BEAM, BEAM_WORK = 8, 10_000  # states looked on from, as far as slots × ranks of all of them allow
AT_ONCE = 100_000  # ranks after a write that are looked at together


class Rates(Struct, frozen=True, kw_only=True):
    """bytes/s into or out of one GPU: scale_up inside a node of gpus_per_node GPUs, network between nodes."""

    scale_up: float
    network: float
    gpus_per_node: int


class MoveCost(Struct, frozen=True, kw_only=True):
    """moves: experts that ranks load, of them `inside` from a rank of their node; bytes and seconds of all layers.

    seconds: of the busiest link of the busiest GPU, inside and between nodes at once, nothing else on them.
    """

    moves: int
    inside: int
    bytes_: float
    seconds: float


def loaded(old: ExpertMap, new: ExpertMap) -> Whole:
    """Experts that every rank must load, for it does not hold them yet: (layers, ranks)."""
    result: Whole = (_on_ranks(new) & ~_on_ranks(old)).sum(axis=2)
    return result


def aligned(old: ExpertMap, new: ExpertMap, *, ranks_per_node: int | None = None) -> ExpertMap:
    """The same placement with its ranks renamed, and slots in order, so that most experts stay where they are.

    Pairs of ranks with the most experts in common first. ranks_per_node: ranks are renamed inside their node only.
    """
    _check_alike(old, new)
    expert = np.empty_like(new.by_rank)
    held, wanted = _on_ranks(old), _on_ranks(new)
    node = ranks_per_node or new.ranks
    for layer in range(new.layers):
        common = wanted[layer].astype(float) @ held[layer].T.astype(float)
        if node < new.ranks:
            place = np.arange(new.ranks) // node
            common[place[:, None] != place[None]] = -1.0
        for _ in range(new.ranks):
            source, target = np.unravel_index(int(np.argmax(common)), common.shape)
            expert[layer, target] = _in_place(old.by_rank[layer, target], new.by_rank[layer, source])
            common[source], common[:, target] = -2.0, -2.0
    return ExpertMap(expert=expert.reshape(new.expert.shape), experts=new.experts, ranks=new.ranks)


def fewest_moves(
    loads: Array, old: ExpertMap, *, bound: float, nodes: int = 1, groups: int = 1, tolerance: float = TOLERANCE
) -> ExpertMap:
    """The map nearest to `old` whose fullest rank is at most `bound` times the mean, in every layer that can.

    Layer by layer: the move or exchange that takes most off the ranks above the bound per expert loaded, until none is
    above it, then what can be taken back is; in small layers a search for fewer still; or a fresh placement, renamed,
    where that needs fewer. A layer that cannot meet the bound gets the fresh one. In hierarchical mode (nodes above 1)
    only fresh ones keep groups on their nodes.

    Raises InputError for a bound below 1.
    """
    if not bound >= 1.0:
        raise InputError("--bound", [Fault("bound", f"is {bound:g}", "give 1 or more, such as 1.05")])
    before, mean = old.max_over_mean(loads), loads.sum(axis=1) / old.ranks
    needed = np.flatnonzero((before > bound) & (mean > 0))
    if not needed.size:
        return old
    some = ExpertMap(expert=old.expert[needed], experts=old.experts, ranks=old.ranks)
    sizes = {"slots": old.slots, "ranks": old.ranks, "nodes": nodes, "groups": groups}
    fresh = balanced_map(loads[needed], **sizes, current=some, tolerance=tolerance)
    fresh = aligned(some, fresh, ranks_per_node=old.ranks // nodes if nodes > 1 else None)
    expert = old.expert.copy()
    expert[needed] = fresh.expert
    if nodes == 1:
        for layer, most in zip(needed, loaded(some, fresh).sum(axis=1), strict=True):
            limit = bound * float(mean[layer]) * (1 + 1e-9)
            nearer = _nearer(loads[layer], old.by_rank[layer], limit=limit, most=int(most))
            if nearer is not None:
                expert[layer] = nearer.ravel()
    found = ExpertMap(expert=expert, experts=old.experts, ranks=old.ranks)
    return aligned(old, found, ranks_per_node=1)


def _nearer(loads: Array, now: Whole, *, limit: float, most: int) -> Whole | None:
    """One layer within the limit by fewer than `most` moves from `now` (ranks, slots), the fewest found; or None."""
    found = None
    start = _Layer(loads, now.copy(), limit=limit)
    if start.repaired(most=most) and start.moves(now) < most:
        start.taken_back(now)
        found, most = start.expert, start.moves(now)
    fewer = _Layer(loads, now.copy(), limit=limit).searched(most=most - 1)
    return found if fewer is None else fewer.expert


class _Layer:
    """One layer while it is repaired: expert (ranks, slots), counts (experts), filled (ranks)."""

    def __init__(self, loads: Array, expert: Whole, *, limit: float) -> None:
        self.loads, self.expert, self.limit = loads, expert, limit
        self.counts = np.bincount(expert.ravel(), minlength=len(loads))
        self.filled = self._filled()

    def _filled(self) -> Array:
        result: Array = (self.loads / self.counts)[self.expert].sum(axis=1)
        return result

    @property
    def over(self) -> float:
        """What the ranks above the limit have too much, together."""
        return float(np.maximum(self.filled - self.limit, 0.0).sum())

    def moves(self, old: Whole) -> int:
        """Experts that ranks must load, coming from `old`."""
        held, wanted = (np.zeros((len(old), len(self.loads)), dtype=bool) for _ in range(2))
        rank = np.arange(len(old))[:, None]
        held[rank, old], wanted[rank, self.expert] = True, True
        return int((wanted & ~held).sum())

    def repaired(self, *, most: int) -> bool:
        """Bring every rank to the limit with fewer than `most` moves; whether it came there."""
        made = 0
        while self.filled.max() > self.limit:
            if made >= most:
                return False
            steps = self._steps(1)
            gain, step = max(steps, key=lambda one: one[0] / _cost(one[1]), default=(0.0, ()))
            if gain <= LEAST_GAIN * self.limit:
                return False
            self._do(step)
            made += _cost(step)
        return True

    def searched(self, *, most: int) -> _Layer | None:
        """With at most `most` moves within the limit, the best few of every number of moves looked on from; or None."""
        width = min(BEAM, BEAM_WORK // (self.expert.size * len(self.expert)))
        reached: dict[int, list[_Layer]] = {0: [self]}
        for made in range(most if width > 1 else 0):
            for layer in sorted(reached.pop(made, []), key=lambda one: one.over)[:width]:
                for _, step in layer._steps(width):
                    if made + _cost(step) <= most:
                        after = _Layer(self.loads, layer.expert.copy(), limit=self.limit)
                        after._do(step)
                        reached.setdefault(made + _cost(step), []).append(after)
            for layer in reached.get(made + 1, []):
                if layer.filled.max() <= self.limit:
                    return layer
        return None

    def _steps(self, number: int) -> list[tuple[float, Step]]:
        """The best writes and the best exchanges, `number` of each at most, with what they take off; best first."""
        return [*self._writes(number), *self._swaps(number)]

    def _writes(self, number: int) -> list[tuple[float, Step]]:
        """Over a replica that can be spared: an expert of an overfull rank; or on the fullest rank, any expert."""
        rank, slot = np.nonzero(self.counts[self.expert] > 1)
        if not rank.size:
            return []
        above = np.unique(self.expert[self.filled > self.limit])
        found = self._best_of(rank, slot, above, number)
        own = rank == self.filled.argmax()
        if own.any():  # what is lighter relieves it, too
            found += self._best_of(rank[own], slot[own], np.arange(len(self.loads)), number)
        return sorted(set(found), key=lambda one: (-one[0], one[1]))[:number]

    def _best_of(self, rank: Whole, slot: Whole, experts: Whole, number: int) -> list[tuple[float, Step]]:
        """The best of writing each of `experts` over each slot."""
        per_rank = np.zeros((len(self.expert), len(self.loads)))  # replicas of an expert on a rank
        np.add.at(per_rank, (np.arange(len(self.expert))[:, None], self.expert), 1.0)
        gone, place = self.expert[rank, slot], np.arange(len(rank))
        share, less = self.loads / self.counts, self.loads / np.maximum(self.counts - 1, 1)
        more = self.loads / (self.counts + 1)
        left = (per_rank[:, gone] * (less - share)[gone]).T  # (writes, ranks): the others take over
        left[place, rank] -= less[gone]
        left += self.filled - self.limit
        come = (per_rank[:, experts] * (more - share)[experts]).T  # (experts, ranks)
        found: list[tuple[float, Step]] = []
        together = max(1, AT_ONCE // left.size)
        for start in range(0, len(experts), together):
            these = experts[start : start + together]
            after = left + come[start : start + together, None]
            after[:, place, rank] += more[these, None]
            gain = self.over - np.maximum(after, 0.0, out=after).sum(axis=2)
            gain[(gone == these[:, None]) | (per_rank[rank][:, these].T > 0)] = -np.inf
            for top in _largest(gain, number):
                which, at = divmod(top, len(rank))
                found.append((float(gain.flat[top]), (int(rank[at]), int(slot[at]), int(these[which]))))
        return found

    def _swaps(self, number: int) -> list[tuple[float, Step]]:
        """Exchanges of a slot of the fullest rank and another: rank, slot, rank, slot."""
        first = int(self.filled.argmax())
        load = (self.loads / self.counts)[self.expert]
        less = load[first][:, None, None] - load[None]
        over = np.maximum(self.filled - self.limit, 0.0)
        after = np.maximum(self.filled[first] - less - self.limit, 0.0)
        after = after + np.maximum(self.filled[None, :, None] + less - self.limit, 0.0)
        gain = over[first] + over[None, :, None] - after
        gain[:, first] = -np.inf
        found: list[tuple[float, Step]] = []
        for top in _largest(gain, number):
            mine, rank, slot = (int(one) for one in np.unravel_index(top, gain.shape))
            found.append((float(gain.flat[top]), (first, mine, rank, slot)))
        return found

    def _do(self, step: Step) -> None:
        if _cost(step) == 1:
            self._write(*step)
        else:
            self._swap(*step)

    def _write(self, rank: int, slot: int, expert: int) -> None:
        self.counts[self.expert[rank, slot]] -= 1
        self.counts[expert] += 1
        self.expert[rank, slot] = expert
        self.filled = self._filled()

    def _swap(self, rank: int, slot: int, other: int, place: int) -> None:
        kept = self.expert[rank, slot]
        self.expert[rank, slot] = self.expert[other, place]
        self.expert[other, place] = kept
        self.filled = self._filled()

    def taken_back(self, old: Whole) -> None:
        """Undo single moves that the limit does not need."""
        for rank, slot in np.argwhere(self.expert != old):
            now, was = int(self.expert[rank, slot]), int(old[rank, slot])
            if now != was and self.counts[now] > 1:
                self._write(int(rank), int(slot), was)
                if self.filled.max() > self.limit:
                    self._write(int(rank), int(slot), now)


def _cost(step: Step) -> int:
    """Experts that are loaded: one by a write, two by an exchange."""
    return len(step) - 2


def _largest(gain: Array, number: int) -> list[int]:
    """Places of the largest, the first of equals, that are above 0."""
    flat = gain.ravel()
    if number == 1 or flat.size <= number:
        best = [int(flat.argmax())] if number == 1 else np.argsort(-flat, kind="stable").tolist()
    else:
        some = np.sort(np.argpartition(-flat, number - 1)[:number])
        best = some[np.argsort(-flat[some], kind="stable")].tolist()
    return [place for place in best if flat[place] > 0.0]


def move_cost(old: ExpertMap, new: ExpertMap, *, expert_bytes: float, rates: Rates) -> MoveCost:
    """What loading costs: each expert from a rank of the same node where one holds it, else over the network.

    expert_bytes: of one expert of one layer. Sources are taken in turn. Weights move as they are served; what else the
    links carry, and the pause that an engine may make, is left out.
    """
    _check_alike(old, new)
    held, wanted = _on_ranks(old), _on_ranks(new)
    lanes = {name: np.zeros(old.ranks) for name in ("in inside", "in outside", "out inside", "out outside")}
    node = np.arange(old.ranks) // rates.gpus_per_node
    moves = inside = 0
    for layer, rank, expert in np.argwhere(wanted & ~held):
        sources = np.flatnonzero(held[layer, :, expert])
        near = sources[node[sources] == node[rank]]
        lane = "inside" if near.size else "outside"
        pool = near if near.size else sources
        source = pool[lanes[f"out {lane}"][pool].argmin()]
        lanes[f"in {lane}"][rank] += 1
        lanes[f"out {lane}"][source] += 1
        moves += 1
        inside += lane == "inside"
    seconds = expert_bytes * max(
        max(lanes["in inside"].max(), lanes["out inside"].max()) / rates.scale_up,
        max(lanes["in outside"].max(), lanes["out outside"].max()) / rates.network,
    )
    return MoveCost(moves=moves, inside=inside, bytes_=moves * expert_bytes, seconds=float(seconds))


def _on_ranks(placed: ExpertMap) -> NDArray[np.bool_]:
    """Whether a rank holds an expert: (layers, ranks, experts)."""
    holds = np.zeros((placed.layers, placed.ranks, placed.experts), dtype=bool)
    holds[np.arange(placed.layers)[:, None, None], np.arange(placed.ranks)[None, :, None], placed.by_rank] = True
    return holds


def _in_place(old: Whole, new: Whole) -> Whole:
    """`new` reordered so that what is in both lies where it lay."""
    result = np.full_like(new, -1)
    rest = new.tolist()
    for slot, expert in enumerate(old.tolist()):
        if expert in rest:
            result[slot] = expert
            rest.remove(expert)
    result[result < 0] = rest
    return result


def _check_alike(old: ExpertMap, new: ExpertMap) -> None:
    if (old.expert.shape, old.ranks, old.experts) != (new.expert.shape, new.ranks, new.experts):
        problem = f"{old.expert.shape} on {old.ranks} ranks is not {new.expert.shape} on {new.ranks}"
        raise InputError("expert maps", [Fault("layers × slots", problem, "compare maps of the same sizes")])
