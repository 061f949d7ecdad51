"""What placing experts by their loads is worth to a step, by the step model and by the article's formula."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.explain.batch_article import gain_of_balancing
from moeplan.kinds import Real
from moeplan.predict import Prediction, Predictor, dispatchable
from moeplan.specs.deployment import Deployment, RoutedLoads, allowed_schedules

BALANCED_STAGES = ("routed", "dispatch", "combine")
TRIED = np.arange(2.0, 1025.0, 2.0)  # batches that both schedules take


class PlacementGain(Struct, frozen=True, kw_only=True, eq=False):
    """One deployment with experts as they lie at first and as they are placed."""

    before: Prediction
    after: Prediction

    @property
    def gain(self) -> float:
        """Of the step, by the step model: rows, received bytes and active experts of the busiest rank put through it.

        Below 1 where a hot expert is read once by many tokens: few tokens then read fewer experts than even ones do.
        """
        return float(self.before.seconds / self.after.seconds)

    @property
    def skews(self) -> tuple[float, float]:
        """S0 and S1: rows of the busiest rank over the mean, sampling included, in a micro-batch."""
        return skew(self.before), skew(self.after)

    @property
    def share(self) -> float:
        """f: the share of the step before that goes to experts and their all-to-all, as far as nothing hides it."""
        return balanced_share(self.before)

    @property
    def formula(self) -> float:
        """1 / (f/(S0/S1) + 1 − f) (batch article, EPLB)."""
        before, after = self.skews
        return float(gain_of_balancing(self.share, before / after))


class ServedPoint(Struct, frozen=True, kw_only=True):
    """The most that a number of redundant slots lets a GPU serve: batch per rank, tok/s/GPU; 0 where nothing does."""

    redundant: int
    batch: int
    tps_per_gpu: float
    tps_per_user: float
    kv_bytes: float  # free for the cache on a GPU beside all else


class BalancedSteps(Struct, frozen=True, kw_only=True):
    """What balancing gives to steps of one context, cached tokens per request.

    gains: at each batch that fits; served: by redundant slots, and the number worth having.
    """

    context: int
    gains: list[PlacementGain]
    served: list[ServedPoint]
    best: ServedPoint | None


def skew(step: Prediction) -> float:
    """Rows of the busiest rank over the mean; 1 for a dense model."""
    load, slots = step.load, step.slots
    if load is None or slots is None:
        return 1.0
    return float(load.rows / (load.mean_rows_per_slot * slots.total / slots.ep))


def balanced_share(step: Prediction) -> float:
    """Exposed time of experts and their exchange over the step."""
    spent = sum(
        float(group.group.count * group.timeline.exposed[name])
        for group in step.groups
        for name in group.layer.stages
        if name in BALANCED_STAGES
    )
    return spent / float(step.seconds)


def placement_gain(predictor: Predictor, step: Prediction) -> PlacementGain | None:
    """The step with its experts in order and balanced, one of which it is; None without loads or ranks to balance."""
    routed = step.deployment.routed
    if routed is None or float(step.deployment.ep) == 1:
        return None
    other = predictor.predict(replace(step.deployment, routed=routed.placed(balanced=not routed.balanced)))
    return PlacementGain(before=other, after=step) if routed.balanced else PlacementGain(before=step, after=other)


def gains_by_batch(
    predictor: Predictor,
    deployment: Deployment,
    *,
    before: RoutedLoads,
    after: RoutedLoads,
    batches: Sequence[int],
) -> list[PlacementGain]:
    """At each batch per rank that fits in memory, each placement with its faster schedule."""
    found = []
    for batch in batches:
        pair = [predictor.fastest(replace(deployment, batch=batch, routed=one)) for one in (before, after)]
        if bool(pair[1].fits) and bool(dispatchable(pair[1])):
            found.append(PlacementGain(before=pair[0], after=pair[1]))
    return found


def served(
    predictor: Predictor, deployment: Deployment, *, redundant: Sequence[int], min_tps: float | None
) -> list[ServedPoint]:
    """What each number of redundant slots serves: they even the ranks out, and take memory from the cache.

    The best of the batches TRIED and both schedules, under memory and min_tps (tokens per second per user), if given.
    """
    found = []
    for number in redundant:
        best = ServedPoint(redundant=number, batch=0, tps_per_gpu=0.0, tps_per_user=0.0, kv_bytes=0.0)
        for name in allowed_schedules(deployment, predictor.model):
            step = predictor.evaluate(replace(deployment, batch=TRIED, redundant=number, schedule=name))
            allowed = np.logical_and(step.fits, dispatchable(step))
            if min_tps is not None:
                allowed = np.logical_and(allowed, np.greater_equal(step.tps_per_user, min_tps))
            served_tokens = np.where(allowed, step.tps_per_gpu, 0.0)
            place = int(np.argmax(served_tokens))
            if served_tokens[place] > best.tps_per_gpu:
                best = ServedPoint(
                    redundant=number,
                    batch=int(TRIED[place]),
                    tps_per_gpu=float(served_tokens[place]),
                    tps_per_user=_at(step.tps_per_user, place),
                    kv_bytes=_at(step.memory.kv_cache, place) + _at(step.memory.free, place),
                )
        found.append(best)
    return found


def most_served(points: Sequence[ServedPoint], *, least: float = 0.005) -> ServedPoint | None:
    """The fewest redundant slots with which a GPU serves, but for `least`, as much as with any number.

    None where nothing can be served with any.
    """
    most = max(point.tps_per_gpu for point in points)
    if most == 0.0:
        return None
    return next(point for point in points if point.tps_per_gpu >= most * (1.0 - least))


def _at(values: Real, place: int) -> float:
    return float(np.broadcast_to(values, TRIED.shape)[place])
