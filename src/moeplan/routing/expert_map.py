"""Which expert lies in every slot of every layer, and what that makes the ranks carry."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array

Whole = NDArray[np.int64]


class ExpertMap(Struct, frozen=True, kw_only=True, eq=False):
    """expert: (layers, slots), rank by rank, as many slots on each; a token takes a replica of its expert at random.

    Raises InputError when the slots do not divide over the ranks, there is no such expert, or one has no slot.
    """

    expert: Whole
    experts: int
    ranks: int

    def __post_init__(self) -> None:
        faults = []
        if self.expert.ndim != 2 or not self.expert.size:
            faults.append(Fault("expert map", f"has the shape {self.expert.shape}", "give layers × slots"))
        elif self.slots % self.ranks:
            fix = f"give a multiple of {self.ranks}"
            faults.append(Fault("expert map", f"{self.slots} slots do not divide over {self.ranks} ranks", fix))
        elif self.expert.min() < 0 or self.expert.max() >= self.experts:
            wrong = int(self.expert[(self.expert < 0) | (self.expert >= self.experts)][0])
            faults.append(Fault("expert map", f"no expert {wrong} among {self.experts}", f"0 to {self.experts - 1}"))
        elif (self.copies == 0).any():
            layer, expert = (int(one[0]) for one in np.nonzero(self.copies == 0))
            faults.append(Fault(f"layer {layer}", f"expert {expert} has no slot", "give every expert one"))
        if faults:
            raise InputError("expert map", faults)

    @property
    def layers(self) -> int:
        """Layers with experts."""
        return len(self.expert)

    @property
    def slots(self) -> int:
        """Slots of a layer over all ranks."""
        return int(self.expert.shape[1])

    @property
    def by_rank(self) -> Whole:
        """The same as (layers, ranks, slots of a rank)."""
        return self.expert.reshape(self.layers, self.ranks, -1)

    @property
    def copies(self) -> Whole:
        """Replicas of every expert: (layers, experts)."""
        place = self.expert + self.experts * np.arange(self.layers)[:, None]
        return np.bincount(place.ravel(), minlength=self.layers * self.experts).reshape(self.layers, self.experts)

    @property
    def doubled(self) -> Whole:
        """Slots that hold an expert which their rank holds already: (layers,)."""
        ordered = np.sort(self.by_rank, axis=2)
        result: Whole = np.count_nonzero(np.diff(ordered, axis=2) == 0, axis=(1, 2))
        return result

    def slot_loads(self, loads: Array) -> Array:
        """An expert's load over its replicas, for every slot: (…, layers, slots) from (…, layers, experts)."""
        share = loads / self.copies
        place = np.broadcast_to(self.expert, (*share.shape[:-1], self.slots))
        result: Array = np.take_along_axis(share, place, axis=-1)
        return result

    def rank_loads(self, loads: Array) -> Array:
        """What the ranks carry: (…, layers, ranks)."""
        found = self.slot_loads(loads)
        result: Array = found.reshape(*found.shape[:-1], self.ranks, -1).sum(axis=-1)
        return result

    def max_over_mean(self, loads: Array) -> Array:
        """Load of the fullest rank over the mean, (…, layers); 1 for a layer without load."""
        carried = self.rank_loads(loads)
        mean = carried.mean(axis=-1)
        result: Array = np.divide(carried.max(axis=-1), mean, out=np.ones_like(mean), where=mean > 0)
        return result

    def logical_to_physical(self) -> list[list[list[int]]]:
        """The slots of every expert, per layer."""
        found = []
        for row in self.expert:
            order = np.argsort(row, kind="stable")
            ends = np.cumsum(np.bincount(row, minlength=self.experts))[:-1]
            found.append([part.tolist() for part in np.split(order, ends)])
        return found


def in_order(*, layers: int, experts: int, slots: int, ranks: int) -> ExpertMap:
    """Slot i holds expert i mod experts, as engines start."""
    row = np.arange(slots, dtype=np.int64) % experts
    return ExpertMap(expert=np.tile(row, (layers, 1)), experts=experts, ranks=ranks)
