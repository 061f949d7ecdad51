"""What cutting attention elsewhere would be worth to two-batch overlap (throughput article, section 7)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from moeplan.layers.layer import attention_operators
from moeplan.predict import GroupTime, Prediction, Predictor
from moeplan.specs.schedule import schedule, schedule_names


class CutGain(Struct, frozen=True, kw_only=True):
    """gain: of the throughput, 0.02 for 2 %; before: the operators that open the second half, over kinds of layers.

    schedule: the one that cuts there. tried: places to cut, the step's own among them, of the kind of layer with most.
    """

    gain: float
    before: tuple[str, ...]
    schedule: str
    tried: int
    prediction: Prediction


def cut_gain(predictor: Predictor, step: Prediction) -> CutGain | None:
    """The best cut of a scalar prediction; None where no schedule searches the cuts of its one."""
    name = next((item for item in schedule_names() if schedule(item).refines == step.deployment.schedule), None)
    if name is None:
        return None
    best = predictor.predict(replace(step.deployment, schedule=name))
    opened = [opens(group) for group in best.groups if group.group.ffn == "moe"]
    return CutGain(
        gain=float(best.tps_per_gpu) / float(step.tps_per_gpu) - 1.0,
        before=tuple(dict.fromkeys(opened)),
        schedule=name,
        tried=max(len(attention_operators(group.layer)) + 1 for group in step.groups if group.group.ffn == "moe"),
        prediction=best,
    )


def opens(group: GroupTime) -> str:
    """The operator that opens the second half of attention; «dispatch» where all of it is in the first."""
    costs = group.layer.stages["attention_back"].costs
    return costs[0].name if costs and costs[0].name != "launch gaps" else "dispatch"
