"""Coverage: the batch article's figures, laws, and its scatter against Monte Carlo and every case by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError
from moeplan.routing.coverage import (
    NO_LIMIT,
    GroupLimit,
    active_deviation,
    active_experts,
    coverage,
    coverage_of,
    tokens_for_coverage,
)
from moeplan.routing.draws import draw_rows
from moeplan.routing.picks import picks
from moeplan.routing.popularity import popularity, uniform

QUICK = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens", "share", "digits"),
    [
        *((256, 8, t, c, 4) for t, c in [(1, 0.0312), (8, 0.2243), (32, 0.6379), (64, 0.8689), (128, 0.9828)]),
        *((512, 10, t, c, 3) for t, c in [(8, 0.146), (32, 0.468), (64, 0.717), (128, 0.920)]),
        (512, 10, 1, 0.0195, 4),
    ],
)
def test_figures_of_the_batch_article(experts: int, top_k: int, tokens: int, share: float, digits: int) -> None:
    assert coverage(tokens, experts=experts, top_k=top_k) == pytest.approx(share, abs=0.51 * 10**-digits)


@QUICK
@given(experts=st.integers(1, 600), share=st.floats(0.001, 1), tokens=st.integers(0, 10**7))
def test_a_share_that_rises_with_tokens(experts: int, share: float, tokens: int) -> None:
    top_k = max(int(share * experts), 1)
    values = np.asarray(coverage(np.array([tokens, tokens + 1]), experts=experts, top_k=top_k))
    assert np.all((values >= 0) & (values <= 1))
    assert values[1] >= values[0]
    assert coverage(tokens, experts=experts, top_k=top_k) == values[0]


def test_no_tokens_one_token_all_experts_many_tokens() -> None:
    assert coverage(0, experts=8, top_k=8) == 0
    assert coverage(1, experts=8, top_k=2) == pytest.approx(2 / 8)
    assert coverage(1, experts=8, top_k=8) == 1
    assert coverage(1e12, experts=256, top_k=8) == 1


def test_unequal_experts_are_covered_later_than_equal_ones() -> None:
    heat = popularity("zipf:0.8", experts=256, top_k=8).probability
    for tokens in (2, 32, 512):
        assert coverage_of(tokens, heat) < coverage(tokens, experts=256, top_k=8)
    assert coverage_of(1, heat) == pytest.approx(8 / 256)
    relabelled = np.random.default_rng(1).permutation(heat)
    assert coverage_of(np.array([[1, 40]]), relabelled) == pytest.approx(coverage_of(np.array([[1, 40]]), heat))


def test_active_experts_by_hand() -> None:
    """Two tokens, p = ½ and ¼: 1 − ¼ + 1 − 9/16."""
    assert active_experts(2, np.array([0.5, 0.25])) == pytest.approx(3 / 4 + 7 / 16)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_tokens_for_coverage_are_the_fewest(share: float) -> None:
    tokens = tokens_for_coverage(share, experts=256, top_k=8)
    assert coverage(tokens, experts=256, top_k=8) >= share
    assert coverage(tokens - 1, experts=256, top_k=8) < share


def test_pairs_under_a_limit_by_counting() -> None:
    """6 experts in 3 groups, 2 groups taken, 2 experts: every G and then every pair inside it."""
    limit = GroupLimit(count=3, taken=2)
    both = np.zeros((6, 6))
    for groups in itertools.combinations(range(3), 2):
        pool = [e for e in range(6) if e // 2 in groups]
        for a, b in itertools.permutations(pool, 2):
            both[a, b] += 1 / 3 / 6
    assert limit.both(experts=6, top_k=2, same_group=True) == pytest.approx(both[0, 1])
    assert limit.both(experts=6, top_k=2, same_group=False) == pytest.approx(both[0, 2])
    assert both.sum() == pytest.approx(2)  # ordered pairs of a token: k(k − 1)


@pytest.mark.parametrize("limit", [NO_LIMIT, GroupLimit(count=4, taken=2)])
def test_scatter_of_active_experts_is_that_of_draws(limit: GroupLimit) -> None:
    """1e5 draws: the mean within 3 standard errors, the deviation within 1 %."""
    touched = draw_rows(picks(uniform(experts=16, top_k=2), limit), tokens=8, draws=100_000) > 0
    for local in (4, 16):
        active = touched[:, :local].sum(axis=1)
        expected = active_deviation(8, experts=16, top_k=2, local=local, limit=limit)
        assert active.std() == pytest.approx(expected, rel=0.01)
        mean = active_experts(8, np.full(local, 2 / 16))
        assert abs(active.mean() - mean) < 3 * expected / np.sqrt(100_000)


def test_a_limit_scatters_a_ranks_active_experts_more() -> None:
    tokens = np.array([8, 64])
    free = active_deviation(tokens, experts=256, top_k=8, local=32)
    held = active_deviation(tokens, experts=256, top_k=8, local=32, limit=GroupLimit(count=8, taken=4))
    assert np.all(held > free)


def test_faults() -> None:
    with pytest.raises(InputError, match="2 faults"):
        coverage(-1, experts=8, top_k=9)
    with pytest.raises(InputError, match="hold 32 experts for top_k 40 — at least 2 groups"):
        active_deviation(1, experts=256, top_k=40, limit=GroupLimit(count=8, taken=1))
    with pytest.raises(InputError, match="straddle groups of 32"):
        active_deviation(1, experts=256, top_k=8, local=24, limit=GroupLimit(count=8, taken=4))
    with pytest.raises(InputError, match="share"):
        tokens_for_coverage(1.0, experts=8, top_k=1)
