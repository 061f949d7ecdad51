"""What hides behind what, on stages with times chosen by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_layers import NAMES, NETWORK, layer, sparse

from moeplan.layers.layer import Layer
from moeplan.schedules.timeline import Timeline, timeline
from moeplan.specs.schedule import schedule, schedule_names

SCHEDULES = schedule_names()


def naive(stages: Layer) -> Timeline:
    return timeline(stages, "naive")


def two_batch(stages: Layer) -> Timeline:
    return timeline(stages, "two-batch")


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


TIMES = st.tuples(*(st.floats(0, 1e3) for _ in NAMES))
SHARES = st.sampled_from([0.0, 0.15, 0.765, 1.0])


@settings(max_examples=200, deadline=None)
@given(TIMES, st.sampled_from(SCHEDULES), SHARES)
def test_a_layer_lies_between_its_longest_lane_and_the_sum(times: tuple[float, ...], name: str, share: float) -> None:
    found = timeline(sparse(*times, share=share), name)
    count = found.micro_batches
    lane = max(sum(t for n, t in zip(NAMES, times, strict=True) if (n in NETWORK) == on) for on in (False, True))
    assert count == schedule(name).micro_batches
    assert count * lane - 1e-9 <= float(found.seconds) <= count * sum(times) + 1e-9
    assert all(float(seconds) >= -1e-9 for seconds in found.exposed.values())
    assert sum(float(seconds) for seconds in found.exposed.values()) == pytest.approx(float(found.seconds))


@settings(max_examples=200, deadline=None)
@given(TIMES, st.integers(0, 5), st.floats(0, 100), SHARES, st.sampled_from(SCHEDULES))
def test_a_longer_stage_never_shortens_the_layer(
    times: tuple[float, ...], which: int, extra: float, share: float, name: str
) -> None:
    longer = [time + extra * (i == which) for i, time in enumerate(times)]
    before, after = (float(timeline(sparse(*each, share=share), name).seconds) for each in (times, longer))
    assert after >= before - 1e-9


@settings(max_examples=100, deadline=None)
@given(TIMES, SHARES, SHARES, st.sampled_from(SCHEDULES))
def test_a_larger_share_of_the_sms_never_shortens_the_layer(
    times: tuple[float, ...], one: float, two: float, name: str
) -> None:
    low, high = (float(timeline(sparse(*times, share=share), name).seconds) for share in sorted((one, two)))
    assert high >= low - 1e-9


@pytest.mark.parametrize("name", SCHEDULES)
def test_arrays_are_the_matching_scalars(name: str) -> None:
    d, s = np.array([5.0, 30.0])[:, None], np.array([8.0, 1.0, 50.0])[None, :]
    share = np.array([0.0, 0.765])[:, None]
    together = timeline(sparse(10.0, 20.0, d, s, 40.0, 50.0, share=share), name)
    for i, j in np.ndindex(2, 3):
        one = timeline(sparse(10.0, 20.0, float(d[i, 0]), float(s[0, j]), 40.0, 50.0, share=float(share[i, 0])), name)
        assert np.asarray(together.seconds)[i, j] == pytest.approx(one.seconds)
        for stage, seconds in one.exposed.items():
            assert np.broadcast_to(together.exposed[stage], (2, 3))[i, j] == pytest.approx(seconds)


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_empty_network_leaves_the_sum_of_the_stages(name: str) -> None:
    """Two batches without communication are twice the half batch, whatever the share."""
    found = timeline(sparse(10, 20, 0, 5, 40, 0, share=0.765), name)
    assert found.seconds == pytest.approx(75 * schedule(name).micro_batches)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_network_that_takes_every_sm_hides_nothing(name: str) -> None:
    found = timeline(sparse(10, 20, 30, 5, 40, 50, share=1.0), name)
    assert found.seconds == pytest.approx(155 * schedule(name).micro_batches)


def test_the_scale_up_link_hides_its_share_only() -> None:
    """Beside compute that is long enough, 1 - s of the communication is hidden (batch article: 20 to 27 %)."""
    hidden = two_batch(sparse(100, 100, 30, 20, 40, 50, share=0.765))
    assert hidden.exposed["dispatch"] == pytest.approx(2 * 0.765 * 30)
    assert hidden.exposed["combine"] == pytest.approx(2 * 0.765 * 50)
    assert hidden.seconds == pytest.approx(2 * (260 + 0.765 * 80))


def test_a_pair_takes_the_longer_of_the_two() -> None:
    """max(D, t + s·D), by hand: 30 beside 8 of compute and 15 % of the SMs; then 30 beside 28."""
    short, long = (naive(sparse(10, 20, 30, s, 40, 50, share=0.15)) for s in (8, 28))
    assert short.seconds == pytest.approx(10 + 20 + max(30, 8 + 4.5) + 40 + 50)
    assert long.seconds == pytest.approx(10 + 20 + (28 + 4.5) + 40 + 50)
    assert long.exposed["dispatch"] == pytest.approx(4.5)


def test_single_batch_hides_combine_beside_the_down_projection() -> None:
    """Down (30 of 40) in four parts; each of combine's follows its own: C + a quarter, or 30 + a quarter of C."""
    one, other = (timeline(sparse(10, 20, 30, 8, 40, c), "single-batch") for c in (50, 20))
    assert one.seconds == pytest.approx(10 + 20 + 30 + 10 + 7.5 + 50)
    assert other.seconds == pytest.approx(10 + 20 + 30 + 10 + 30 + 5)


def test_prefill_by_hand() -> None:
    """A half's dispatch beside the other's attention, its combine beside the other's experts and its own shared one.

    A0 10, A1 20, D 25, S 5, E 40, C 30: all hidden but nothing waits: two halves of compute. Then with D 60, C 100.
    """
    hidden = timeline(sparse(10, 20, 25, 5, 40, 30), "two-batch-prefill")
    assert hidden.seconds == pytest.approx(2 * 75)
    bound = timeline(sparse(10, 20, 60, 5, 40, 100), "two-batch-prefill")
    assert bound.seconds == pytest.approx(2 * (60 + 100))


def test_formulas() -> None:
    stages = sparse(10, 20, 30, 8, 40, 50)
    assert naive(stages).formula == "A0 + A1 + max(D, S) + E + C"
    assert two_batch(stages).formula == "2·[max(D, A0 + S) + E + max(C, A1)]"
    assert two_batch(sparse(10, 20, 30, 8, 40, 50, share=0.5)).formula == (
        "2·[max(D, A0 + S + s·D) + E + max(C, A1 + s·C)]"
    )
    assert naive(layer(attention_front=10, attention_back=20, dense=30)).formula == "A0 + A1 + FFN"
