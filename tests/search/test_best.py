"""The search against nested loops over single predictions; what is missing when nothing is feasible."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import pytest
from msgspec.structs import replace

from moeplan.errors import InputError
from moeplan.explain.shortfall import shortfall
from moeplan.kernels.sources import ARTICLE
from moeplan.predict import Prediction, Predictor
from moeplan.search.best import Found, Missed, best
from moeplan.search.space import Space
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Acceptance, Deployment, Precision, ScheduleName

CATALOG = Catalog.standard()
ACCEPTANCE = Acceptance.geometric(0.85, 2, "this test")
BOTH: tuple[ScheduleName, ...] = ("naive", "two-batch")
NAIVE: tuple[ScheduleName, ...] = ("naive",)


@cache
def predictor(gpu: str, model: str) -> Predictor:
    device = CATALOG.gpu(gpu)
    cluster = Cluster(
        gpu=device, nic=CATALOG.nic("cx7"), gpus_per_node=device.gpus_per_node, nics_per_node=device.gpus_per_node
    )
    return Predictor.of(CATALOG.model(model), cluster, CATALOG)


def space(
    model: str,
    *,
    counts: tuple[int, ...] = (8, 16, 32),
    batches: tuple[int, ...] = (1, 2, 4, 16, 64, 130),
    drafts: tuple[int, ...] = (0,),
    kv: tuple[str, ...] = ("bf16", "fp8"),
    schedules: tuple[ScheduleName, ...] = NAIVE,
    context: float = 4000.0,
) -> Space:
    spec = CATALOG.model(model)
    return Space(
        counts=counts,
        batches=batches,
        drafts=drafts,
        precisions=tuple(Precision.of(spec, kv=name) for name in kv),
        schedules=schedules,
        context=context,
        acceptance=ACCEPTANCE,
    )


def every(predictor: Predictor, space: Space) -> Iterator[Prediction]:
    """All configurations one by one, the smaller batch first, then fewer GPUs, drafts, then as they are listed."""
    for batch, count, drafts in itertools.product(space.batches, space.counts, space.drafts):
        for precision, schedule in itertools.product(space.precisions, space.schedules):
            if schedule == "two-batch" and (batch % 2 or count == 1):
                continue
            yield predictor.predict(
                Deployment(
                    batch=batch,
                    ep=count,
                    context=space.context,
                    precision=precision,
                    acceptance=space.acceptance,
                    drafts=drafts,
                    schedule=schedule,
                )
            )


def first_best(values: list[float]) -> int:
    """The first of those within rounding of the largest."""
    top = max(values)
    return next(i for i, value in enumerate(values) if value >= top - 1e-12 * abs(top))


def key(deployment: Deployment) -> tuple[object, ...]:
    kv = deployment.precision.kv.name
    return deployment.batch, deployment.ep, deployment.drafts, kv, deployment.schedule


CASES = [
    ("h800", "deepseek-v3", {"counts": (8, 16, 32, 144), "drafts": (0, 1, 2), "schedules": BOTH}, 10.0),
    ("h20", "deepseek-v3", {"counts": (16, 32), "drafts": (0, 1), "schedules": BOTH}, 20.0),
    ("b200", "deepseek-v3.1-nvfp4", {"drafts": (1,), "schedules": BOTH}, 25.0),
    ("h200", "qwen3-235b-a22b-fp8", {"schedules": BOTH}, 30.0),
    ("a100", "qwen3-30b-a3b", {"counts": (1, 2, 4, 8), "schedules": BOTH}, 15.0),
    ("mi300x", "gpt-oss-120b", {"counts": (1, 8), "schedules": BOTH}, 5.0),
    ("l40s", "llama-3.1-8b", {"counts": (1, 2), "batches": (1, 3, 8, 9, 40, 400)}, 20.0),
    ("h100", "llama-3.1-70b", {"counts": (1, 8)}, 1.0),
    ("h20", "qwen3-32b", {"counts": (1,)}, 10.0),
]


@pytest.mark.parametrize(("gpu", "model", "extent", "min_tps"), CASES, ids=lambda value: str(value)[:24])
def test_the_search_finds_what_nested_loops_find(
    gpu: str, model: str, extent: dict[str, object], min_tps: float
) -> None:
    target, grid = predictor(gpu, model), space(model, **extent)  # type: ignore[arg-type]  # fields of a Space
    steps = list(every(target, grid))
    feasible = [step for step in steps if bool(step.fits) and float(step.tps_per_user) >= min_tps]
    found = best(target, grid, min_tps=min_tps)
    assert found.tried == len(steps) == grid.size
    fitting = [step for step in steps if bool(step.fits)]
    front = {
        (round(float(a.tps_per_user), 9), round(float(a.tps_per_gpu), 9))
        for a in fitting
        if not any(
            float(b.tps_per_user) >= float(a.tps_per_user)
            and float(b.tps_per_gpu) >= float(a.tps_per_gpu)
            and (float(b.tps_per_user), float(b.tps_per_gpu)) != (float(a.tps_per_user), float(a.tps_per_gpu))
            for b in fitting
        )
    }
    assert {(round(p.tps_per_user, 9), round(p.tps_per_gpu, 9)) for p in found.front} == front
    if not feasible:
        assert isinstance(found, Missed)
        if fitting:
            assert found.fastest is not None
            quickest = fitting[first_best([float(step.tps_per_user) for step in fitting])]
            assert key(found.fastest.deployment) == key(quickest.deployment)
        else:
            assert found.fastest is None
            assert found.leanest is not None
            leanest = steps[first_best([float(step.memory.free) for step in steps])]
            assert key(found.leanest.deployment) == key(leanest.deployment)
        return
    assert isinstance(found, Found)
    assert found.feasible == len(feasible)
    winner = feasible[first_best([float(step.tps_per_gpu) for step in feasible])]
    assert float(found.prediction.tps_per_gpu) == pytest.approx(float(winner.tps_per_gpu), rel=1e-12)
    assert key(found.prediction.deployment) == key(winner.deployment)
    larger = [
        step
        for step in steps
        if key(step.deployment)[1:] == key(winner.deployment)[1:] and step.deployment.batch > winner.deployment.batch
    ]
    if not larger:
        assert found.binding == "largest batch tried"
    elif not bool(larger[0].fits):
        assert found.binding == "memory"
    elif float(larger[0].tps_per_user) < min_tps:
        assert found.binding == "speed per user"
    else:
        assert found.binding == "throughput peaks here"


def test_the_cases_cover_every_outcome() -> None:
    outcomes = set()
    for gpu, model, extent, min_tps in CASES:
        found = best(predictor(gpu, model), space(model, **extent), min_tps=min_tps)  # type: ignore[arg-type]
        outcomes.add(found.binding if isinstance(found, Found) else "missed")
    assert {"memory", "missed"} <= outcomes
    assert outcomes & {"speed per user", "largest batch tried"}


def test_a_tie_goes_to_fewer_gpus() -> None:
    """A dense model's replicas do not speak to each other: any number of GPUs is the same per GPU."""
    found = best(predictor("h800", "llama-3.1-8b"), space("llama-3.1-8b", counts=(2, 4, 8), batches=(16,)), min_tps=1)
    assert isinstance(found, Found)
    assert found.prediction.deployment.ep == 2


