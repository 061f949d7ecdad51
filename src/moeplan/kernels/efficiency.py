"""The efficiency of a kernel: which fraction of the GPU's peak and of its memory bandwidth it reaches."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from moeplan.kernels.fit import FitError
from moeplan.kernels.origin import Origin, worst
from moeplan.kinds import Real


class Efficiency(Struct, frozen=True, kw_only=True, eq=False):
    """Fractions between 0 and 1, scalars or arrays; floor: seconds that neither arithmetic nor traffic explains.

    error: how far off the source was on rows that it had not seen, where that is known.
    """

    compute: Real
    memory: Real
    origin: Origin
    source: str
    floor: Real = 0.0
    padding: Real = 1.0  # FLOP done over FLOP asked: tiles are whole
    vector: Real = 1.0  # of the GPU's vector rate, where softmax counts
    error: FitError | None = None

    def at_best(self, origin: Origin, note: str) -> Efficiency:
        """The same figures used outside where they were read: no surer than `origin`, and the note says why."""
        return replace(self, origin=worst(self.origin, origin), source=f"{self.source} ({note})")
