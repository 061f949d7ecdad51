"""Fit a kernel's file anew: every GPU's own parameters, those of each architecture together, and each GPU left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from moeplan import units
from moeplan.calibrate.fitting import fit_parameters, held_out, transferred
from moeplan.calibrate.sample import Sample
from moeplan.calibrate.samples import sample_of
from moeplan.kernels.fit import FitFile, ParameterSet, Transfer
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.forms.form import Form
from moeplan.specs.catalog import Catalog

Progress = Callable[[str], None]


def refit(file: FitFile, catalog: Catalog, *, root: Path | None = None, progress: Progress = lambda _: None) -> FitFile:
    """Return the file with new parameters, errors and transfers; its samples and formats stay."""
    form, kernel = form_named(file.form), file.kernel
    samples: dict[str, list[Sample]] = {}
    for source in file.samples:
        samples.setdefault(source.gpu, []).append(sample_of(source, catalog, root=root))
    fits, transfers = [], []
    for gpu, own in samples.items():
        progress(f"{file.title}: {gpu}")
        fits.append(_set(form, (gpu,), own, file))
    for gpus in _generations(samples):
        if len(gpus) > 1:
            progress(f"{file.title}: {' + '.join(gpus)}")
            fits.append(_set(form, gpus, [sample for gpu in gpus for sample in samples[gpu]], file))
    for gpu in samples:
        for gpus in _generations({name: own for name, own in samples.items() if name != gpu}):
            progress(f"{file.title}: {' + '.join(gpus)} to {gpu}")
            given = [sample for name in gpus for sample in samples[name]]
            for sample in samples[gpu]:
                transfers.append(Transfer(to=gpu, of=gpus, error=transferred(form, kernel, given, sample)))
    return replace(file, fits=tuple(fits), transfers=tuple(transfers))


def _generations(samples: dict[str, list[Sample]]) -> list[tuple[str, ...]]:
    by_architecture: dict[str, list[str]] = {}
    for gpu, own in samples.items():
        by_architecture.setdefault(own[0].gpu.architecture, []).append(gpu)
    return [tuple(gpus) for gpus in by_architecture.values()]


def _set(form: Form, gpus: tuple[str, ...], samples: Sequence[Sample], file: FitFile) -> ParameterSet:
    found = fit_parameters(form, file.kernel, samples)
    written = {
        parameter.name: units.si(found[parameter.name], parameter.unit) if parameter.unit else f"{found[parameter.name]:.4g}"
        for parameter in form.parameters
    }
    ranges = {
        name: (
            min(float(sample.shape[name].min()) for sample in samples),
            max(float(sample.shape[name].max()) for sample in samples),
        )
        for name in form.shape
    }
    return ParameterSet(gpus=gpus, parameters=written, error=held_out(form, file.kernel, samples), range=ranges)
