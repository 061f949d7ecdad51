"""The distance to the limit: from the roofline of the whole step to the prediction, one loss at a time."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from moeplan.ops.cost import Cost
from moeplan.predict import Prediction, Predictor


class Rung(Struct, frozen=True, kw_only=True):
    """seconds that this loss adds to the step; the first rung is the limit itself."""

    name: str
    seconds: float
    meaning: str


def ladder(predictor: Predictor, step: Prediction) -> list[Rung]:
    """Climb from one perfect kernel to the predicted step; the rungs add up to it. `step` holds scalars.

    Each rung takes the one before and drops one idealisation, so the order of the rungs is a choice: what a rung costs
    depends on those below it.
    """
    gpu = step.cluster.gpu
    bare = replace(step.deployment, corrections={})  # a correction by hand is no property of the chip
    whole = predictor.evaluate(replace(bare, schedule="naive", load="even"))
    even, fullest = predictor.evaluate(replace(bare, load="even")), predictor.evaluate(bare)
    compute, memory, wire = (
        sum(copies * _ideal(cost, resource) for cost, copies in _costs(whole))
        for resource in ("compute", "memory", "network")
    )
    # Until the rung that exposes it, communication runs beside everything else: no step is shorter than the wire.
    climbed = [
        (
            "one perfect kernel",
            max(compute, memory, wire),
            f"all FLOP, bytes and messages at {gpu.name}'s peaks at once",
        ),
        ("operators apart", max(_sum_ideal(whole), wire), "each operator waits for its own slowest resource"),
        ("micro-batches", max(_sum_ideal(even), wire), "a split batch reads weights twice and fills tiles less"),
        (
            "fullest rank",
            max(_sum_ideal(fullest), wire),
            "experts' rows are uneven over the ranks: all wait for the fullest",
        ),
        ("tile padding", max(_sum_ideal(fullest, padded=True), wire), "tiles are whole, whatever the rows in them"),
        ("kernel efficiency", max(_sum_busy(step, floors=False), wire), "kernels reach a part of the peaks"),
        ("floors and launches", max(_sum_busy(step, floors=True), wire), "no kernel is shorter than its floor; gaps"),
        (
            "exposed communication",
            float(step.seconds) - float(step.drafting) - _overhead(step),
            "what no compute hides",
        ),
        ("MTP drafts", float(step.seconds) - _overhead(step), "the passes of the draft module"),
        ("step overhead", float(step.seconds), "sampling, scheduling"),
    ]
    rungs, reached = [], 0.0
    for name, seconds, meaning in climbed:
        rungs.append(Rung(name=name, seconds=seconds - reached, meaning=meaning))
        reached = seconds
    return rungs


def _costs(step: Prediction) -> Iterator[tuple[Cost, float]]:
    """Every operator of one step and how often it runs; drafts and the constant overhead apart."""
    for group in step.groups:
        copies = float(group.timeline.micro_batches * group.group.count)
        for stage in group.layer.stages.values():
            yield from ((cost, copies) for cost in stage.costs)
    yield from ((cost, 1.0) for cost in step.outside if cost.name != "step_overhead")


def _ideal(cost: Cost, resource: str, *, padded: bool = False) -> float:
    """Seconds of one resource at its peak: the part times the efficiency it was divided by, padding left out or in."""
    for key, seconds in cost.parts.items():
        if key == resource:
            asked = 1.0 if padded or resource != "compute" else float(cost.padding)
            return float(seconds) * min(float(cost.efficiencies.get(key, 1.0)), 1.0) / asked
    return 0.0


def _sum_ideal(step: Prediction, *, padded: bool = False) -> float:
    """Compute operators one after another, each on its own roofline; communication hidden."""
    return sum(
        copies * max(_ideal(cost, "compute", padded=padded), _ideal(cost, "memory"))
        for cost, copies in _costs(step)
        if cost.lane == "compute"
    )


def _sum_busy(step: Prediction, *, floors: bool) -> float:
    """Compute operators one after another as predicted, with or without their floors and launch gaps."""
    total = 0.0
    for cost, copies in _costs(step):
        if cost.lane == "compute":
            total += copies * (float(cost.seconds) - (0.0 if floors else float(cost.parts.get("floor", 0.0))))
    return total


def _overhead(step: Prediction) -> float:
    return sum(float(cost.seconds) for cost in step.outside if cost.name == "step_overhead")
