"""What a step's time goes to."""

from __future__ import annotations

from moeplan.explain.operators import step_operators
from moeplan.kernels.origin import Origin
from moeplan.predict import Prediction


def resource_shares(step: Prediction) -> dict[str, float]:
    """Share of the step's exposed time by the resource that binds each operator; they add up to 1."""
    total: dict[str, float] = {}
    for operator in step_operators(step):
        name = operator.name if operator.name == "MTP drafts" else operator.resource
        total[name] = total.get(name, 0.0) + operator.exposed / float(step.seconds)
    return total


def measured_share(step: Prediction) -> float:
    """Share of the operators' time that rests on kernels measured on this GPU, at this shape or between two."""
    operators = step_operators(step)
    sure = sum(operator.seconds for operator in operators if operator.origin <= Origin.INTERPOLATED)
    return sure / sum(operator.seconds for operator in operators)
