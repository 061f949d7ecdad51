"""One line that says what runs where."""

from __future__ import annotations

from moeplan.predict import Prediction


def headline(step: Prediction) -> str:
    """Model, GPUs, EP size, batch, drafts, schedule, context."""
    deployment = step.deployment
    return (
        f"{step.model.name} on {int(deployment.ep)} × {step.cluster.gpu.name} with {step.cluster.nic.name}, "
        f"EP{int(deployment.ep)} = DP{int(deployment.ep)}, batch {int(deployment.batch)} per GPU, "
        f"{int(deployment.drafts)} MTP draft{'s' if deployment.drafts != 1 else ''}, {deployment.schedule}, "
        f"context {float(deployment.context):,.0f} tokens"
    )
