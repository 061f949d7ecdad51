"""Decode steps of every layout over the requests in all, at one instance size and context, and where they cross."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from moeplan.errors import InputError
from moeplan.explain.step_band import Band, ratio_band, step_band
from moeplan.kinds import Array
from moeplan.predict import Prediction, Predictor, dispatchable
from moeplan.specs.deployment import Deployment, allowed_schedules
from moeplan.specs.schedule import schedule
from moeplan.specs.spread import Spread

SINGLY = 64  # requests up to which every number is asked


class LayoutPoint(Struct, frozen=True, kw_only=True):
    """One step: requests in all, of which the fullest attention rank has `batch`; the bands are p10–p90."""

    requests: int
    batch: int
    step: Prediction

    @property
    def band(self) -> Band:
        """Of the step's seconds."""
        return step_band(self.step)

    @property
    def tps_per_gpu(self) -> float:
        """Output tokens per second per GPU of the requests there are."""
        return self.requests * float(self.step.tps_per_user) / float(self.step.deployment.gpus)

    @property
    def user_band(self) -> Band:
        """Of the tokens per second of a user."""
        return self.band.of_rate(float(self.step.tokens_per_step))

    @property
    def gpu_band(self) -> Band:
        """Of the tokens per second per GPU."""
        return self.band.of_rate(self.requests * float(self.step.tokens_per_step) / float(self.step.deployment.gpus))


class LayoutCurve(Struct, frozen=True, eq=False, kw_only=True, dict=True):
    """One layout over `requests` (n,): the fullest rank's batch, seconds at the best schedule, inf where none fits.

    ends: what refuses more requests than the last that fits: memory, the all-to-all, or none that was asked for.
    """

    name: str
    deployment: Deployment  # its names; batch and schedule are of no point
    predictor: Predictor
    requests: Array
    batches: Array
    seconds: Array
    schedules: tuple[str, ...]
    ends: str

    @property
    def by_heads(self) -> bool:
        """Whether all GPUs share each request's attention."""
        return self.deployment.tp == int(self.deployment.gpus) > 1

    @cached_property
    def most(self) -> int:
        """The most requests asked for that fit, 0 where none do."""
        fitting = self.requests[np.isfinite(self.seconds)]
        return int(fitting.max()) if fitting.size else 0

    def seconds_at(self, requests: int) -> float | None:
        """Seconds of a step with so many requests, one of those asked for; None where they do not fit."""
        seconds = float(self.seconds[self._place(requests)])
        return seconds if math.isfinite(seconds) else None

    def at(self, requests: int) -> LayoutPoint | None:
        """The step with so many requests, in full; None where they do not fit."""
        index = self._place(requests)
        if not math.isfinite(self.seconds[index]):
            return None
        batch = int(self.batches[index])
        step = self.predictor.predict(replace(self.deployment, batch=batch, schedule=self.schedules[index]))
        return LayoutPoint(requests=requests, batch=batch, step=step)

    def _place(self, requests: int) -> int:
        return int(np.searchsorted(self.requests, requests))


class Crossing(Struct, frozen=True, kw_only=True):
    """By heads against by requests, the fastest of each at every number of requests.

    heads, upto: which is fastest by heads, and up to how many requests, None nowhere; requests, start: which by
    requests, and from how many on, None nowhere. fits: whether by heads fits at `start`: where not, memory ends it and
    not speed. undecided: the range of requests in which the p10–p90 band of the ratio of the two holds 1, None nowhere.
    """

    heads: str | None
    upto: int | None
    requests: str | None
    start: int | None
    fits: bool
    undecided: tuple[int, int] | None


class LayoutPanel(Struct, frozen=True, kw_only=True):
    """All layouts at one instance size and context; refused: which layouts, and why."""

    gpus: int
    context: int
    curves: tuple[LayoutCurve, ...]
    refused: tuple[tuple[str, str], ...]
    crossing: Crossing | None  # None where there is but one kind of layout, or none fits

    def fastest(self, requests: int) -> LayoutCurve | None:
        """The fastest layout with so many requests."""
        return _fastest(self.curves, requests)


def requests_grid(gpus: int, largest: int, asked: Sequence[int] = ()) -> Array:
    """Requests to ask for: every number up to SINGLY or the GPUs, then full ranks and powers of two; those asked for.

    largest: most requests per GPU.
    """
    top = max(gpus * largest, *asked) if asked else gpus * largest
    full = gpus * np.arange(1, largest + 1)
    powers = 2 ** np.arange(int(math.log2(top)) + 1)
    every = np.concatenate([np.arange(1, max(gpus, SINGLY) + 1), full, powers, np.asarray(asked, dtype=int)])
    found: Array = np.unique(every[every <= top]).astype(float)
    return found


