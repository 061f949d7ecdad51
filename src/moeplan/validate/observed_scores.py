"""The packaged published all-to-alls beside what the fits alone say of them, no row corrected by itself."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from moeplan.errors import InputError
from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.observed import observed, observed_keys
from moeplan.kernels.sources import KernelSources
from moeplan.kernels.wire import FORMS, asked
from moeplan.specs.catalog import Catalog
from moeplan.specs.exchange import Direction
from moeplan.validate.score import Score, score

NAME: Final = "all_to_all"
ALONE: Final = KernelSources(allowed=("fitted", "assumed"))


def score_observed(catalog: Catalog) -> list[Score]:
    """Errors by backend and mode, over all GPUs, cards and directions. Some of the fits were made from these rows."""
    errors: dict[str, list[float]] = {}
    for key in observed_keys(catalog, NAME):
        shape, seconds, _ = observed(catalog, NAME, key)
        library = replace(KernelLibrary.of(catalog.gpu(key["gpu"]), catalog, ALONE), cold=False)
        form = next(form for mode, form in FORMS.items() if mode == key["mode"])
        direction: Direction = "combine" if key["direction"] == "combine" else "dispatch"
        for index, measured in enumerate(seconds.tolist()):
            row = {name: float(values[index]) for name, values in shape.items()}
            try:
                timed = asked(library, form, key["wire"], row, backend=key["backend"], direction=direction)
            except InputError:
                continue  # no fit of that backend: a row of one kind alone tells nothing about others
            assert timed is not None, "no article's figures are asked"
            errors.setdefault(f"{key['backend']} {key['mode']}", []).append(float(timed.seconds) / measured - 1.0)
    return score({family: np.array(values) for family, values in sorted(errors.items())})
