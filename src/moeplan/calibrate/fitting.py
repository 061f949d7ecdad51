"""Least squares on the logarithm of time, and how far that is off on whole shapes left out, and on other chips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from moeplan.errors import Fault, InputError
from moeplan.kernels.fit import FitError
from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters
from moeplan.kernels.rows import Rows, errors, group_numbers
from moeplan.kinds import Array

INSTALL: Final = "pip install 'moeplan[fit]'"
FOLDS: Final = 4
ROWS: Final = 4000  # of one sample, drawn at random, that a fit looks at
SOFT: Final = 0.1  # log error from which a row counts less than its square
SEED: Final = 1
TRUST: Final = 0.2  # a parameter moved over its whole width costs as much as one row: what rows do not tell stays put


def fit_parameters(
    form: Form,
    kernel: Kernel,
    samples: Sequence[Rows],
    *,
    pinned: Parameters | None = None,
    start: Parameters | None = None,
    trust: float = 0.0,
    rows: int = ROWS,
) -> dict[str, float]:
    """Find the parameters that come closest to all samples, every sample weighing the same.

    pinned: held at these values. start: where to begin, else the form's own start; trust: what moving a parameter over
    its whole width costs, as the error of one row. Raises InputError without SciPy, or with fewer rows than free
    parameters, unless a trusted start makes up for them.
    """
    least_squares = _least_squares()
    pinned = dict(pinned or {})
    free = [parameter for parameter in form.parameters if parameter.name not in pinned]
    thin = [sample.thinned(rows, SEED) for sample in samples if len(sample)]
    total = sum(map(len, thin))
    if total <= len(free) and not trust:
        fix = f"more rows than its {len(free)} parameters"
        raise InputError("calibrate", [Fault("rows", f"{total} rows cannot fit {form.name}", fix)])
    weights = [np.full(len(sample), (total / len(thin) / len(sample)) ** 0.5) for sample in thin]

    def residuals(place: Array) -> Array:
        given = {**pinned, **_from_place(free, place)}
        parts = [
            weight * np.log(form.parts(sample.gpu, kernel, sample.shape, given).seconds / sample.seconds)
            for sample, weight in zip(thin, weights, strict=True)
        ]
        return np.concatenate([*parts, trust * (place - begin)])

    begun = dict(start or {})
    begin = np.array([_to_place(each, begun.get(each.name, each.start)) for each in free])
    begin = np.clip(begin, 1e-6, 1.0 - 1e-6)
    found = least_squares(residuals, begin, bounds=(0.0, 1.0), loss="soft_l1", f_scale=SOFT, x_scale=1.0, max_nfev=200)
    return {**pinned, **_from_place(free, found.x)}


def held_out(
    form: Form,
    kernel: Kernel,
    samples: Sequence[Rows],
    *,
    pinned: Parameters | None = None,
    start: Parameters | None = None,
    trust: float = TRUST,
    rows: int = ROWS,
) -> FitError:
    """Cross-validate: whole shapes in four parts, each predicted by a fit to the other three.

    start, trust: as in fit_parameters; a start must come from other samples than these.
    """
    found: list[Array] = []
    numbers = [group_numbers(sample, form.whole) for sample in samples]
    folds = [np.random.default_rng(SEED).integers(0, FOLDS, int(each.max(initial=0)) + 1)[each] for each in numbers]
    for fold in range(FOLDS):
        seen = [sample.where(part != fold) for sample, part in zip(samples, folds, strict=True)]
        unseen = [sample.where(part == fold) for sample, part in zip(samples, folds, strict=True)]
        if not sum(map(len, unseen)):
            continue
        given = fit_parameters(form, kernel, seen, pinned=pinned, start=start, rows=rows, trust=trust)
        found += [errors(form, kernel, sample, given) for sample in unseen]
    return error_of(found)


def error_of(found: Sequence[Array]) -> FitError:
    """Median and p90 of the sizes of all, and the median itself."""
    values = np.concatenate(found)
    sizes = np.abs(values)
    return FitError(
        rows=int(values.size),
        median=float(np.median(sizes)),
        p90=float(np.quantile(sizes, 0.9)),
        bias=float(np.median(values)),
    )


def _to_place(parameter: Parameter, value: float) -> float:
    """Between 0 at the lower bound and 1 at the upper, in logarithms where the bounds are far apart."""
    if _logarithmic(parameter):
        return float(np.log(value / parameter.low) / np.log(parameter.high / parameter.low))
    return (value - parameter.low) / (parameter.high - parameter.low)


def _from_place(free: Sequence[Parameter], place: Array) -> Mapping[str, float]:
    found = {}
    for parameter, at in zip(free, place.tolist(), strict=True):
        low, high = parameter.low, parameter.high
        found[parameter.name] = low * (high / low) ** at if _logarithmic(parameter) else low + at * (high - low)
    return found


def _logarithmic(parameter: Parameter) -> bool:
    return parameter.low > 0 and parameter.high / parameter.low > 20


def _least_squares() -> Any:
    try:
        return import_module("scipy.optimize").least_squares
    except ImportError as error:
        raise InputError("calibrate", [Fault("scipy", "is not installed", INSTALL)]) from error
