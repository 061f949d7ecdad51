"""The packaged fits as the tests of the forms ask for them."""

from __future__ import annotations

from pathlib import Path

from moeplan.kernels.fit import Fit, FitError, fit_of, fits_of
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()


def recipes(form: str) -> list[str]:
    """Names of all recipes of a form."""
    folder: Path = CATALOG.roots[-1] / "kernels" / "recipes"
    return sorted(path.stem for path in folder.glob(f"{form}.*.yaml"))


def own_errors(recipe: str) -> dict[str, FitError]:
    """By GPU, the error on whole shapes left out."""
    return {folder: file.error for folder, file in fits_of(CATALOG, recipe).items() if file.gpus == (folder,)}


def carried(recipe: str) -> list[tuple[tuple[str, ...], str, FitError]]:
    """Parameters of which chips, on which chip, are how far off."""
    files = fits_of(CATALOG, recipe).values()
    return [(item.of, file.gpus[0], item.error) for file in files for item in file.carried]


def fit(recipe: str, folder: str) -> Fit:
    """A chip's or a generation's fit."""
    return fit_of(fits_of(CATALOG, recipe)[folder])
