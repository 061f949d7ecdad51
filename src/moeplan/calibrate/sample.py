"""Rows of one kernel on one GPU, as the columns that a form reads and the measured seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moeplan.kernels.forms.form import Form, Kernel, Parameters
from moeplan.kinds import Array
from moeplan.specs.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """Columns of a shape, each as long as `seconds`; source: for the file that a fit writes."""

    gpu: Gpu
    shape: dict[str, Array]
    seconds: Array
    source: str

    def __len__(self) -> int:
        return self.seconds.size

    def rows(self, mask: NDArray[np.bool_] | NDArray[np.intp]) -> Sample:
        """Some of the rows."""
        return replace(
            self, shape={name: values[mask] for name, values in self.shape.items()}, seconds=self.seconds[mask]
        )

    def within(self, limits: dict[str, tuple[float, ...]]) -> Sample:
        """The rows whose columns lie between two values, both taken in."""
        mask = np.ones(len(self), dtype=np.bool_)
        for name, (low, high) in limits.items():
            mask &= (self.shape[name] >= low) & (self.shape[name] <= high)
        return self.rows(mask)

    def thinned(self, count: int, seed: int) -> Sample:
        """At most `count` rows, drawn without order but the same ones each time."""
        if len(self) <= count:
            return self
        return self.rows(np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False)))


def group_numbers(sample: Sample, whole: Sequence[str]) -> NDArray[np.intp]:
    """A number per row, the same for rows of one whole shape."""
    table = np.stack([sample.shape[name] for name in whole], axis=-1)
    _, numbers = np.unique(table, axis=0, return_inverse=True)
    return np.asarray(numbers).ravel().astype(np.intp)


def errors(form: Form, kernel: Kernel, sample: Sample, parameters: Parameters) -> Array:
    """Predicted over measured, less 1, of every row."""
    found: Array = form.parts(sample.gpu, kernel, sample.shape, parameters).seconds / sample.seconds - 1.0
    return found
