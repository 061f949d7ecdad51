"""The best deployment under a promised speed per user, exhaustively on arrays, a piece of the space at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from moeplan.kinds import Array
from moeplan.predict import Prediction, Predictor, dispatchable
from moeplan.search.pareto import FrontPoint, pareto_front
from moeplan.search.space import Space
from moeplan.specs.deployment import Deployment

Binding = Literal["speed per user", "memory", "all-to-all limit", "largest batch tried", "throughput peaks here"]
Progress = Callable[[int, int], None]
TIE = 1e-12


class Found(Struct, frozen=True, kw_only=True):
    """The winner on one cluster: its prediction in full, how many were tried, and what stops a larger batch.

    front: what no other deployment beats in both speed per user and throughput per GPU, among those that fit in memory.
    complete: False when the search was interrupted.
    """

    prediction: Prediction
    tried: int
    feasible: int
    binding: Binding
    front: tuple[FrontPoint, ...] = ()
    complete: bool = True


class Missed(Struct, frozen=True, kw_only=True):
    """Nothing meets the constraints: the nearest misses.

    fastest: the configuration that fits with the most tokens per second per user, None when none fits; leanest: the
    one that lacks the least memory, where none fits.
    """

    tried: int
    fastest: Prediction | None
    leanest: Prediction | None
    front: tuple[FrontPoint, ...] = ()
    complete: bool = True


class _Tally(Struct):
    """What is kept of the pieces walked so far. turns: which precision, spread and schedule come first in a tie."""

    turns: dict[Hashable, int]
    tried: int = 0
    feasible: int = 0
    winner: tuple[float, Deployment] | None = None
    fastest: tuple[float, Deployment] | None = None
    leanest: tuple[float, Deployment] | None = None
    front: list[FrontPoint] = field(default_factory=list)
    complete: bool = True

    def rank(self, point: Deployment) -> tuple[float, ...]:
        """What a tie is decided by: the lowest wins."""
        names = (point.precision, point.schedule, point.tp, point.moe_tp, point.exchange)
        return self.turns[names], float(point.batch), float(point.gpus), float(point.drafts)

    def better(
        self, held: tuple[float, Deployment] | None, by_batch: Array, within: Array, grid: Deployment
    ) -> tuple[float, Deployment] | None:
        """Keep the higher of the scores by batch; a tie goes to the lower rank.

        `within`, of shape (counts, batches, drafts), tells which GPUs and drafts give a batch its score: the largest.
        """
        top = float(by_batch.max())
        if not np.isfinite(top):
            return held
        slack = TIE * abs(top)
        if held is not None and top < held[0] - slack:
            return held
        point = _point(grid, within, int(np.argmax(by_batch >= top - slack)))
        if held is None or top > held[0] + slack:
            return top, point
        # A choice of names has many pieces, between those of others: a tie in a later one may still come before.
        return (top, point) if self.rank(point) < self.rank(held[1]) else held


def best(predictor: Predictor, space: Space, *, min_tps: float, progress: Progress | None = None) -> Found | Missed:
    """Maximise tokens per second per GPU over the space, under memory and min_tps (accepted tokens/s per user).

    Ties go to the first precision, spread and schedule, in them to the smaller batch, fewer GPUs, fewer drafts.
    `progress` is called with (tried, all) after each piece; an interrupt ends the walk and marks the answer incomplete.
    """
    choices = itertools.product(space.precisions, space.spreads, space.schedules)
    tally = _Tally({(p, n, s.tp, s.moe_tp, s.exchange): turn for turn, (p, s, n) in enumerate(choices)})
    try:
        for piece in space.pieces():
            _walk(predictor, piece, min_tps, tally)
            if progress is not None:
                progress(tally.tried, space.size)
    except KeyboardInterrupt:
        if not (tally.winner or tally.fastest or tally.leanest):
            raise
        tally.complete = False
    front = tuple(sorted(tally.front, key=lambda point: point.tps_per_user))
    if tally.winner is None:
        return Missed(
            tried=tally.tried,
            fastest=predictor.predict(tally.fastest[1]) if tally.fastest is not None else None,
            leanest=predictor.predict(tally.leanest[1]) if tally.leanest is not None else None,
            front=front,
            complete=tally.complete,
        )
    chosen = tally.winner[1]
    return Found(
        prediction=predictor.predict(chosen),
        tried=tally.tried,
        feasible=tally.feasible,
        binding=_binding(predictor, space, chosen, min_tps),
        front=front,
        complete=tally.complete,
    )


def _walk(predictor: Predictor, piece: Deployment, min_tps: float, tally: _Tally) -> None:
    """Evaluate a piece and keep what counts.

    Throughput is batch x speed, so of two deployments with the same batch the faster one is better in both: the fastest
    that fits of every batch is all that the winner and the front can be made of.
    """
    step = predictor.evaluate(piece)
    shape = np.broadcast_shapes(*(np.shape(axis) for axis in (piece.ep, piece.batch, piece.drafts)))
    free = np.broadcast_to(np.where(dispatchable(step), step.memory.free, -np.inf), shape)
    speed = np.where(free >= 0.0, step.tps_per_user, -np.inf)
    tally.tried += speed.size
    tally.feasible += int(np.count_nonzero(speed >= min_tps))
    fastest = speed.max(axis=(0, 2))
    if not np.any(np.isfinite(fastest)):
        if tally.fastest is None:
            tally.leanest = tally.better(tally.leanest, free.max(axis=(0, 2)), free, piece)
        return
    tally.fastest = tally.better(tally.fastest, fastest, speed, piece)
    allowed = np.where(fastest >= min_tps, np.asarray(piece.batch).ravel() / piece.tp * fastest, -np.inf)
    tally.winner = tally.better(tally.winner, allowed, speed, piece)
    tally.front = _merge(tally.front, fastest, speed, piece)


def _point(grid: Deployment, within: Array, batch: int) -> Deployment:
    """The deployment of one batch with the largest value; ties to fewer GPUs, then fewer drafts."""
    slab = within[:, batch, :]
    count, draft = np.unravel_index(int(np.argmax(slab >= slab.max() * (1 - np.sign(slab.max()) * TIE))), slab.shape)
    counts, batches, drafts = np.asarray(grid.ep), np.asarray(grid.batch), np.asarray(grid.drafts)
    redundant = None if grid.redundant is None else int(np.asarray(grid.redundant)[count, 0, 0])
    return replace(
        grid,
        ep=int(counts[count, 0, 0]),
        batch=int(batches[0, batch, 0]),
        drafts=int(drafts[0, 0, draft]),
        redundant=redundant,
    )


def _merge(front: list[FrontPoint], fastest: Array, speed: Array, grid: Deployment) -> list[FrontPoint]:
    """The front of what is held and of the fastest of every batch of a piece."""
    batches = np.asarray(grid.batch).ravel()
    places = np.flatnonzero(np.isfinite(fastest))
    held = np.array([[point.tps_per_user, point.tps_per_gpu] for point in front]).reshape(-1, 2)
    new = np.stack([fastest[places], batches[places] / grid.tp * fastest[places]], axis=1)
    kept = pareto_front(np.concatenate([held, new]))
    return [
        front[index] if index < len(front) else _front_point(grid, speed, int(places[index - len(front)]))
        for index in kept
    ]


def _front_point(grid: Deployment, speed: Array, batch: int) -> FrontPoint:
    point = _point(grid, speed, batch)
    fastest = float(speed[:, batch, :].max())
    return FrontPoint(
        tps_per_user=fastest,
        tps_per_gpu=float(point.batch) / point.tp * fastest,
        batch=int(point.batch),
        count=int(point.gpus),
        layout=point.layout,
        exchange=point.exchange,
        tp=int(point.tp),
        redundant=None if point.redundant is None else int(point.redundant),
        drafts=int(point.drafts),
        schedule=point.schedule,
        kv=point.precision.kv.name,
        core=point.precision.core.name,
    )


def _binding(predictor: Predictor, space: Space, chosen: Deployment, min_tps: float) -> Binding:
    """Ask the next larger batch why it is not the winner."""
    larger = [int(b) for b in space.batches_for(chosen.schedule, chosen.tp) if b > float(chosen.batch)]
    if not larger:
        return "largest batch tried"
    step = predictor.evaluate(replace(chosen, batch=larger[0]))
    if not bool(dispatchable(step)):
        return "all-to-all limit"
    if not bool(step.fits):
        return "memory"
    return "speed per user" if float(step.tps_per_user) < min_tps else "throughput peaks here"
