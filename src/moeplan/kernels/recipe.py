"""What a kernel's fits are made from: the form, its formats, and where the measured rows of every GPU are."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

from moeplan import units
from moeplan.errors import Fault, InputError, suggestion
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.forms.form import Kernel, Parameters
from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, read_mapping
from moeplan.specs.precision import weight_format


class RowSource(Struct, frozen=True, kw_only=True, eq=False):
    """Where rows of one GPU come from.

    A silicon table (system, family, engine, version, kernels, where), a packaged one of that GPU (table), or a file of
    data/observations that holds many kernels' (observations, where).

    limits: smallest and largest of a column; rows beyond are another kernel's, or another question.
    """

    gpu: str
    table: str = ""
    observations: str = ""
    system: str = ""
    family: str = ""
    engine: str = ""
    version: str = ""
    kernels: tuple[str, ...] = ()
    where: dict[str, str] = field(default_factory=dict)
    limits: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = []
        if sum(map(bool, (self.table, self.observations, self.family))) != 1:
            fix = "name one of a table, observations, or a silicon family"
            faults.append(Fault("table", "is given beside another kind of source, or none is", fix))
        faults += [
            Fault(f"limits.{name}", "needs two values", "smallest and largest")
            for name, pair in self.limits.items()
            if len(pair) != 2
        ]
        if faults:
            raise InputError(self.gpu, faults)


class Recipe(Struct, frozen=True, kw_only=True, eq=False):
    """What data/kernels/recipes/<form>.<formats>.<kernel>.yaml holds.

    pinned: parameters that are known, not fitted. kin: where a chip has few rows, how strongly its parameters are drawn
    to what the other chips of its kin (Blackwell and Blackwell Ultra) have: the trust of fit_parameters.
    """

    title: str
    form: str
    formats: dict[str, str]
    source: str
    samples: tuple[RowSource, ...]
    tiles: tuple[int, ...] = ()
    pinned: dict[str, str] = field(default_factory=dict)
    kin: float = 0.0
    note: str = ""

    @property
    def held(self) -> Parameters:
        """Pinned parameters in SI units; raise InputError for a quantity that cannot be read."""
        found, faults = {}, []
        for parameter in form_named(self.form).parameters:
            if parameter.name in self.pinned:
                try:
                    found[parameter.name] = units.parse(self.pinned[parameter.name], parameter.unit or "1")
                except units.UnitError as error:
                    faults.append(Fault(f"pinned.{parameter.name}", str(error)))
        faults += [Fault(f"pinned.{name}", "is no parameter of the form") for name in self.pinned if name not in found]
        if faults:
            raise InputError(self.title, faults)
        return found

    @property
    def kernel(self) -> Kernel:
        """What the form knows of the kernel."""
        return Kernel(formats={role: weight_format(name) for role, name in self.formats.items()}, tiles=self.tiles)


def recipe_path(catalog: Catalog, name: str) -> Path:
    """The file of a recipe by its name, <form>.<formats>.<kernel>; raise UnknownName."""
    known = {path.stem: path for root in reversed(catalog.roots) for path in root.glob("kernels/recipes/*.yaml")}
    if name not in known:
        near = suggestion(name, known) or f"there is {', '.join(sorted({each.split('.')[0] for each in known}))}…"
        raise InputError("recipe", [Fault(name, "is no recipe", f"{near}; the files of data/kernels/recipes")])
    return known[name]


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; raise InputError."""
    found = build(Recipe, read_mapping(path), str(path))
    form = form_named(found.form)
    if set(form.roles) != found.formats.keys():
        fault = Fault("formats", f"holds {', '.join(found.formats)}", f"the form reads {', '.join(form.roles)}")
        raise InputError(str(path), [fault])
    return found
