"""A fit: a form with the parameters found for one chip, or for one generation; where it holds, how far it is off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from moeplan import units
from moeplan.errors import Fault, InputError, suggestion
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape
from moeplan.kernels.recipe import RowSource
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu
from moeplan.specs.loading import SIGNED, build, read_mapping
from moeplan.specs.precision import weight_format

ROUNDED: Final = 1e-3  # parameters are written with four digits
# What a doubling of ranks beyond the measured ones multiplies an error by. H200's DeepEP tables, fitted to 8 ranks, or
# to 8 and 16, are off on the next doubling by 0.9 to 4.5 times the error inside: 1.6 times in the mean of eight logs.
WIDER: Final = 1.6


class FitError(Struct, frozen=True, kw_only=True):
    """Errors predicted/measured - 1 on rows that the parameters had not seen: of sizes median and p90, their bias."""

    rows: int
    median: float
    p90: float
    bias: Annotated[float, SIGNED]

    def widened(self, doublings: float) -> FitError:
        """The same so many doublings beyond the rows, each of which multiplies it by WIDER: a careful guess."""
        factor = WIDER**doublings
        return replace(self, median=self.median * factor, p90=self.p90 * factor)


class Carried(Struct, frozen=True, kw_only=True):
    """How far the parameters of other chips, `of` them fitted together, are off on this file's."""

    of: tuple[str, ...]
    error: FitError


class FitFile(Struct, frozen=True, kw_only=True, eq=False):
    """What data/kernels/fits/<gpu or generation>/<form>.<formats>.<kernel>.yaml holds.

    parameters: as text with units. error: on whole shapes left out, of a generation's on whole chips left out. range:
    of every column, what was measured. limits: of the model's figures by which an engine chooses this kernel. samples:
    where the rows of a single chip are, which correct the fit where they can be read.
    """

    title: str
    form: str
    formats: dict[str, str]
    source: str
    gpus: tuple[str, ...]
    parameters: dict[str, str]
    error: FitError
    tiles: tuple[int, ...] = ()
    range: dict[str, tuple[float, ...]] = field(default_factory=dict)
    limits: dict[str, tuple[float, ...]] = field(default_factory=dict)
    samples: tuple[RowSource, ...] = ()
    carried: tuple[Carried, ...] = ()

    @property
    def kernel(self) -> Kernel:
        """What the form knows of the kernel."""
        return Kernel(formats={role: weight_format(name) for role, name in self.formats.items()}, tiles=self.tiles)


class Fit(Struct, frozen=True, kw_only=True, eq=False):
    """A form with numbers, ready to answer for a chip."""

    title: str
    form: Form
    kernel: Kernel
    parameters: Parameters
    error: FitError | None  # None where nobody has tried parameters of these chips on the one that is asked for
    gpus: tuple[str, ...]
    samples: tuple[RowSource, ...] = ()
    range: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def holds(self, shape: Shape) -> bool:
        """Whether a shape lies among the rows behind the fit, column by column; see doublings_beyond for `along`."""
        return all(
            pair[0] * (1 - ROUNDED) <= np.min(shape[name]) and np.max(shape[name]) <= pair[1] * (1 + ROUNDED)
            for name, pair in self.range.items()
            if name in shape and name != self.form.along
        )

    def doublings_beyond(self, shape: Shape) -> float:
        """How many doublings of the form's `along` a shape lies beyond the rows behind the fit, 0 inside."""
        name = self.form.along
        if name not in shape or name not in self.range:
            return 0.0
        low, high = self.range[name]
        least, most = float(np.min(shape[name])), float(np.max(shape[name]))
        return max(math.log2(most / high), math.log2(low / least), 0.0)

    def hastened(self, factor: float) -> Fit:
        """The same with every time among the parameters multiplied, for asking what less of them would be worth."""
        times = {parameter.name for parameter in self.form.parameters if parameter.unit == "s"}
        changed = {name: value * (factor if name in times else 1.0) for name, value in self.parameters.items()}
        return replace(self, parameters=changed)

    def parts(self, gpu: Gpu, shape: Shape) -> Parts:
        """Seconds on that chip."""
        return self.form.parts(gpu, self.kernel, shape, self.parameters)


def read_fit(path: Path) -> FitFile:
    """Read a file of a fit; raise InputError."""
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _read(path: Path, _changed: int) -> FitFile:
    try:
        found = build(FitFile, read_mapping(path), str(path))
        form, _ = form_named(found.form), found.kernel
    except InputError as error:
        raise InputError(str(path), error.faults) from error
    faults = []
    if set(form.roles) != found.formats.keys():
        faults.append(Fault("formats", f"holds {', '.join(found.formats)}", f"the form reads {', '.join(form.roles)}"))
    wanted = [parameter.name for parameter in form.parameters]
    faults += [
        Fault(f"parameters.{name}", "is unknown", suggestion(name, wanted) or f"wanted {', '.join(wanted)}")
        for name in found.parameters
        if name not in wanted
    ]
    for parameter in form.parameters:
        try:
            _parameter(parameter, found.parameters)
        except ValueError as error:
            faults.append(Fault(f"parameters.{parameter.name}", str(error)))
    faults += [
        Fault(f"limits.{name}", "needs two values", "smallest and largest")
        for name, pair in found.limits.items()
        if len(pair) != 2
    ]
    if any(tile < 1 for tile in found.tiles):
        faults.append(Fault("tiles", f"holds {min(found.tiles)}", "give at least 1"))
    if faults:
        raise InputError(str(path), faults)
    return found


def _parameter(parameter: Parameter, given: Mapping[str, str]) -> float:
    """A parameter's value; raise ValueError (a UnitError is one) that says what to write."""
    if parameter.name not in given:
        raise ValueError(f"is missing; {parameter.meaning}")
    value = units.parse(given[parameter.name], parameter.unit or "1")
    if not parameter.low * (1 - ROUNDED) <= value <= parameter.high * (1 + ROUNDED):
        shown = [
            units.si(bound, parameter.unit) if parameter.unit else f"{bound:g}"
            for bound in (parameter.low, parameter.high)
        ]
        raise ValueError(f"is {given[parameter.name]}, wanted {shown[0]} to {shown[1]}; {parameter.meaning}")
    return value


def fit_of(file: FitFile) -> Fit:
    """The fit that a file holds."""
    form = form_named(file.form)
    return Fit(
        title=file.title,
        form=form,
        kernel=file.kernel,
        parameters={parameter.name: _parameter(parameter, file.parameters) for parameter in form.parameters},
        error=file.error,
        gpus=file.gpus,
        samples=file.samples,
        range=file.range,
    )


def fits_of(catalog: Catalog, recipe: str) -> dict[str, FitFile]:
    """Every fit of a recipe, by the chip or generation that it is for; the user's before the packaged ones."""
    found: dict[str, FitFile] = {}
    for root in catalog.roots:
        for path in sorted(root.glob(f"kernels/fits/*/{recipe}.yaml")):
            found.setdefault(path.parent.name, read_fit(path))
    return found
