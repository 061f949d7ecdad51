"""What a step's time goes to."""

from __future__ import annotations

from moeplan.explain.operators import step_operators
from moeplan.predict import Prediction


def resource_shares(step: Prediction) -> dict[str, float]:
    """Share of the step's exposed time by the resource that binds each operator; they add up to 1."""
    total: dict[str, float] = {}
    for operator in step_operators(step):
        name = operator.name if operator.name == "MTP drafts" else operator.resource
        total[name] = total.get(name, 0.0) + operator.exposed / float(step.seconds)
    return total
