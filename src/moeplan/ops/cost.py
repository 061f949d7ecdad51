"""The cost of one operator, with everything needed to explain it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from moeplan.kernels.fit import FitError
from moeplan.kernels.origin import Origin
from moeplan.kinds import Real

Resource = Literal["compute", "memory", "vector", "network", "floor"]
Lane = Literal["compute", "network"]


class Cost(Struct, frozen=True, kw_only=True, eq=False):
    """Seconds of an operator and what they are made of; scalars or arrays on open axes.

    parts: seconds that each resource alone would take; the largest binds. efficiencies: the fraction of a resource's
    peak that the kernel reaches, where one is meant. formula and terms: how the seconds come about, for people.
    sm_share: of the SMs that a network operator takes from what runs beside it, over its seconds.
    """

    name: str
    seconds: Real
    parts: Mapping[Resource, Real]
    efficiencies: Mapping[Resource, Real]
    origin: Origin
    source: str
    formula: str
    terms: Mapping[str, tuple[Real, str]] = field(default_factory=dict)
    flops: Real = 0.0
    bytes_: Real = 0.0
    lane: Lane = "compute"
    padding: Real = 1.0  # FLOP done over FLOP asked
    sm_share: Real = 0.0
    error: FitError | None = None  # of the source, on rows that it had not seen
    measurable: bool = False  # a kernel of which tables exist, on this chip or others

    def corrected(self, factor: float) -> Cost:
        """The same operator with its time multiplied by hand: assumed, and said so."""
        parts = {resource: seconds * factor for resource, seconds in self.parts.items()}
        source = f"{self.source}; corrected by hand x{factor:g}"
        return replace(self, seconds=self.seconds * factor, parts=parts, origin=Origin.ASSUMED, source=source)

    @property
    def efficiency(self) -> float:
        """The fraction reached of the resource that binds, 1 where none is meant; for scalars only."""
        return float(self.efficiencies.get(self.bound_by, 1.0))

    @property
    def bound_by(self) -> Resource:
        """The resource that binds; for scalars only."""
        return max(self.parts, key=lambda resource: float(self.parts[resource]))
