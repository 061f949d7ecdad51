"""Which fit answers for a kernel on a chip: its own, that of its die, of its generation, or the nearest there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from moeplan.kernels.fit import Fit, FitError, FitFile, fit_of, fits_of, read_fit
from moeplan.kernels.forms.form import Kernel
from moeplan.kernels.origin import Origin
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import Gpu
from moeplan.specs.loading import build, read_mapping
from moeplan.specs.precision import weight_format

FAR = 2.0  # a chip's figure beyond that many times every fitted one's makes a fit's error say nothing
Facts = tuple[tuple[str, float], ...]
Formats = tuple[tuple[str, str], ...]


class Choices(Struct, frozen=True, kw_only=True, eq=False):
    """Read from data/kernels/choices.yaml: kernels by form and formats, best first; who stands in for whom.

    kernels: form -> formats joined by «-» -> names of files. instead: formats without a kernel of their own -> those
    whose kernel is taken. die: GPU -> the one of the same silicon at the same clocks. nearest: start of an
    architecture's name -> GPUs whose parameters are taken, best first; other: the same for any other architecture.
    """

    kernels: dict[str, dict[str, tuple[str, ...]]]
    instead: dict[str, dict[str, str]]
    die: dict[str, str]
    nearest: dict[str, tuple[str, ...]]
    other: tuple[str, ...]


class Chosen(Struct, frozen=True, kw_only=True, eq=False):
    """A fit, how sure it is at best, what is to be said beside it, and where measured rows are that may correct it.

    error: how far off it was where it had not seen the rows, None where that says nothing of this chip or precision.
    measured_on: GPUs whose rows may correct it. kernel: its name in choices.yaml.
    """

    fit: Fit
    origin: Origin
    notes: tuple[str, ...]
    error: FitError | None
    measured_on: tuple[str, ...]
    kernel: str = ""


class _Way(Struct, frozen=True, eq=False):
    """A folder of fits, how sure what lies there is for the chip, the note, and the GPU that its rows are of."""

    folder: str
    origin: Origin
    note: str = ""
    measured_on: str = ""


def choices(catalog: Catalog) -> Choices:
    """Read choices.yaml; raise InputError."""
    path = catalog.data_file("kernels", "choices.yaml")
    return _choices(path, path.stat().st_mtime_ns)


def chosen_fit(
    catalog: Catalog,
    gpu: Gpu,
    form: str,
    formats: Mapping[str, str],
    *,
    engine: str = "",
    facts: Mapping[str, float] | None = None,
    exact: bool = False,
) -> Chosen | None:
    """The fit for a kernel on a GPU, None where there is none of this form; formats by role, in the form's order.

    engine: the kernel of that name comes first, also if choices.yaml does not list it, then those that start with it.
    exact: no other kernel will do. facts: of the model, such as head_dim, by which engines choose their kernel: a fit
    limited to other values is passed over.
    """
    key = tuple(sorted((facts or {}).items()))
    asked = (form, tuple(formats.items()), gpu.slug, gpu.architecture, f"={engine}" if exact else engine, key)
    found = _chosen(catalog, *asked, _changed(catalog))
    if found is None or found.measured_on[:1] == found.fit.gpus or not (unlike := _unlike(catalog, gpu, found)):
        return found
    return replace(found, notes=(*found.notes, unlike), error=None)


def generation(architecture: str) -> str:
    """The folder of an architecture's fits."""
    return architecture.lower().replace(" ", "-").replace("_", "")


@lru_cache(maxsize=512)
def _chosen(
    catalog: Catalog,
    form: str,
    formats: Formats,
    gpu: str,
    architecture: str,
    engine: str,
    facts: Facts,
    _stamp: tuple[int, ...],
) -> Chosen | None:
    known = choices(catalog)
    key = "-".join(name for _, name in formats)
    found = _first(catalog, form, key, gpu, architecture, engine, facts)
    if found is not None:
        return found
    found = _first(catalog, form, known.instead.get(form, {}).get(key, ""), gpu, architecture, engine, facts)
    if found is None:
        return None
    own = Kernel(formats={role: weight_format(name) for role, name in formats}, tiles=found.fit.kernel.tiles)
    fit = replace(found.fit, kernel=own, samples=())  # its rows and its error are of its own precision
    return replace(
        found, fit=fit, error=None, origin=Origin.ASSUMED, notes=("another precision's kernel", *found.notes)
    )


