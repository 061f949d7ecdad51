"""What hides behind what, on stages with times chosen by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.kernels.origin import Origin
from moeplan.kinds import Real
from moeplan.layers.layer import Layer, Stage, StageName
from moeplan.ops.cost import Cost
from moeplan.schedules.timeline import MICRO_BATCHES, TIMELINES, naive, two_batch
from moeplan.specs.deployment import SCHEDULES

NAMES: tuple[StageName, ...] = ("attention_front", "attention_back", "dispatch", "shared", "routed", "combine")


def layer(**seconds: Real) -> Layer:
    def stage(name: StageName) -> Stage:
        halves = [0.25 * seconds[name], 0.75 * seconds[name]]  # a stage is the sum of its operators
        costs = tuple(
            Cost(
                name=f"{name}_{i}",
                seconds=half,
                parts={"compute": half},
                efficiencies={},
                origin=Origin.MEASURED,
                source="this test",
                formula="",
            )
            for i, half in enumerate(halves)
        )
        return Stage(name, costs)

    return Layer({name: stage(name) for name in (*NAMES, "dense") if name in seconds})


def sparse(a0: Real, a1: Real, d: Real, s: Real, e: Real, c: Real) -> Layer:
    return layer(attention_front=a0, attention_back=a1, dispatch=d, shared=s, routed=e, combine=c)


def test_naive_hides_the_shared_expert_or_the_dispatch() -> None:
    """T = A0 + A1 + max(D, S) + E + C."""
    long_dispatch = naive(sparse(10, 20, 30, 8, 40, 50))
    assert long_dispatch.seconds == pytest.approx(10 + 20 + 30 + 40 + 50)
    assert long_dispatch.exposed["dispatch"] == pytest.approx(22)
    assert long_dispatch.exposed["shared"] == pytest.approx(8)
    long_shared = naive(sparse(10, 20, 5, 8, 40, 50))
    assert long_shared.seconds == pytest.approx(10 + 20 + 8 + 40 + 50)
    assert long_shared.exposed["dispatch"] == 0


@pytest.mark.parametrize(
    ("stages", "by_hand"),
    [
        ((10, 20, 30, 8, 40, 50), 2 * (30 + 40 + 50)),  # both all-to-alls outlast what hides them
        ((10, 60, 15, 8, 40, 50), 2 * (18 + 40 + 60)),  # neither does
        ((10, 60, 30, 8, 40, 50), 2 * (30 + 40 + 60)),
        ((10, 20, 15, 8, 40, 50), 2 * (18 + 40 + 50)),
    ],
)
def test_two_batch_overlap(stages: tuple[float, ...], by_hand: float) -> None:
    """T = 2·[max(D, A0 + S) + E + max(C, A1)], stages of half the batch."""
    found = two_batch(sparse(*stages))
    assert found.seconds == pytest.approx(by_hand)
    assert found.micro_batches == 2
    assert sum(float(seconds) for seconds in found.exposed.values()) == pytest.approx(by_hand)


def test_the_layer_of_the_published_system() -> None:
    """Throughput article, G1: H800, EP144, 64 requests per micro-batch, µs: the layer takes 879.0176."""
    found = two_batch(sparse(19.4054, 271.6242, 85.4492, 17.7025, 82.4354, 170.8984))
    assert found.seconds == pytest.approx(879.0176, abs=1e-3)


def test_naive_layers_of_the_article() -> None:
    """Throughput article, G2 (shared outlasts dispatch) and G3 (the reverse), µs."""
    second = naive(sparse(64.8705, 690.9329, 85.4492, 118.3553, 308.3101, 85.4492))
    third = naive(sparse(30.7719, 475.5915, 341.7969, 56.1429, 292.4993, 341.7969))
    assert second.seconds == pytest.approx(1267.9180, abs=1e-3)
    assert third.seconds == pytest.approx(1482.4565, abs=1e-3)


def test_a_dense_layer_is_a_plain_sum() -> None:
    found = naive(layer(attention_front=10, attention_back=20, dense=30))
    assert found.seconds == 60
    assert set(found.exposed) == {"attention_front", "attention_back", "dense"}


def test_without_an_all_to_all_two_batches_are_two_sums() -> None:
    stages = layer(attention_front=10, attention_back=20, shared=5, routed=40)
    assert naive(stages).seconds == 75
    assert two_batch(stages).seconds == 150


def test_every_schedule_has_a_timeline() -> None:
    assert set(TIMELINES) == set(MICRO_BATCHES) == set(SCHEDULES)
    for name in SCHEDULES:
        assert TIMELINES[name](sparse(1, 1, 1, 1, 1, 1)).micro_batches == MICRO_BATCHES[name]


TIMES = st.tuples(*(st.floats(0, 1e3) for _ in NAMES))


@settings(max_examples=100, deadline=None)
@given(TIMES, st.sampled_from(SCHEDULES))
def test_a_layer_lies_between_its_longest_stage_and_their_sum(times: tuple[float, ...], name: str) -> None:
    found = TIMELINES[name](layer(**dict(zip(NAMES, times, strict=True))))  # type: ignore[index]  # one of SCHEDULES
    count = found.micro_batches
    assert count * max(times) - 1e-9 <= float(found.seconds) <= count * sum(times) + 1e-9
    assert all(float(seconds) >= 0 for seconds in found.exposed.values())
    assert sum(float(seconds) for seconds in found.exposed.values()) == pytest.approx(float(found.seconds))


@settings(max_examples=60, deadline=None)
@given(TIMES, st.integers(0, 5), st.floats(0, 100))
def test_a_longer_stage_never_shortens_the_layer(times: tuple[float, ...], which: int, extra: float) -> None:
    longer = [time + extra * (i == which) for i, time in enumerate(times)]
    for timeline in TIMELINES.values():
        before = timeline(layer(**dict(zip(NAMES, times, strict=True)))).seconds
        after = timeline(layer(**dict(zip(NAMES, longer, strict=True)))).seconds
        assert float(after) >= float(before) - 1e-9


def test_arrays_are_the_matching_scalars() -> None:
    d, s = np.array([5.0, 30.0])[:, None], np.array([8.0, 1.0, 50.0])[None, :]
    for timeline in TIMELINES.values():
        together = np.asarray(timeline(sparse(10.0, 20.0, d, s, 40.0, 50.0)).seconds)
        for i, j in np.ndindex(2, 3):
            one = timeline(sparse(10.0, 20.0, float(d[i, 0]), float(s[0, j]), 40.0, 50.0))
            assert together[i, j] == pytest.approx(one.seconds)
