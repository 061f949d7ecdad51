"""What loads of experts, and where the experts lie, make of a step: rows and active slots of the busiest rank."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array, Real
from moeplan.routing.eplb import balanced_map
from moeplan.routing.expert_loads import ExpertLoads
from moeplan.routing.expert_map import ExpertMap, in_order
from moeplan.routing.popularity import recorded
from moeplan.routing.rank_rows import largest_rows

TOKENS = 2.0 ** np.arange(0, 23, 2)  # of the EP group, that rows are worked out for; between them is interpolated
AS_BUSY = 0.95  # of the most rows that a rank expects: of such ranks the one that reads most experts is waited for
PLACES = 4  # points between two of those for what is cheap: how many slots are active


class BusiestRank(Struct, frozen=True, kw_only=True, eq=False):
    """Means over the layers, by tokens of the EP group.

    imbalance: rows over the mean rank's, sampling included; active: slots with a row; placed: rows over the mean for
    many tokens, (layers,): S of the batch article.
    """

    imbalance: Array
    tokens: Array
    active: Array
    placed: Array

    def at(self, tokens: Real) -> tuple[Real, Real]:
        """Imbalance and active slots for a number of tokens of any shape.

        What sampling adds goes with 1/√tokens, in which the imbalance is therefore interpolated.
        """
        count = np.clip(np.asarray(tokens, dtype=float), TOKENS[0], TOKENS[-1])
        imbalance = np.interp(1.0 / np.sqrt(count), 1.0 / np.sqrt(TOKENS[::-1]), self.imbalance[::-1])
        active = np.interp(np.log(count), np.log(self.tokens), self.active)
        return (imbalance, active) if np.ndim(tokens) else (float(imbalance), float(active))


class LoadedRanks(Struct, frozen=True, kw_only=True, eq=False):
    """Loads over the experts of a model, for any number of ranks and slots; what is worked out is kept.

    chance: (layers, experts), the probability that a token goes to an expert, Σ = top_k in every layer with load.
    balanced: experts are placed by our balancer, with as many replicas as there are slots for; else they lie in order,
    as engines start, extra slots filled from the first expert on. given: one placement of these layers, instead.
    nodes, groups: each group of experts is kept on one node (`balanced_map`).
    """

    chance: Array
    top_k: int
    source: str
    balanced: bool = False
    given: ExpertMap | None = None
    nodes: int = 1
    groups: int = 1
    _kept: dict[tuple[int, int], BusiestRank] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        loads: ExpertLoads,
        *,
        top_k: int,
        balanced: bool = False,
        given: ExpertMap | None = None,
        nodes: int = 1,
        groups: int = 1,
    ) -> LoadedRanks:
        """Of loads in any unit and, if given, a placement of the same layers; layers without load are left out.

        Raises InputError naming the layer where fewer than top_k experts have a load: a token needs so many.
        """
        total = loads.total
        faults, rows = [], []
        for place in loads.loaded:
            try:
                rows.append(recorded(total[place], experts=loads.experts, top_k=top_k).probability)
            except InputError as error:
                faults += [Fault(f"layer {loads.layers[place]}", fault.problem, fault.fix) for fault in error.faults]
        if faults:
            more = f"; {len(faults) - 1} layers more such" if faults[1:] else ""
            fix = f"{faults[0].fix}: record for longer, or take a law with less skew"
            raise InputError(loads.source, [Fault(faults[0].path, faults[0].problem + more, fix)])
        if given is not None:
            given = ExpertMap(expert=given.expert[loads.loaded], experts=given.experts, ranks=given.ranks)
        return cls(
            chance=np.stack(rows),
            top_k=top_k,
            source=loads.source,
            balanced=balanced,
            given=given,
            nodes=nodes,
            groups=groups,
        )

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return int(self.chance.shape[1])

    @property
    def title(self) -> str:
        """The loads and how experts are placed."""
        placed = "as given" if self.given is not None else "balanced" if self.balanced else "in order"
        return f"{self.source}; experts {placed}"

    def placed(self, *, balanced: bool) -> LoadedRanks:
        """The same loads with experts balanced, or in order."""
        same = balanced == self.balanced and self.given is None
        return self if same else replace(self, balanced=balanced, given=None, _kept={})

    def at(self, *, ep: Real, slots: Real, tokens: Real) -> tuple[Real, Real]:
        """Imbalance and active slots of the busiest of ep ranks; slots: of all ranks. Scalars or arrays that broadcast.

        Raises InputError when slots do not divide over the ranks.
        """
        if not (np.ndim(ep) or np.ndim(slots)):
            return self.busiest(ep=int(ep), slots=int(slots)).at(tokens)
        ranks, total = np.broadcast_arrays(ep, slots)
        shape = np.broadcast_shapes(ranks.shape, np.shape(tokens))
        count = np.broadcast_to(tokens, shape)
        imbalance, active = np.empty(shape), np.empty(shape)
        for one, other in {(int(one), int(other)) for one, other in zip(ranks.ravel(), total.ravel(), strict=True)}:
            where = np.broadcast_to((ranks == one) & (total == other), shape)
            imbalance[where], active[where] = self.busiest(ep=one, slots=other).at(count[where])
        return imbalance, active

    def busiest(self, *, ep: int, slots: int) -> BusiestRank:
        """Of one number of ranks and slots."""
        if (ep, slots) not in self._kept:
            self._kept[ep, slots] = self._busiest(self.placement(ep=ep, slots=slots))
        return self._kept[ep, slots]

    def placement(self, *, ep: int, slots: int) -> ExpertMap:
        """Where the experts lie."""
        if slots % ep:
            fix = f"give {-(-slots // ep) * ep - self.experts} redundant experts"
            raise InputError("experts", [Fault("redundant", f"{slots} slots do not divide over {ep} ranks", fix)])
        if self.given is not None:
            if (self.given.ranks, self.given.slots) != (ep, slots):
                problem = f"is of {self.given.slots} slots on {self.given.ranks} ranks, not {slots} on {ep}"
                raise InputError("experts", [Fault("placement", problem, "give one of this size")])
            return self.given
        if self.balanced:
            return balanced_map(self.chance, slots=slots, ranks=ep, nodes=self.nodes, groups=self.groups)
        return in_order(layers=len(self.chance), experts=self.experts, slots=slots, ranks=ep)

    def _busiest(self, placed: ExpertMap) -> BusiestRank:
        by_slot = np.minimum(placed.slot_loads(self.chance), 1.0)
        by_slot, times = np.unique(by_slot, axis=0, return_counts=True)  # balanced layers of a law are the same
        weight = times / times.sum()
        slots = by_slot.reshape(len(by_slot), placed.ranks, -1)
        carried = slots.sum(axis=-1)
        rows = largest_rows(carried * TOKENS[:, None, None]) / (carried.mean(axis=-1) * TOKENS[:, None])
        full = carried >= AS_BUSY * carried.max(axis=-1, keepdims=True)
        tokens = 2.0 ** np.linspace(0, np.log2(TOKENS[-1]), PLACES * (len(TOKENS) - 1) + 1)
        with np.errstate(divide="ignore"):
            missed = np.log1p(-slots[full])  # of full ranks alone: (full ranks, slots of a rank)
        layer = np.flatnonzero(full.any(axis=1))
        first = np.searchsorted(np.nonzero(full)[0], layer)
        active = np.empty(tokens.shape)
        for place, count in enumerate(tokens):
            hit = -np.expm1(count * missed).sum(axis=-1)
            active[place] = weight @ np.maximum.reduceat(hit, first)
        return BusiestRank(
            imbalance=rows @ weight,
            tokens=tokens,
            active=active,
            placed=placed.max_over_mean(self.chance),
        )
