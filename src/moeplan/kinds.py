"""Types of numbers: a figure is one float, or an array of them on open axes; the same functions serve both."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Real: TypeAlias = float | NDArray[Any]