def layout_curve(
    predictor: Predictor, base: Deployment, spread: Spread, requests: Array, *, name: str, gpus: int
) -> LayoutCurve:
    """One layout at the faster of the schedules of SCHEDULES that it allows.

    Requests are dealt to the attention ranks; the step is that of the fullest, ⌈requests / ranks⌉, on every rank, as
    engines pad it: with fewer requests than ranks, and between full ranks, its speed is a lower estimate.

    Raises InputError where the GPU or the allowed sources refuse the layout.
    """
    deployment = replace(
        base, ep=gpus // spread.moe_tp, tp=spread.tp, moe_tp=spread.moe_tp, exchange=spread.exchange, batch=1
    )
    batches = np.ceil(requests / (gpus / spread.tp))
    every, where = np.unique(batches, return_inverse=True)
    best = np.full(every.size, np.inf)
    chosen = np.zeros(every.size, dtype=int)
    room, sendable = np.zeros(every.size, dtype=bool), np.zeros(every.size, dtype=bool)
    plans = allowed_schedules(deployment, predictor.model)
    for index, plan in enumerate(plans):
        fitting = every % schedule(plan).micro_batches == 0
        if not fitting.any():
            continue
        step = predictor.evaluate(replace(deployment, batch=every[fitting], schedule=plan))
        shape = (int(fitting.sum()),)
        room[fitting] = np.broadcast_to(step.fits, shape)
        sendable[fitting] = np.broadcast_to(dispatchable(step), shape)
        seconds = np.where(room[fitting] & sendable[fitting], np.broadcast_to(step.seconds, shape), np.inf)
        faster = seconds < best[fitting]
        places = np.flatnonzero(fitting)[faster]
        best[places], chosen[places] = seconds[faster], index
    return LayoutCurve(
        name=name,
        deployment=deployment,
        predictor=predictor,
        requests=requests,
        batches=batches,
        seconds=best[where],
        schedules=tuple(plans[index] for index in chosen[where]),
        ends=_end(best, room, sendable),
    )


def _end(seconds: Array, room: Array, sendable: Array) -> str:
    """What refuses the first batch after the last that fits."""
    fits = np.flatnonzero(np.isfinite(seconds))
    after = int(fits[-1]) + 1 if fits.size else 0
    if after == seconds.size:
        return "largest asked"
    return "memory" if not room[after] else "all-to-all limit" if not sendable[after] else "schedule"


def layout_panel(
    predictor: Predictor,
    base: Deployment,
    spreads: Sequence[tuple[str, Spread]],
    requests: Array,
    *,
    gpus: int,
    refused: Sequence[tuple[str, str]] = (),
) -> LayoutPanel:
    """Every layout by its name at one size and context, and where by heads and by requests cross."""
    curves, out = [], list(refused)
    for name, spread in spreads:
        try:
            curve = layout_curve(predictor, base, spread, requests, name=name, gpus=gpus)
        except InputError as error:
            out.append((name, "; ".join(f"{fault.path} {fault.problem}" for fault in error.faults)))
            continue
        if curve.most:
            curves.append(curve)
        else:
            out.append((name, "not one request fits in memory" if curve.ends == "memory" else f"refused: {curve.ends}"))
    return LayoutPanel(
        gpus=gpus,
        context=int(np.max(base.context)),
        curves=tuple(curves),
        refused=tuple(out),
        crossing=_crossing(curves, requests),
    )


def _crossing(curves: Sequence[LayoutCurve], requests: Array) -> Crossing | None:
    heads = [curve for curve in curves if curve.by_heads]
    others = [curve for curve in curves if not curve.by_heads]
    if not heads or not others:
        return None
    left = np.min([curve.seconds for curve in heads], axis=0)
    right = np.min([curve.seconds for curve in others], axis=0)
    faster = np.flatnonzero(left < right)
    upto = int(faster[-1]) if faster.size else None
    slower = np.flatnonzero((right <= left) & np.isfinite(right))
    slower = slower[slower > (-1 if upto is None else upto)]
    start = int(slower[0]) if slower.size else None

    def of(group: Sequence[LayoutCurve], index: int | None) -> str | None:
        curve = None if index is None else _fastest(group, int(requests[index]))
        return None if curve is None else curve.name

    return Crossing(
        heads=of(heads, upto),
        upto=None if upto is None else int(requests[upto]),
        requests=of(others, start),
        start=None if start is None else int(requests[start]),
        fits=start is not None and math.isfinite(left[start]),
        undecided=_undecided(heads, others, requests, np.flatnonzero(np.isfinite(left) & np.isfinite(right)), upto),
    )


def _undecided(
    heads: Sequence[LayoutCurve],
    others: Sequence[LayoutCurve],
    requests: Array,
    both: NDArray[np.intp],
    upto: int | None,
) -> tuple[int, int] | None:
    """From the crossing outwards, by bisection on the requests asked for, how far the band of the ratio holds 1."""
    if not both.size:
        return None
    known: dict[int, bool] = {}

    def open_at(place: int) -> bool:
        if place not in known:
            count = int(requests[both[place]])
            first, second = _fastest(heads, count), _fastest(others, count)
            assert first is not None, "both kinds fit here"
            assert second is not None, "both kinds fit here"
            one, other = first.at(count), second.at(count)
            assert one is not None, "it has a time"
            assert other is not None, "it has a time"
            known[place] = ratio_band(one.step, other.step).holds(1.0)
        return known[place]

    last = both.size - 1
    at = int(np.searchsorted(both, -1 if upto is None else upto))
    middle = next((place for place in (min(at, last), min(at + 1, last)) if open_at(place)), None)
    if middle is None:
        return None
    low = _edge(open_at, middle, 0)
    high = _edge(open_at, middle, last)
    return int(requests[both[low]]), int(requests[both[high]])


def _edge(holds: Callable[[int], bool], inside: int, end: int) -> int:
    """The place farthest from `inside` towards `end` at which it still holds, by bisection."""
    if holds(end):
        return end
    outside = end
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _fastest(curves: Sequence[LayoutCurve], requests: int) -> LayoutCurve | None:
    found = None
    least = math.inf
    for curve in curves:
        seconds = curve.seconds_at(requests)
        if seconds is not None and seconds < least:
            found, least = curve, seconds
    return found
