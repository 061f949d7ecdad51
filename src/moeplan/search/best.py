"""The best deployment under a promised speed per user, exhaustively on arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from moeplan.predict import Prediction, Predictor
from moeplan.search.space import Space
from moeplan.specs.deployment import Deployment

Binding = Literal["speed per user", "memory", "largest batch tried", "throughput peaks here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The winner on one cluster: its prediction in full, how many were tried, and what stops a larger batch."""

    prediction: Prediction
    tried: int
    feasible: int
    binding: Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Nothing meets the constraints: the nearest misses.

    fastest: the configuration that fits with the most tokens per second per user, None when none fits; leanest: the
    one that lacks the least memory, where none fits.
    """

    tried: int
    fastest: Prediction | None
    leanest: Prediction | None


def best(predictor: Predictor, space: Space, *, min_tps: float) -> Found | Missed:
    """Maximise tokens per second per GPU over the space, under memory and min_tps (accepted tokens/s per user).

    Ties go to the smaller batch, then to fewer GPUs, then to fewer drafts, then to the first precision and schedule.
    """
    tried = feasible = 0
    winner: tuple[float, Deployment] | None = None
    fastest: tuple[float, Deployment] | None = None
    leanest: tuple[float, Deployment] | None = None
    for deployment in space.slices():
        step = predictor.evaluate(deployment)
        shape = np.shape(step.seconds)
        fits = np.broadcast_to(step.fits, shape)
        speed, throughput = np.broadcast_to(step.tps_per_user, shape), np.broadcast_to(step.tps_per_gpu, shape)
        allowed = fits & (speed >= min_tps)
        tried += allowed.size
        feasible += int(np.count_nonzero(allowed))
        winner = _better(winner, np.where(allowed, throughput, -np.inf), deployment)
        fastest = _better(fastest, np.where(fits, speed, -np.inf), deployment)
        leanest = _better(leanest, np.broadcast_to(step.memory.free, shape), deployment)
    if winner is not None:
        chosen = predictor.predict(winner[1])
        binding = _binding(predictor, space, winner[1], min_tps)
        return Found(prediction=chosen, tried=tried, feasible=feasible, binding=binding)
    return Missed(
        tried=tried,
        fastest=predictor.predict(fastest[1]) if fastest is not None else None,
        leanest=predictor.predict(leanest[1]) if leanest is not None else None,
    )


def _better(
    held: tuple[float, Deployment] | None, scores: np.ndarray, grid: Deployment
) -> tuple[float, Deployment] | None:
    """Keep the higher score; a tie (within rounding) goes to the earlier one, so a smaller batch must come first."""
    by_batch = np.moveaxis(scores, 1, 0)  # smaller batch, then fewer GPUs, then fewer drafts
    top = float(by_batch.max())
    rounding = 1e-12 * abs(top)
    if not np.isfinite(top) or (held is not None and top <= held[0] + rounding):
        return held
    batch, count, draft = np.unravel_index(int(np.argmax(by_batch >= top - rounding)), by_batch.shape)
    return top, _point(grid, int(count), int(batch), int(draft))


def _point(grid: Deployment, count: int, batch: int, draft: int) -> Deployment:
    counts, batches, drafts = np.asarray(grid.ep), np.asarray(grid.batch), np.asarray(grid.drafts)
    return replace(grid, ep=int(counts[count, 0, 0]), batch=int(batches[0, batch, 0]), drafts=int(drafts[0, 0, draft]))


def _binding(predictor: Predictor, space: Space, chosen: Deployment, min_tps: float) -> Binding:
    """Ask the next larger batch why it is not the winner."""
    larger = [int(b) for b in space.batches_for(chosen.schedule) if b > float(chosen.batch)]
    if not larger:
        return "largest batch tried"
    step = predictor.evaluate(replace(chosen, batch=larger[0]))
    if not bool(step.fits):
        return "memory"
    return "speed per user" if float(step.tps_per_user) < min_tps else "throughput peaks here"
