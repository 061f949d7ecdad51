"""A fit: a form with the parameters that were found for some chips, where it holds and how far it is off."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from moeplan import units
from moeplan.errors import Fault, InputError
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.forms.form import Form, Kernel, Parameters, Parts, Shape
from moeplan.specs.gpu import Gpu
from moeplan.specs.loading import build, read_mapping
from moeplan.specs.precision import weight_format


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """Where rows of one GPU come from: a silicon table (system, family, engine, version, kernels, where) or a file."""

    gpu: str
    table: str = ""
    system: str = ""
    family: str = ""
    engine: str = ""
    version: str = ""
    kernels: tuple[str, ...] = ()
    where: dict[str, str] = field(default_factory=dict)
    limits: dict[str, tuple[float, ...]] = field(default_factory=dict)  # smallest and largest of a shape's column

    def __post_init__(self) -> None:
        faults = []
        if bool(self.table) == bool(self.family):
            faults.append(Fault("table", "is given with or without a family", "name a table, or a silicon family"))
        faults += [
            Fault(f"limits.{name}", "needs two values", "smallest and largest")
            for name, pair in self.limits.items()
            if len(pair) != 2
        ]
        if faults:
            raise InputError(self.gpu, faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """Errors predicted/measured - 1 on rows that the parameters had not seen: of sizes median and p90, their bias."""

    rows: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSet:
    """Parameters found for some GPUs together, as text with units; range: of every column, what was measured."""

    gpus: tuple[str, ...]
    parameters: dict[str, str]
    error: FitError
    range: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How far parameters of some GPUs are off on one that they had not seen, with its own peaks."""

    to: str
    of: tuple[str, ...]
    error: FitError


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFile:
    """One kernel's fits, as data/kernels/fits/<form>/<formats>.<kernel>.yaml holds them."""

    title: str
    form: str
    formats: dict[str, str]
    source: str
    tiles: tuple[int, ...] = ()
    note: str = ""
    command: str = ""
    samples: tuple[SampleSource, ...] = ()
    fits: tuple[ParameterSet, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    @property
    def kernel(self) -> Kernel:
        """What the form knows of the kernel."""
        return Kernel(formats={role: weight_format(name) for role, name in self.formats.items()}, tiles=self.tiles)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A form with numbers, ready to answer for a chip; own: whether it was fitted to that chip's rows."""

    title: str
    form: Form
    kernel: Kernel
    parameters: Parameters
    error: FitError
    gpus: tuple[str, ...]
    own: bool
    range: dict[str, tuple[float, ...]]

    def parts(self, gpu: Gpu, shape: Shape) -> Parts:
        """Seconds on that chip."""
        return self.form.parts(gpu, self.kernel, shape, self.parameters)


def read_fit(path: Path) -> FitFile:
    """Read a file of fits; raise InputError."""
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> FitFile:
    found = build(FitFile, read_mapping(path), str(path))
    form = form_named(found.form)
    wanted = {parameter.name for parameter in form.parameters}
    faults = [
        Fault(f"fits.{number}.parameters", f"{name} is {'missing' if name in wanted else 'unknown'}")
        for number, given in enumerate(found.fits)
        for name in sorted(wanted ^ given.parameters.keys())
    ]
    if set(form.roles) != found.formats.keys():
        faults.append(Fault("formats", f"holds {', '.join(found.formats)}", f"the form reads {', '.join(form.roles)}"))
    if faults:
        raise InputError(str(path), faults)
    return found


def fit_of(file: FitFile, given: ParameterSet, gpu: str) -> Fit:
    """One set of parameters as a fit for a GPU, its error the transfer's where one was measured."""
    form = form_named(file.form)
    error = given.error
    for transfer in file.transfers:
        if gpu not in given.gpus and transfer.to == gpu and set(transfer.of) == set(given.gpus):
            error = transfer.error
    by_name = {parameter.name: parameter for parameter in form.parameters}
    return Fit(
        title=file.title,
        form=form,
        kernel=file.kernel,
        parameters={
            name: units.parse(text, by_name[name].unit or "1") for name, text in given.parameters.items()
        },
        error=error,
        gpus=given.gpus,
        own=gpu in given.gpus,
        range=given.range,
    )
