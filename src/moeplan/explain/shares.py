"""What a step's time goes to."""

from __future__ import annotations

from moeplan.predict import Prediction


def resource_shares(step: Prediction) -> dict[str, float]:
    """Share of the step's exposed time by the resource that binds each operator."""
    total: dict[str, float] = {}
    for group in step.groups:
        for name, stage in group.layer.stages.items():
            busy = float(stage.seconds) * group.timeline.micro_batches
            scale = float(group.timeline.exposed[name]) / busy if busy else 0.0
            for cost in stage.costs:
                seconds = float(cost.seconds) * group.timeline.micro_batches * scale * group.group.count
                total[cost.bound_by] = total.get(cost.bound_by, 0.0) + seconds
    for cost in step.outside:
        total[cost.bound_by] = total.get(cost.bound_by, 0.0) + float(cost.seconds)
    if float(step.drafting):
        total["MTP draft"] = float(step.drafting)
    names = {"floor": "launches and floors"}
    return {names.get(key, key): seconds / float(step.seconds) for key, seconds in total.items()}
