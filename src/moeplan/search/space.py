"""The space of deployments to search: names to loop over, numbers on open axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array
from moeplan.specs.deployment import Acceptance, Deployment, Precision, ScheduleName
from moeplan.specs.schedule import schedule as named

PIECE = 65_536  # configurations


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Every combination of these is tried.

    counts: GPUs of one instance (= ep = dp); batches: requests per GPU; drafts: MTP drafts per step; each ascending.
    """

    counts: tuple[int, ...]
    batches: tuple[int, ...]
    drafts: tuple[int, ...]
    precisions: tuple[Precision, ...]
    schedules: tuple[ScheduleName, ...]
    context: float
    acceptance: Acceptance

    def __post_init__(self) -> None:
        if not self.size:
            fix = "give at least one of each; two-batch overlap needs an even batch"
            raise InputError("search", [Fault("space", "holds no configuration", fix)])

    def batches_for(self, schedule: ScheduleName) -> Array:
        """The batches that a schedule accepts: two-batch overlap needs an even one."""
        batches = np.array(self.batches, dtype=float)
        fitting: Array = batches[batches % named(schedule).micro_batches == 0]
        return fitting

    def counts_for(self, schedule: ScheduleName) -> Array:
        """The instance sizes that a schedule accepts: one GPU has no all-to-all to overlap."""
        counts = np.array(self.counts, dtype=float)
        return counts[counts > 1] if named(schedule).overlaps else counts

    def pieces(self) -> Iterator[Deployment]:
        """Walk the space in pieces of about PIECE configurations, each of one precision and schedule.

        The numbers of a piece are arrays on open axes (counts, batches, drafts). A piece fits in the cache of a core
        and bounds the memory of a search of any size. Batches are cut before counts: what does not depend on the EP
        size is then computed once.
        """
        for precision in self.precisions:
            for schedule in self.schedules:
                batches, counts = self.batches_for(schedule), self.counts_for(schedule)
                if not (batches.size and counts.size):
                    continue
                rows = max(1, min(counts.size, PIECE // len(self.drafts)))
                columns = max(1, PIECE // (rows * len(self.drafts)))
                for low in range(0, counts.size, rows):
                    for left in range(0, batches.size, columns):
                        some = batches[left : left + columns]
                        yield self.deployment(precision, schedule, counts[low : low + rows], some)

    def deployment(self, precision: Precision, schedule: ScheduleName, counts: Array, batches: Array) -> Deployment:
        """A grid of one precision and schedule on open axes."""
        return Deployment(
            batch=batches[None, :, None],
            ep=counts[:, None, None],
            drafts=np.array(self.drafts)[None, None, :],
            context=self.context,
            precision=precision,
            schedule=schedule,
            acceptance=self.acceptance,
        )

    @property
    def size(self) -> int:
        """Configurations in it, per GPU and NIC."""
        grids = sum(self.counts_for(name).size * self.batches_for(name).size for name in self.schedules)
        return grids * len(self.drafts) * len(self.precisions)