def test_a_tie_goes_to_the_first_precision() -> None:
    """Absorbed attention of two tokens on H800 is bound by arithmetic: an fp8 cache is no faster."""
    for kv in (("bf16", "fp8"), ("fp8", "bf16")):
        grid = space("deepseek-v3", counts=(144,), batches=(64,), drafts=(1,), kv=kv)
        target = predictor("h800", "deepseek-v3")
        target = Predictor.of(target.model, target.machine.cluster, CATALOG, ARTICLE)
        found = best(target, grid, min_tps=1)
        assert isinstance(found, Found)
        assert found.prediction.deployment.precision.kv.name == kv[0]


def test_a_tie_goes_to_the_smaller_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a step as long as its batch every batch has the same throughput."""
    target, original = predictor("h800", "llama-3.1-8b"), Predictor.evaluate

    def proportional(self: Predictor, deployment: Deployment) -> Prediction:
        step = original(self, deployment)
        return replace(step, seconds=1e-3 * deployment.batch + 0.0 * deployment.ep + 0.0 * step.seconds)

    monkeypatch.setattr(Predictor, "evaluate", proportional)
    found = best(target, space("llama-3.1-8b", batches=(3, 4, 8), kv=("bf16",)), min_tps=1)
    assert isinstance(found, Found)
    assert (found.prediction.deployment.batch, found.prediction.deployment.ep) == (3, 8)


def test_a_search_walked_in_pieces_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    target = predictor("h800", "deepseek-v3")
    grid = space("deepseek-v3", counts=(16, 32, 144), drafts=(0, 1), schedules=BOTH)
    whole = best(target, grid, min_tps=10)
    for size in (1, 2, 5, 13):
        monkeypatch.setattr("moeplan.search.space.PIECE", size)
        pieces = best(target, grid, min_tps=10)
        assert isinstance(whole, Found)
        assert isinstance(pieces, Found)
        assert (pieces.tried, pieces.feasible) == (whole.tried, whole.feasible)
        assert key(pieces.prediction.deployment) == key(whole.prediction.deployment)
        for rate in ("tps_per_user", "tps_per_gpu"):
            points = [[getattr(point, rate) for point in found.front] for found in (pieces, whole)]
            assert points[0] == pytest.approx(points[1])
        hopeless = best(target, replace(grid, counts=(1, 2)), min_tps=10)
        assert isinstance(hopeless, Missed)
        assert hopeless.leanest is not None
        assert hopeless.leanest.deployment.ep == 2


@pytest.mark.parametrize("min_tps", [1.0, 1e9])
def test_an_interrupt_keeps_what_was_found(min_tps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeplan.search.space.PIECE", 4)
    target, grid = predictor("h800", "deepseek-v3"), space("deepseek-v3", counts=(32, 144))

    def interrupt(tried: int, size: int) -> None:
        assert 0 < tried < size
        raise KeyboardInterrupt

    found = best(target, grid, min_tps=min_tps, progress=interrupt)
    assert isinstance(found, Found if min_tps == 1.0 else Missed)
    assert not found.complete
    assert 0 < found.tried < grid.size
    assert best(target, grid, min_tps=min_tps).complete


def test_an_empty_space_is_refused() -> None:
    for changes in ({"batches": (1, 3), "schedules": ("two-batch",)}, {"counts": ()}, {"drafts": ()}, {"kv": ()}):
        with pytest.raises(InputError, match="no configuration"):
            space("deepseek-v3", **changes)


def changed(grid: Space, change: str) -> tuple[Space, float | None]:
    """The space, and the promised speed if that is what changes, after «--option value»."""
    option, value = change.split()
    if option == "--min-tps":
        return grid, float(value)
    if option == "--context":
        return replace(grid, context=float(value)), None
    assert option == "--gpus"
    return replace(grid, counts=(*grid.counts, int(value))), None


REMEDIES = [
    # too slow: the promise, the context or the number of GPUs must give
    ("h20", "deepseek-v3", {"counts": (16, 24), "schedules": BOTH, "context": 60_000.0}, 40.0),
    ("h800", "deepseek-v3", {"counts": (16,), "drafts": (0, 1), "context": 100_000.0}, 70.0),
    ("h800", "deepseek-v3", {"counts": (24,), "batches": (16, 64), "drafts": (0, 1)}, 80.0),
    ("h800", "deepseek-v3", {"counts": (32,), "batches": (32,), "context": 9000.0}, 30.0),
    ("h100", "llama-3.1-8b", {"counts": (1,), "context": 120_000.0}, 120.0),
    # too large: only memory fails
    ("h800", "deepseek-v3", {"counts": (2, 4, 8), "context": 100_000.0}, 1.0),
    ("h200", "deepseek-v3", {"counts": (8,), "batches": (40, 80), "context": 100_000.0}, 1.0),
    ("l40s", "llama-3.1-8b", {"counts": (1,), "batches": (16, 32), "context": 100_000.0}, 1.0),
    ("l40s", "llama-3.1-70b", {"counts": (1, 8)}, 1.0),
    # too large, and too slow as well once it fits
    ("h100", "qwen3-235b-a22b-fp8", {"counts": (8,), "batches": (16,), "context": 40_000.0}, 60.0),
    ("h800", "deepseek-v3", {"counts": (2, 4, 8), "context": 100_000.0}, 80.0),
]


@pytest.mark.parametrize(("gpu", "model", "extent", "min_tps"), REMEDIES, ids=lambda value: str(value)[:24])
def test_a_remedy_is_enough_and_a_little_less_is_not(
    gpu: str, model: str, extent: dict[str, object], min_tps: float
) -> None:
    target, grid = predictor(gpu, model), space(model, **extent)  # type: ignore[arg-type]  # fields of a Space
    missed = best(target, grid, min_tps=min_tps)
    assert isinstance(missed, Missed)
    answer = shortfall(target, grid, missed, min_tps=min_tps)
    steps = list(every(target, grid))
    fitting = [step for step in steps if bool(step.fits)]
    if fitting:
        assert answer.constraint == "speed per user"
        assert answer.needed == min_tps
        assert answer.available == pytest.approx(max(float(step.tps_per_user) for step in fitting))
        assert any(remedy.change.startswith("--min-tps") for remedy in answer.remedies)
    else:
        assert answer.constraint == "memory per GPU"
        assert answer.needed == pytest.approx(min(float(step.memory.total) for step in steps))
        assert answer.available == CATALOG.gpu(gpu).memory.capacity < answer.needed
    assert [remedy.size for remedy in answer.remedies] == sorted(remedy.size for remedy in answer.remedies)
    for remedy in answer.remedies:
        assert remedy.size > 0
        other, speed = changed(grid, remedy.change)
        assert isinstance(best(target, other, min_tps=speed if speed is not None else min_tps), Found), remedy
        option, value = remedy.change.split()
        if option == "--min-tps":
            assert isinstance(best(target, grid, min_tps=float(value) + 0.011), Missed)
        elif option == "--context":
            tokens = int(value) + max(1, int(value) // 200) + 1  # the answer is exact to half a percent
            assert isinstance(best(target, replace(grid, context=float(tokens)), min_tps=min_tps), Missed)
        else:
            node = target.machine.cluster.gpus_per_node
            fewer = tuple(range((max(grid.counts) // node + 1) * node, int(value), node))
            if fewer:
                smaller = replace(grid, counts=fewer)
                assert isinstance(best(target, smaller, min_tps=min_tps), Missed)


def test_the_remedies_cover_every_kind() -> None:
    options = set()
    for gpu, model, extent, min_tps in REMEDIES:
        target, grid = predictor(gpu, model), space(model, **extent)  # type: ignore[arg-type]  # fields of a Space
        missed = best(target, grid, min_tps=min_tps)
        assert isinstance(missed, Missed)
        for remedy in shortfall(target, grid, missed, min_tps=min_tps).remedies:
            options.add(remedy.change.split()[0])
    assert options == {"--min-tps", "--context", "--gpus"}
