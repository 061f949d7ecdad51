"""moeplan: plan the serving of Mixture-of-Experts models.

    from moeplan import Catalog, Predictor, Deployment

The public names load lazily, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "Acceptance": "moeplan.specs.deployment",
    "Catalog": "moeplan.specs.catalog",
    "Cluster": "moeplan.specs.cluster",
    "Deployment": "moeplan.specs.deployment",
    "Gpu": "moeplan.specs.gpu",
    "Infeasible": "moeplan.errors",
    "InputError": "moeplan.errors",
    "ModelSpec": "moeplan.specs.model",
    "MoeplanError": "moeplan.errors",
    "Nic": "moeplan.specs.cluster",
    "Precision": "moeplan.specs.deployment",
    "Prediction": "moeplan.predict",
    "Predictor": "moeplan.predict",
}
__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
