"""The space of deployments to search: names to loop over, numbers on open axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array
from moeplan.specs.deployment import (
    LOW_LATENCY,
    Acceptance,
    Deployment,
    Precision,
    RoutedLoads,
    ScheduleName,
    fewest_redundant,
    is_all_to_all,
    most_redundant,
)
from moeplan.specs.model import ModelSpec
from moeplan.specs.schedule import schedule as named
from moeplan.specs.spread import EVERYWHERE, Spread, spreads

PIECE = 65_536  # configurations


class Space(Struct, frozen=True, kw_only=True):
    """Every combination of these is tried.

    counts: GPUs of one instance; batches: requests per GPU; drafts: MTP drafts per step; each ascending. layouts: names
    of specs.spread, at all attention TP sizes of `tps`, as far as `model` allows; without a model the first layout.
    redundant: expert slots beyond one per expert, at the sizes over which all slots divide and that can use them;
    without it every rank is filled, and given as many slots more as each of `extras`. routed: loads of the experts.
    reach: all-to-alls of the layout dep, each above a size and up to one; see specs.spread.spreads.
    """

    counts: tuple[int, ...]
    batches: tuple[int, ...]
    drafts: tuple[int, ...]
    precisions: tuple[Precision, ...]
    schedules: tuple[ScheduleName, ...]
    context: float
    acceptance: Acceptance
    model: ModelSpec | None = None
    layouts: tuple[str, ...] = ("dep",)
    tps: tuple[int, ...] = (1,)
    redundant: int | None = None
    extras: tuple[int, ...] = (0,)
    routed: RoutedLoads | None = None
    reach: Mapping[str, tuple[float, float]] = field(default_factory=lambda: EVERYWHERE)

    def __post_init__(self) -> None:
        if not self.size:
            fix = "give at least one of each; two-batch overlap needs an even batch and an all-to-all, a model's heads "
            fix += "and widths must divide over the GPUs that a layout spreads them over"
            raise InputError("search", [Fault("space", "holds no configuration", fix)])

    @property
    def spreads(self) -> tuple[Spread, ...]:
        """Every way of spreading the model, with the instance sizes at which it is possible."""
        if self.model is None:
            return (Spread(layout="dep", tp=1, moe_tp=1, exchange=LOW_LATENCY, counts=self.counts),)
        return spreads(self.model, self.counts, self.layouts, self.tps, self.reach)

    def batches_for(self, schedule: ScheduleName, tp: int = 1) -> Array:
        """The batches per attention rank that a schedule accepts: two-batch overlap needs an even one.

        A rank of several GPUs takes all of one GPU's and, beyond them, as many on each of its GPUs.
        """
        batches = np.array(self.batches, dtype=float)
        if tp > 1:
            batches = np.unique(np.concatenate([batches, tp * batches]))
        fitting: Array = batches[batches % named(schedule).micro_batches == 0]
        return fitting

    def counts_for(self, schedule: ScheduleName, spread: Spread) -> Array:
        """The instance sizes that a schedule accepts: overlap needs an all-to-all, which one GPU does not have."""
        counts = np.array(spread.counts, dtype=float)
        if self.redundant is not None and spread.moe_tp == 1:
            divides = (self._experts + self.redundant) % counts == 0
            counts = counts[divides & (self.redundant <= most_redundant(self._experts, counts))]
        if not named(schedule).overlaps:
            return counts
        return counts[counts > 1] if is_all_to_all(spread.exchange) else counts[:0]

    def redundant_for(self, spread: Spread, counts: Array) -> list[Array | None]:
        """Redundant slots at every size, once for each choice; None: what fills every rank. None help a single rank."""
        if spread.moe_tp > 1:
            return [None]
        if self.redundant is not None:
            return [np.full(counts.shape, float(self.redundant))]
        if self.extras == (0,):
            return [None]
        fewest, most = fewest_redundant(self._experts, counts), most_redundant(self._experts, counts)
        return [np.minimum(fewest + extra * counts, most) for extra in self.extras]

    @property
    def _experts(self) -> int:
        experts = self.model.experts if self.model is not None else None
        return experts.count if experts is not None else 0

    def holds(self, schedule: ScheduleName) -> bool:
        """Whether any configuration has that schedule."""
        return any(self._sizes(schedule))

    def pieces(self) -> Iterator[Deployment]:
        """Walk the space in pieces of about PIECE configurations, each of one precision, spread and schedule.

        The numbers of a piece are arrays on open axes (counts, batches, drafts). A piece fits in the cache of a core
        and bounds the memory of a search of any size. Batches are cut before counts: what does not depend on the EP
        size is then computed once; precisions come in turn, as the experts' half of a layer is the same for all.
        """
        for spread in self.spreads:
            for schedule in self.schedules:
                for grid in self._pieces(spread, schedule):
                    for precision in self.precisions:
                        yield replace(grid, precision=precision)

    def _pieces(self, spread: Spread, schedule: ScheduleName) -> Iterator[Deployment]:
        batches, counts = self.batches_for(schedule, spread.tp), self.counts_for(schedule, spread)
        if not (batches.size and counts.size):
            return
        rows = max(1, min(counts.size, PIECE // len(self.drafts)))
        columns = max(1, PIECE // (rows * len(self.drafts)))
        for low in range(0, counts.size, rows):
            for left in range(0, batches.size, columns):
                grid = self.deployment(
                    self.precisions[0], spread, schedule, counts[low : low + rows], batches[left : left + columns]
                )
                for redundant in self.redundant_for(spread, counts[low : low + rows]):
                    yield grid if redundant is None else replace(grid, redundant=redundant[:, None, None])

    def deployment(
        self, precision: Precision, spread: Spread, schedule: ScheduleName, counts: Array, batches: Array
    ) -> Deployment:
        """A grid of one precision, spread and schedule on open axes, every rank filled."""
        return Deployment(
            batch=batches[None, :, None],
            ep=counts[:, None, None] / spread.moe_tp,
            drafts=np.array(self.drafts)[None, None, :],
            context=self.context,
            precision=precision,
            schedule=schedule,
            acceptance=self.acceptance,
            tp=spread.tp,
            moe_tp=spread.moe_tp,
            exchange=spread.exchange,
            routed=self.routed,
        )

    @property
    def size(self) -> int:
        """Configurations in it, per GPU and NIC."""
        grids = sum(sum(self._sizes(name)) for name in self.schedules)
        return grids * len(self.drafts) * len(self.precisions)

    def _sizes(self, schedule: ScheduleName) -> Iterator[int]:
        for spread in self.spreads:
            choices = 1 if self.redundant is not None or spread.moe_tp > 1 else len(self.extras)
            yield self.counts_for(schedule, spread).size * self.batches_for(schedule, spread.tp).size * choices
