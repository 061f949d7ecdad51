"""Cook a recipe: every GPU's own parameters, those of each generation together, and each GPU left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from moeplan import units
from moeplan.calibrate.fitting import TRUST, error_of, fit_parameters, held_out
from moeplan.kernels.choice import generation
from moeplan.kernels.fit import Carried, FitError, FitFile
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.forms.form import Form, Parameters
from moeplan.kernels.recipe import Recipe
from moeplan.kernels.rows import Rows, errors, rows_of
from moeplan.specs.catalog import Catalog

Progress = Callable[[str], None]
FACTS = ("head_dim", "group", "combine")  # by which a kernel is chosen


def refit(
    recipe: Recipe, catalog: Catalog, *, root: Path | None = None, progress: Progress = lambda _: None
) -> Iterator[tuple[str, FitFile]]:
    """Yield the folder and the fit of every GPU, then of every generation of which several were measured.

    Raises InputError where the rows cannot be read.
    """
    form, kernel, held = form_named(recipe.form), recipe.kernel, recipe.held
    rows: dict[str, list[Rows]] = {}
    for source in recipe.samples:
        rows.setdefault(source.gpu, []).append(rows_of(source, catalog, root=root))
    left_out: dict[tuple[str, ...], list[FitError]] = {}
    together: dict[tuple[str, ...], dict[str, float]] = {}

    def parameters_of(gpus: tuple[str, ...]) -> dict[str, float]:
        if gpus not in together:
            together[gpus] = fit_parameters(
                form, kernel, [each for gpu in gpus for each in rows[gpu]], pinned=held, trust=TRUST
            )
        return together[gpus]

    for gpu, own in rows.items():
        progress(f"{recipe.title}: {gpu}")
        kin = _kin(gpu, rows) if recipe.kin else ()
        start, trust = (parameters_of(kin), recipe.kin) if kin else (None, TRUST)
        drawn = fit_parameters(form, kernel, own, pinned=held, start=start, trust=trust) if kin else None
        carried = []
        for gpus in _generations({name: each for name, each in rows.items() if name != gpu}):
            error = error_of([errors(form, kernel, each, parameters_of(gpus)) for each in own])
            carried.append(Carried(of=gpus, error=error))
            left_out.setdefault(tuple(sorted((*gpus, gpu))), []).append(error)
        error = held_out(form, kernel, own, pinned=held, start=start, trust=trust)
        found = drawn or parameters_of((gpu,))  # alone, what is carried to other chips as well
        yield gpu, fit_file(recipe, form, (gpu,), own, found, error, carried)
    for gpus in _generations(rows):
        if len(gpus) > 1:
            progress(f"{recipe.title}: {' + '.join(gpus)}")
            every = [each for gpu in gpus for each in rows[gpu]]
            found = parameters_of(gpus)
            worst = max(left_out[tuple(sorted(gpus))], key=lambda error: error.median)
            yield generation(every[0].gpu.architecture), fit_file(recipe, form, gpus, every, found, worst, ())


def fit_file(
    recipe: Recipe,
    form: Form,
    gpus: tuple[str, ...],
    rows: Sequence[Rows],
    found: Parameters,
    error: FitError,
    carried: Sequence[Carried],
) -> FitFile:
    """A fit as it is written down, with the range of the rows that it comes from."""
    written = {
        parameter.name: units.si(found[parameter.name], parameter.unit)
        if parameter.unit
        else f"{found[parameter.name]:.4g}"
        for parameter in form.parameters
    }
    ranges: dict[str, tuple[float, ...]] = {
        name: (min(float(each.shape[name].min()) for each in rows), max(float(each.shape[name].max()) for each in rows))
        for name in form.shape
        if all(name in each.shape for each in rows)
    }
    own = tuple(source for source in recipe.samples if source.gpu in gpus)
    limits = {name: pair for name, pair in own[0].limits.items() if name in FACTS} if own else {}
    return FitFile(
        title=recipe.title,
        form=recipe.form,
        formats=recipe.formats,
        tiles=recipe.tiles,
        source=recipe.source,
        gpus=gpus,
        parameters=written,
        error=error,
        range=ranges,
        limits=limits,
        samples=own if len(gpus) == 1 else (),
        carried=tuple(carried),
    )


def _kin(gpu: str, rows: dict[str, list[Rows]]) -> tuple[str, ...]:
    """The other chips whose architecture begins with the same word."""
    families = {name: own[0].gpu.architecture.split()[0] for name, own in rows.items()}
    return tuple(name for name, family in families.items() if name != gpu and family == families[gpu])


def _generations(rows: dict[str, list[Rows]]) -> list[tuple[str, ...]]:
    by_architecture: dict[str, list[str]] = {}
    for gpu, own in rows.items():
        by_architecture.setdefault(own[0].gpu.architecture, []).append(gpu)
    return [tuple(gpus) for gpus in by_architecture.values()]
