"""Where a number comes from."""

from __future__ import annotations

from enum import IntEnum


class Origin(IntEnum):
    """From the surest to the least sure; the origin of a combined number is the worst of its parts."""

    MEASURED = 0
    INTERPOLATED = 1
    EXTRAPOLATED = 2
    FITTED = 3
    ASSUMED = 4

    def __str__(self) -> str:
        return self.name.lower()


def worst(*origins: Origin) -> Origin:
    """Return the least sure of some origins; measured when there are none."""
    return max(origins, default=Origin.MEASURED)
