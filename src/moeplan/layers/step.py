"""What one micro-batch of a step looks like to a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moeplan.kinds import Real
from moeplan.ops.machine import Machine
from moeplan.routing.slots import ExpertLoad, Slots, expert_load
from moeplan.specs.deployment import Precision
from moeplan.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """batch requests of q_len new tokens each on one rank, context cached tokens; scalars or arrays on open axes."""

    model: ModelSpec
    machine: Machine
    precision: Precision
    batch: Real
    q_len: Real
    context: Real
    ep: Real
    slots: Slots | None
    even: bool = False  # every rank gets the mean, not what the fullest one is sampled
    corrections: Mapping[str, float] = field(default_factory=dict)

    def load(self) -> ExpertLoad | None:
        """What the fullest rank's experts get of this micro-batch; None for a dense model."""
        if self.slots is None or self.model.experts is None:
            return None
        return expert_load(self.slots, tokens=self.ep * self.rows, top_k=self.model.experts.top_k, even=self.even)

    @property
    def rows(self) -> Real:
        """Rows of every dense GEMM on one rank: batch·q_len (grouped-GEMM article, eq. 1)."""
        return self.batch * self.q_len
