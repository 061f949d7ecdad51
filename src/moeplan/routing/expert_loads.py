"""How much every expert of every layer was asked for, over windows of time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array

MOST_LOAD = 1e30  # of an expert in a window; sums of larger ones leave the range of numbers
MOST_WINDOWS = 256  # held at once: longer records are summed over neighbouring windows


class ExpertLoads(Struct, frozen=True, kw_only=True, eq=False):
    """windows: (windows, layers, experts), in any unit; layers: the number of every layer in its model.

    source: where they come from; merged: how many recorded windows make one here. A layer without any load is allowed:
    a recorder counts dense layers, too.

    Raises InputError for a wrong shape, NaN, negatives, or no load at all, naming where.
    """

    windows: Array
    layers: tuple[int, ...]
    source: str
    merged: int = 1

    def __post_init__(self) -> None:
        if self.windows.ndim != 3 or not self.windows.size:
            fix = "give windows × layers × experts, layers × experts, or one layer's experts"
            raise InputError(self.source, [Fault("loads", f"have the shape {self.windows.shape}", fix)])
        faults = [
            Fault(where, f"is {value:g}; {number} such", "give tokens or shares, from 0 to 1e30")
            for bad in (~(self.windows <= MOST_LOAD), self.windows < 0)
            if (number := int(bad.sum()))
            for place in [tuple(int(axis[0]) for axis in np.nonzero(bad))]
            for where, value in [(self._where(place), float(self.windows[place]))]
        ]
        if not faults and not self.windows.any():
            faults.append(Fault("loads", "are all zero", "record while requests are served"))
        if len(self.layers) != self.windows.shape[1] or len(set(self.layers)) != len(self.layers):
            faults.append(Fault("layers", "are not one number each", "number every layer once"))
        if faults:
            raise InputError(self.source, faults)

    @property
    def total(self) -> Array:
        """Summed over time: (layers, experts)."""
        result: Array = self.windows.sum(axis=0)
        return result

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return int(self.windows.shape[2])

    @property
    def loaded(self) -> NDArray[np.int64]:
        """The rows of layers that have a load."""
        return np.flatnonzero(self.total.sum(axis=1) > 0)

    @property
    def variation(self) -> Array:
        """Standard deviation over mean of the experts' loads, CV_e of the batch article: (layers,); 0 without load."""
        total = self.total
        mean = total.mean(axis=1)
        result: Array = np.divide(total.std(axis=1), mean, out=np.zeros_like(mean), where=mean > 0)
        return result

    def _where(self, place: tuple[int, ...]) -> str:
        window, layer, expert = place
        name = self.layers[layer] if layer < len(self.layers) else layer
        return (f"window {window}, " if len(self.windows) > 1 else "") + f"layer {name}, expert {expert}"


def folded(windows: Iterable[Array], *, most: int = MOST_WINDOWS) -> tuple[Array, int]:
    """Stack (layers, experts) windows, at most `most` of them: when full, neighbours are summed; and how many make one.

    What is not finite stays so, to be refused by name.
    """
    held: list[Array] = []
    width, filling = 1, 0
    for window in windows:
        if filling:
            held[-1] = held[-1] + window
        else:
            if len(held) == most:
                held = [held[place] + held[place + 1] for place in range(0, most, 2)]
                width *= 2
            held.append(np.asarray(window, dtype=float))
        filling = (filling + 1) % width
    return np.stack(held) if held else np.empty((0, 0, 0)), width
