"""The walk in pieces: every configuration once, the answer of nested loops whatever the piece, an interrupted walk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.engines.rules.memory_rule import MemoryRule, memory_rule
from moeplan.predict import Predictor
from moeplan.search.best import Found, Missed, best
from moeplan.search.space import Space
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import SCHEDULES, Acceptance, Deployment, Precision, ScheduleName
from moeplan.specs.model import ModelSpec

CATALOG = Catalog.standard()
MODEL = CATALOG.model("deepseek-v3")
PRECISIONS = {name: Precision.of(MODEL, kv=name) for name in ("bf16", "fp8")}
PIECES = (1, 7, 100, 65_536)


class Point(NamedTuple):
    """A configuration, in the order in which ties are decided."""

    kv: str
    schedule: ScheduleName
    batch: int
    gpus: int
    drafts: int


def space(
    counts: tuple[int, ...] = (8, 16, 24),
    batches: tuple[int, ...] = (1, 2, 3, 4, 6),
    drafts: tuple[int, ...] = (0, 1),
    kv: tuple[str, ...] = ("bf16", "fp8"),
    schedules: tuple[ScheduleName, ...] = SCHEDULES,
) -> Space:
    return Space(
        counts=counts,
        batches=batches,
        drafts=drafts,
        precisions=tuple(PRECISIONS[name] for name in kv),
        schedules=schedules,
        context=4000.0,
        acceptance=Acceptance.geometric(0.85, 3, "this test"),
    )


def every(grid: Space) -> Iterator[Point]:
    """All configurations by nested loops."""
    for precision, schedule, batch, count, drafts in itertools.product(
        grid.precisions, grid.schedules, grid.batches, grid.counts, grid.drafts
    ):
        if schedule == "naive" or (batch % 2 == 0 and count > 1):
            yield Point(precision.kv.name, schedule, batch, count, drafts)


def points(piece: Deployment) -> list[Point]:
    """The configurations of one piece."""
    axes = np.broadcast_arrays(piece.batch, piece.ep, piece.drafts)
    return [
        Point(piece.precision.kv.name, piece.schedule, int(batch), int(count), int(drafts))
        for batch, count, drafts in zip(*(axis.ravel() for axis in axes), strict=True)
    ]


@pytest.fixture(params=PIECES)
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("moeplan.search.space.PIECE", request.param)
    return int(request.param)


@pytest.mark.parametrize(
    "grid",
    [
        space(),
        space(counts=(1,), batches=(1,), drafts=(0,), kv=("bf16",), schedules=("naive",)),
        space(counts=(1, 2), batches=(1, 2)),
        space(counts=tuple(range(1, 12)), batches=tuple(range(1, 40)), drafts=(0, 1, 3)),
        space(counts=(320,), batches=tuple(range(1, 200)), schedules=("two-batch",)),
        space(counts=tuple(range(1, 150)), batches=(3, 8), kv=("fp8",)),
        space(batches=(1, 3, 5)),  # two-batch has none
    ],
    ids=["small", "one", "node", "wide", "row", "column", "odd"],
)
def test_pieces_cover_every_configuration_once(grid: Space, piece: int) -> None:
    pieces = list(grid.pieces())
    walked = [point for deployment in pieces for point in points(deployment)]
    assert sorted(walked) == sorted(every(grid))
    assert len(walked) == grid.size
    assert all(len(points(deployment)) <= max(piece, len(grid.drafts)) for deployment in pieces)
    for deployment in pieces:
        assert (deployment.context, deployment.acceptance) == (grid.context, grid.acceptance)


# --- against nested loops over made-up figures, where ties are common -----------------------------------------------


class Step(Struct, frozen=True):
    """What the search looks at of a prediction."""

    deployment: Deployment
    tps_per_user: Any
    free: Any
    rule: MemoryRule
    model: ModelSpec = MODEL

    @property
    def memory(self) -> Step:
        return self

    @property
    def fits(self) -> Any:
        return np.greater_equal(self.free, 0)


class MadeUp:
    """A predictor that looks up speed and free memory in a table; the all-to-all takes at most `most` tokens."""

    def __init__(self, speed: dict[Point, float], free: dict[Point, float], most: int) -> None:
        self.speed, self.free = speed, free
        self.rule = replace(memory_rule(CATALOG, "sglang"), dispatch_tokens_default=1, dispatch_tokens_most=most)

    def evaluate(self, deployment: Deployment) -> Step:
        kv, schedule = deployment.precision.kv.name, deployment.schedule

        def look(table: dict[Point, float]) -> Any:
            return np.vectorize(
                lambda batch, count, drafts: table[Point(kv, schedule, int(batch), int(count), int(drafts))],
                otypes=[float],
            )(deployment.batch, deployment.ep, deployment.drafts)

        return Step(deployment, look(self.speed), look(self.free), self.rule)

    predict = evaluate


class World(Struct, frozen=True):
    grid: Space
    speed: dict[Point, float]
    free: dict[Point, float]
    most: int

    @property
    def predictor(self) -> Predictor:
        return cast(Predictor, MadeUp(self.speed, self.free, self.most))

    def sendable(self, point: Point) -> bool:
        return point.gpus == 1 or point.batch * (1 + point.drafts) <= self.most

    def throughput(self, point: Point) -> float:
        return point.batch * self.speed[point]


@st.composite
def worlds(draw: st.DrawFn, most: tuple[int, ...] = (8, 12, 10_000)) -> World:
    def some(values: list[int], most: int) -> tuple[int, ...]:
        return tuple(sorted(draw(st.sets(st.sampled_from(values), min_size=1, max_size=most))))

    grid = space(
        counts=(*some([1, 8, 16], 2), 24),
        batches=(*some([1, 2], 2), *some([3, 4, 6, 8], 3), 12),
        drafts=some([0, 1, 2], 2),
        kv=draw(st.sampled_from([("bf16",), ("fp8", "bf16"), ("bf16", "fp8")])),
        schedules=draw(st.sampled_from([("naive",), ("two-batch",), SCHEDULES])),
    )
    every_point = list(every(grid))
    count = len(every_point)
    speeds = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0, 6.0]), min_size=count, max_size=count))
    least = draw(st.sampled_from([-2, -2, -9]))
    frees = draw(st.lists(st.integers(least, -1 if least == -9 else 2).map(float), min_size=count, max_size=count))
    speed, free = (dict(zip(every_point, figures, strict=True)) for figures in (speeds, frees))
    return World(grid, speed, free, draw(st.sampled_from(most)))


def first_largest(found: list[Point], values: list[float]) -> Point:
    return found[values.index(max(values))]


def chosen(deployment: Deployment) -> Point:
    return points(deployment)[0]


def expected_front(world: World, fitting: list[Point]) -> list[tuple[float, float]]:
    pairs = {(world.speed[point], world.throughput(point)) for point in fitting}
    return sorted(
        (speed, rate)
        for speed, rate in pairs
        if not any(a >= speed and b >= rate and (a, b) != (speed, rate) for a, b in pairs)
    )


def check(world: World, found: Found | Missed, seen: list[Point], min_tps: float) -> None:
    """The answer must be what nested loops over the configurations seen give."""
    grid, sendable = world.grid, [point for point in seen if world.sendable(point)]
    fitting = [point for point in sendable if world.free[point] >= 0]
    feasible = [point for point in fitting if world.speed[point] >= min_tps]
    assert found.tried == len(seen)
    assert [(p.tps_per_user, p.tps_per_gpu) for p in found.front] == expected_front(world, fitting)
    for p in found.front:
        assert p.schedule in SCHEDULES
        point = Point(p.kv, p.schedule, p.batch, p.count, p.drafts)
        assert point in fitting
        assert (world.speed[point], world.throughput(point)) == (p.tps_per_user, p.tps_per_gpu)
    if not feasible:
        assert isinstance(found, Missed)
        if fitting:
            assert found.fastest is not None
            quickest = first_largest(fitting, [world.speed[point] for point in fitting])
            assert chosen(found.fastest.deployment) == quickest
        else:
            assert found.fastest is None
            if not sendable:
                assert found.leanest is None
                return
            assert found.leanest is not None
            leanest = first_largest(sendable, [world.free[point] for point in sendable])
            assert chosen(found.leanest.deployment) == leanest
        return
    assert isinstance(found, Found)
    assert found.feasible == len(feasible)
    winner = first_largest(feasible, [world.throughput(point) for point in feasible])
    assert chosen(found.prediction.deployment) == winner
    top = max(world.throughput(point) for point in feasible)
    assert any(p.tps_per_user >= world.speed[winner] and p.tps_per_gpu >= top for p in found.front)
    larger = [b for b in grid.batches if b > winner.batch and (winner.schedule == "naive" or b % 2 == 0)]
    if not larger:
        assert found.binding == "largest batch tried"
        return
    following = winner._replace(batch=larger[0])
    if not world.sendable(following):
        assert found.binding == "all-to-all limit"
        return
    reason = "speed per user" if world.speed[following] < min_tps else "throughput peaks here"
    assert found.binding == (reason if world.free[following] >= 0 else "memory")


@given(worlds(), st.sampled_from([0.5, 2.0, 3.0, 6.0, 7.0]), st.sampled_from(PIECES))
@settings(max_examples=120, deadline=None)
def test_the_best_is_what_nested_loops_find(world: World, min_tps: float, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moeplan.search.space.PIECE", piece)
        found = best(world.predictor, world.grid, min_tps=min_tps)
    assert found.complete
    check(world, found, list(every(world.grid)), min_tps)


@given(worlds(most=(10_000,)), st.sampled_from([0.5, 3.0, 7.0]), st.sampled_from((1, 2, 7)), st.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_an_interrupted_walk_answers_for_what_it_saw(world: World, min_tps: float, piece: int, after: int) -> None:
    calls: list[tuple[int, int]] = []

    def interrupt(tried: int, total: int) -> None:
        calls.append((tried, total))
        if len(calls) == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moeplan.search.space.PIECE", piece)
        pieces = [points(deployment) for deployment in world.grid.pieces()]
        found = best(world.predictor, world.grid, min_tps=min_tps, progress=interrupt)
    seen = [point for part in pieces[:after] for point in part]
    order = {point: rank for rank, point in enumerate(every(world.grid))}
    assert found.complete == (after > len(pieces))
    assert calls == [
        (sum(map(len, pieces[: number + 1])), world.grid.size) for number in range(min(after, len(pieces)))
    ]
    check(world, found, sorted(seen, key=lambda point: order[point]), min_tps)


def test_an_interrupt_before_anything_is_known_goes_up() -> None:
    class Stopped(dict[Point, float]):
        def __missing__(self, point: Point) -> float:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        best(cast(Predictor, MadeUp(Stopped(), {}, 1)), space(), min_tps=1.0)


# --- with the real predictor ----------------------------------------------------------------------------------------


@cache
def predictor(gpu: str, model: str) -> Predictor:
    return Predictor.of(CATALOG.model(model), cluster_of(CATALOG, gpu, "cx7", None), CATALOG)


@pytest.mark.parametrize("min_tps", [5.0, 25.0, 1e6])
def test_the_real_answer_does_not_depend_on_the_piece(min_tps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    target = predictor("h800", "deepseek-v3")
    grid = space(counts=(16, 144), batches=(1, 2, 7, 64, 130), drafts=(0, 1, 2))
    answers = []
    for size in PIECES:
        monkeypatch.setattr("moeplan.search.space.PIECE", size)
        answers.append(best(target, grid, min_tps=min_tps))
    whole = answers[-1]
    for found in answers:
        assert type(found) is type(whole)
        assert (found.tried, len(found.front)) == (grid.size, len(whole.front))
        for rate in ("tps_per_user", "tps_per_gpu"):
            ours, theirs = ([getattr(point, rate) for point in answer.front] for answer in (found, whole))
            assert ours == pytest.approx(theirs, rel=1e-12)
        if isinstance(found, Found):
            assert isinstance(whole, Found)
            assert chosen(found.prediction.deployment) == chosen(whole.prediction.deployment)
            assert (found.feasible, found.binding) == (whole.feasible, whole.binding)
            winner = found.prediction
            assert any(
                point.batch == winner.deployment.batch
                and point.tps_per_user == pytest.approx(float(winner.tps_per_user))
                for point in found.front
            )


def test_a_front_point_is_what_predict_says() -> None:
    target, grid = predictor("h800", "deepseek-v3"), space(counts=(32, 144), batches=tuple(range(2, 200, 6)))
    found = best(target, grid, min_tps=20)
    assert len(found.front) > 10
    speeds = [point.tps_per_user for point in found.front]
    rates = [point.tps_per_gpu for point in found.front]
    assert speeds == sorted(set(speeds))
    assert rates == sorted(set(rates), reverse=True)
    for point in found.front:
        deployment = Deployment(
            batch=point.batch,
            ep=point.count,
            drafts=point.drafts,
            context=grid.context,
            precision=PRECISIONS[point.kv],
            acceptance=grid.acceptance,
            schedule=point.schedule,
        )
        step = target.predict(deployment)
        assert bool(step.fits)
        assert float(step.tps_per_user) == pytest.approx(point.tps_per_user, rel=1e-12)
        assert float(step.tps_per_gpu) == pytest.approx(point.tps_per_gpu, rel=1e-12)
        assert point.core == "bf16"
    assert float(target.predict(replace(deployment, batch=point.batch)).tps_per_user) == pytest.approx(max(speeds))
