"""A fit: a form with the parameters found for one chip, or for one generation; where it holds, how far it is off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from moeplan import units
from moeplan.errors import Fault, InputError
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.forms.form import Form, Kernel, Parameters, Parts, Shape
from moeplan.kernels.recipe import RowSource
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu
from moeplan.specs.loading import build, read_mapping, signed_number
from moeplan.specs.precision import weight_format


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """Errors predicted/measured - 1 on rows that the parameters had not seen: of sizes median and p90, their bias."""

    rows: int
    median: float
    p90: float
    bias: float = signed_number()


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """How far the parameters of other chips, `of` them fitted together, are off on this file's."""

    of: tuple[str, ...]
    error: FitError


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFile:
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A form with numbers, ready to answer for a chip."""

    title: str
    form: Form
    kernel: Kernel
    parameters: Parameters
    error: FitError | None  # None where nobody has tried parameters of these chips on the one that is asked for
    gpus: tuple[str, ...]
    samples: tuple[RowSource, ...] = ()

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
    found = build(FitFile, read_mapping(path), str(path))
    form = form_named(found.form)
    wanted = {parameter.name for parameter in form.parameters}
    faults = [
        Fault("parameters", f"{name} is {'missing' if name in wanted else 'unknown'}", f"wanted {', '.join(wanted)}")
        for name in sorted(wanted ^ found.parameters.keys())
    ]
    if set(form.roles) != found.formats.keys():
        faults.append(Fault("formats", f"holds {', '.join(found.formats)}", f"the form reads {', '.join(form.roles)}"))
    faults += [
        Fault(f"limits.{name}", "needs two values", "smallest and largest")
        for name, pair in found.limits.items()
        if len(pair) != 2
    ]
    if faults:
        raise InputError(str(path), faults)
    return found


def fit_of(file: FitFile) -> Fit:
    """The fit that a file holds; raise InputError for a quantity that cannot be read."""
    form, parameters, faults = form_named(file.form), {}, []
    for parameter in form.parameters:
        try:
            parameters[parameter.name] = units.parse(file.parameters[parameter.name], parameter.unit or "1")
        except units.UnitError as error:
            faults.append(Fault(f"parameters.{parameter.name}", str(error)))
    if faults:
        raise InputError(file.title, faults)
    return Fit(
        title=file.title,
        form=form,
        kernel=file.kernel,
        parameters=parameters,
        error=file.error,
        gpus=file.gpus,
        samples=file.samples,
    )


def fits_of(catalog: Catalog, recipe: str) -> dict[str, FitFile]:
    """Every fit of a recipe, by the chip or generation that it is for; the user's before the packaged ones."""
    found: dict[str, FitFile] = {}
    for root in catalog.roots:
        for path in sorted(root.glob(f"kernels/fits/*/{recipe}.yaml")):
            found.setdefault(path.parent.name, read_fit(path))
    return found