def _first(
    catalog: Catalog, form: str, key: str, gpu: str, architecture: str, engine: str, facts: Facts
) -> Chosen | None:
    known = choices(catalog)
    names = _names(catalog, known, form, key, engine)
    for way in _ways(known, gpu, architecture):
        for name in names:
            recipe = f"{form}.{key}.{name}"
            if (path := _file(catalog, way.folder, recipe)) is None:
                continue
            file = read_fit(path)
            if not all(
                file.limits[fact][0] <= value <= file.limits[fact][1] for fact, value in facts if fact in file.limits
            ):
                continue
            note = way.note or (
                f"carried over from {' and '.join(file.gpus)} by the peaks" if not way.measured_on else ""
            )
            measured_on = tuple(dict.fromkeys(name for name in (gpu, way.measured_on) if name))
            return Chosen(
                fit=fit_of(file),
                origin=way.origin,
                error=_abroad(catalog, recipe, file) if way.origin is Origin.ASSUMED else file.error,
                notes=(note,) if note else (),
                measured_on=measured_on,
                kernel=name,
            )
    return None


def _unlike(catalog: Catalog, chip: Gpu, found: Chosen) -> str:
    """What sets a chip apart from all that a fit comes from, by more than twice; empty where nothing does."""
    others = _packaged(catalog.packaged, found.fit.gpus)
    if not others:
        return ""
    figures: tuple[tuple[str, Callable[[Gpu], float]], ...] = (
        ("FLOP per byte", lambda gpu: max(gpu.compute.values()) / gpu.memory.bandwidth),
        ("SMs", lambda gpu: gpu.units),
    )
    apart = [name for name, of in figures if not min(map(of, others)) / FAR <= of(chip) <= max(map(of, others)) * FAR]
    text = f"of another balance than any of them ({', '.join(apart)})" if apart else ""
    if chip.sms is None:
        text = "; ".join(part for part in (text, f"SMs not given, {chip.units} taken") if part)
    return text


@lru_cache(maxsize=256)
def _packaged(catalog: Catalog, names: tuple[str, ...]) -> tuple[Gpu, ...]:
    """The packaged chips of these names, whose files nobody changes; every kernel of every step asks."""
    known = catalog.names("gpus")
    return tuple(catalog.gpu(name) for name in names if name in known)


def _abroad(catalog: Catalog, recipe: str, file: FitFile) -> FitError | None:
    """The worst that parameters with these chips among them were on another generation's; None if none was tried."""
    at_home = {catalog.gpu(gpu).architecture for gpu in file.gpus}
    tried = [
        item.error
        for other in fits_of(catalog, recipe).values()
        for item in other.carried
        if set(file.gpus) <= set(item.of) and catalog.gpu(other.gpus[0]).architecture not in at_home
    ]
    return max(tried, key=lambda error: error.median, default=None)


def _changed(catalog: Catalog) -> tuple[int, ...]:
    """When the user's fits last changed: a fit that was just written is found by the next question."""
    return tuple(
        path.stat().st_mtime_ns
        for root in catalog.roots[:-1]
        for path in (*root.glob("kernels/fits"), *root.glob("kernels/fits/*"), *root.glob("kernels/fits/*/*.yaml"))
    )


def _ways(known: Choices, gpu: str, architecture: str) -> Iterator[_Way]:
    if gpu:
        yield _Way(gpu, Origin.FITTED, measured_on=gpu)
    if gpu in known.die:
        twin = known.die[gpu]
        yield _Way(twin, Origin.FITTED, note=f"{twin} stands in, the same die", measured_on=twin)
    yield _Way(generation(architecture), Origin.FITTED)
    lists = [names for start, names in known.nearest.items() if architecture.lower().startswith(start.lower())]
    for name in (*(lists[0] if lists else ()), *known.other):
        yield _Way(name, Origin.ASSUMED, note=f"carried over from {name}, another chip")


def _names(catalog: Catalog, known: Choices, form: str, key: str, engine: str) -> list[str]:
    """Kernels in the order in which they are asked: the user's own, the one named, the engine's, the others.

    «=» before the name: that one alone.
    """
    named = known.kernels.get(form, {}).get(key, ())
    start = f"{form}.{key}."
    own = [
        path.stem.removeprefix(start)
        for root in catalog.roots[:-1]
        for path in sorted(root.glob(f"kernels/fits/*/{start}*.yaml"))
    ]
    if engine.startswith("="):
        return [engine[1:]]
    listed = sorted(named, key=lambda name: not (engine and name.startswith(engine)))
    return list(dict.fromkeys((*own, *([engine] if engine else []), *listed)))


def _file(catalog: Catalog, folder: str, recipe: str) -> Path | None:
    for root in catalog.roots:
        path = root / "kernels" / "fits" / folder / f"{recipe}.yaml"
        if path.is_file():
            return path
    return None


@lru_cache(maxsize=8)
def _choices(path: Path, _changed: int) -> Choices:
    return build(Choices, read_mapping(path), str(path))
