"""Group shapes: the grouped-GEMM article's equations, laws of rows, and the tails against Monte Carlo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moeplan.errors import InputError
from moeplan.routing.article_shapes import article_shapes as article_of
from moeplan.routing.article_shapes import special_case as special_case_of
from moeplan.routing.coverage import GroupLimit, active_experts
from moeplan.routing.draws import draw_rows
from moeplan.routing.group_shapes import group_shapes as shapes_of
from moeplan.routing.picks import picks
from moeplan.routing.popularity import popularity, weighted

DEEPSEEK: Any = {"experts": 256, "top_k": 8}
# Figures may be floats or arrays; the tests know which.
article_shapes: Any = article_of
group_shapes: Any = shapes_of
special_case: Any = special_case_of

HALF = GroupLimit(count=8, taken=4)
SMALL: Any = {"experts": 16, "top_k": 2, "ep": 4}


def test_special_case_of_the_article() -> None:
    """Eqs. 6 and 7 for D = 8, 16, 32, 64 at B·Q = 1, 2, 4, 64."""
    ep, tokens = np.array([8, 16, 32, 64]), np.array([[1], [2], [4], [64]])
    groups, rows = special_case(tokens, q_len=1, ep=ep)
    assert groups.tolist() == [[8, 8, 8, 4], [16, 16, 8, 4], [32, 16, 8, 4], [32, 16, 8, 4]]
    assert rows.tolist() == [[1, 1, 1, 2], [1, 1, 2, 4], [1, 2, 4, 8], [16, 32, 64, 128]]
    general = article_shapes(tokens, q_len=1, ep=ep, **DEEPSEEK)
    assert general.groups.tolist() == groups.tolist()
    assert general.rows_rounded_up.tolist() == rows.tolist()
    assert general.rows_per_rank[:, 0].tolist() == [8, 16, 32, 512]


def test_skew_of_the_article() -> None:
    assert article_shapes(64, q_len=2, ep=32, skew=1.5, **DEEPSEEK).largest_rows == 1.5 * 128


@pytest.mark.parametrize("law", ["uniform", "zipf:0.8"])
def test_the_articles_bound_is_above_the_expectation(law: str) -> None:
    found = group_shapes(batch=np.array([1, 4, 32])[:, None], ep=np.array([4, 32]), popularity=law, **DEEPSEEK)
    assert np.all(found.active <= found.article.groups + 1e-9)
    assert found.active[0, 0] < found.article.groups[0, 0] - 0.3
    assert found.rows_per_slot == pytest.approx(found.article.rows_per_expert)
    assert np.all(found.rows_if_active >= found.rows_per_slot)
    assert found.rows_if_active * found.active * found.ep == pytest.approx(found.rows)
    assert np.all(found.busiest.mean >= found.rank_rows_hottest - 1e-6)
    assert np.all(found.largest.mean >= found.largest_on_rank.mean)


def test_bound_and_expectation_meet_at_many_tokens() -> None:
    found = group_shapes(batch=5000, q_len=4, ep=64, **DEEPSEEK)
    assert found.active == pytest.approx(found.article.groups)
    assert found.idle == pytest.approx(0, abs=1e-12)
    assert found.largest.mean / found.rows_per_slot == pytest.approx(1, abs=0.02)
    assert found.imbalance == pytest.approx(1, abs=0.01)


def test_what_is_held_fixed_decides_how_rows_move() -> None:
    ep = np.array([8, 16, 32])
    per_rank, whole = group_shapes(batch=64, ep=ep, **DEEPSEEK), group_shapes(global_batch=512, ep=ep, **DEEPSEEK)
    assert per_rank.held == "batch per rank"
    assert per_rank.rows_per_slot.tolist() == [16, 32, 64]  # m ∝ D
    assert whole.held == "global batch"
    assert whole.rows_per_slot.tolist() == [16, 16, 16]
    assert whole.batch.tolist() == [64, 32, 16]
    assert np.all(np.diff(whole.active) < 0)


def test_one_token() -> None:
    found = group_shapes(global_batch=1, ep=32, **DEEPSEEK)
    assert found.active * 32 == pytest.approx(8)
    assert found.rows_if_active == pytest.approx(1)
    assert (found.largest.mean, found.largest.p99) == (1, 1)
    assert found.targets == pytest.approx(7.267, abs=0.001)


def test_every_expert_for_every_token() -> None:
    found = group_shapes(batch=3, ep=4, experts=8, top_k=8)
    assert found.idle == 0
    assert found.active == 2
    told = [found.rows_p50, found.rows_p99, found.largest.mean, found.busiest.mean, found.busiest.p99]
    assert told == pytest.approx([12, 12, 12, 24, 24])


def test_one_rank_has_all_rows() -> None:
    found = group_shapes(batch=16, ep=1, popularity="zipf:1", **DEEPSEEK)
    told = [found.rank_rows, found.busiest.mean, found.imbalance, found.targets]
    assert told == pytest.approx([128, 128, 1, 1])


def test_a_scalar_is_the_element_of_an_array() -> None:
    batch, q_len, ep = np.array([1, 8])[:, None, None], np.array([1, 3])[:, None], np.array([8, 32])
    whole = group_shapes(batch=batch, q_len=q_len, ep=ep, **DEEPSEEK)
    one = group_shapes(batch=8, q_len=3, ep=32, **DEEPSEEK)
    assert np.shape(whole.active) == (2, 2, 2)
    for name in ("active", "idle", "rows_p99", "rank_rows", "targets", "tokens", "slots_per_rank"):
        assert getattr(whole, name)[1, 1, 1] == getattr(one, name)
    assert whole.busiest.mean[1, 1, 1] == one.busiest.mean
    assert isinstance(one.active, float)


def test_relabelling_experts_changes_nothing_but_the_ranks() -> None:
    heat = popularity("zipf:0.8", experts=64, top_k=4).probability
    mixed = np.random.default_rng(5).permutation(heat)
    one, other = (group_shapes(batch=8, ep=8, experts=64, top_k=4, popularity=law) for law in (heat, mixed))
    for name in ("active", "idle", "rows_p50", "rows_p99", "rank_rows"):
        assert getattr(one, name) == pytest.approx(getattr(other, name))
    assert one.largest.mean == pytest.approx(other.largest.mean)
    assert one.placement == "in order"
    ranks = [group_shapes(batch=8, ep=8, experts=64, top_k=4, popularity=law) for law in (heat, heat[::-1])]
    assert ranks[0].busiest.mean == pytest.approx(ranks[1].busiest.mean)
    packed = [
        group_shapes(batch=8, ep=8, experts=64, top_k=4, popularity=law, placement="balanced") for law in (heat, mixed)
    ]
    assert packed[0].busiest.mean == pytest.approx(packed[1].busiest.mean)
    assert packed[0].busiest.mean < ranks[0].busiest.mean


def test_replicas_cool_the_busiest_rank() -> None:
    plain = group_shapes(batch=32, ep=32, popularity="power_law:1.2", **DEEPSEEK)
    even = group_shapes(batch=32, ep=32, popularity="power_law:1.2", redundant=32, **DEEPSEEK)
    assert (plain.placement, even.placement) == ("shuffled", "balanced")
    assert even.slots_per_rank == 9
    assert even.imbalance < plain.imbalance
    assert even.rank_rows_hottest == pytest.approx(even.rank_rows, rel=0.01)


def test_what_a_group_limit_changes() -> None:
    """Every expert's own law stays; a rank's rows scatter more, and a token goes to fewer ranks."""
    free, held = (group_shapes(batch=16, ep=32, limit=limit, **DEEPSEEK) for limit in (GroupLimit(), HALF))
    for name in ("active", "idle", "rows_if_active", "rows_p50", "rows_p99", "rank_rows"):
        assert getattr(free, name) == pytest.approx(getattr(held, name))
    assert held.rank_deviation > free.rank_deviation
    assert held.busiest.mean > free.busiest.mean
    assert held.targets < free.targets


def test_variance_of_a_rank_by_hand() -> None:
    """Hypergeometric: T·k·(S/E)·(1 − S/E)·(E − k)/(E − 1)."""
    found = group_shapes(batch=16, ep=32, **DEEPSEEK)
    assert found.rank_deviation**2 == pytest.approx(512 * 8 * (8 / 256) * (248 / 256) * (248 / 255))


MIXES: Any = {
    "uniform": {},
    "zipf": {"popularity": "zipf:0.7"},
    "limit": {"limit": GroupLimit(count=4, taken=2)},
    "replicas": {"popularity": "power_law:1.2", "redundant": 4},
}


@pytest.mark.parametrize("case", list(MIXES))
def test_largest_numbers_against_draws(case: str) -> None:
    """1e5 draws: means within 1 %, quantiles within a row."""
    closed = group_shapes(batch=16, **SMALL, **MIXES[case])
    drawn = group_shapes(batch=16, draws=100_000, **SMALL, **MIXES[case])
    assert closed.method == "closed form"
    assert drawn.method.startswith("Monte Carlo, 100000 draws")
    for name in ("largest_on_rank", "largest", "busiest"):
        told, seen = getattr(closed, name), getattr(drawn, name)
        assert told.mean == pytest.approx(seen.mean, rel=0.01)
        assert told.p50 == pytest.approx(seen.p50, abs=1)
        assert told.p99 == pytest.approx(seen.p99, abs=1)
        assert 0 < seen.standard_error < 0.001 * seen.mean
        assert told.standard_error == 0


def test_two_ranks_are_exact() -> None:
    """The busier of two ranks is half of the rows and half of what they differ by; within 3 standard errors."""
    closed = group_shapes(batch=3, ep=2, experts=8, top_k=2, popularity="zipf:0.5")
    drawn = group_shapes(batch=3, ep=2, experts=8, top_k=2, popularity="zipf:0.5", draws=100_000)
    assert abs(closed.busiest.mean - drawn.busiest.mean) < 3 * drawn.busiest.standard_error


@pytest.mark.parametrize(
    ("ep", "batch", "limit", "on_rank", "largest", "busiest"),
    [
        (32, 1, GroupLimit(), 2.549, 4.648, 14.267),
        (32, 1, HALF, 2.513, 4.652, 15.003),
        (32, 16, GroupLimit(), 21.812, 28.187, 151.656),
        (32, 16, HALF, 21.720, 28.185, 154.005),
    ],
)
def test_deepseek_against_recorded_draws(
    ep: int, batch: int, limit: GroupLimit, on_rank: float, largest: float, busiest: float
) -> None:
    """Means of 100,000 draws of 256 experts, top-8, recorded once: they take half a minute each."""
    found = group_shapes(batch=batch, ep=ep, limit=limit, **DEEPSEEK)
    told = [found.largest_on_rank.mean, found.largest.mean, found.busiest.mean]
    assert told == pytest.approx([on_rank, largest, busiest], rel=0.01)


def test_expectations_against_draws() -> None:
    """Tokens of unequal popularity over 16 experts: active groups and quantiles of rows; 1e5 draws."""
    heat = popularity("zipf:0.9", experts=16, top_k=2)
    found = group_shapes(batch=5, **SMALL, popularity=heat, placement="in order")
    rows = draw_rows(picks(heat), tokens=20, draws=100_000)
    active = (rows > 0).sum(axis=1) / 4
    assert abs(active.mean() - found.active) < 3 * active.std() / np.sqrt(100_000)
    assert (rows == 0).mean() == pytest.approx(found.idle, rel=0.01)
    assert np.median(rows) == pytest.approx(found.rows_p50, abs=1)
    assert np.quantile(rows, 0.99) == pytest.approx(found.rows_p99, abs=1)
    assert active_experts(20, heat.probability) == pytest.approx(4 * found.active)
    assert found.active_most == pytest.approx(active_experts(20, heat.probability[:4]))
    assert rows[:, :4].sum(axis=1).mean() == pytest.approx(found.rank_rows_hottest, rel=0.005)
    variance = rows.reshape(-1, 4, 4).sum(axis=2).var(axis=0).mean()
    assert variance == pytest.approx(found.rank_deviation**2, rel=0.01)


def test_capacity_keeps_and_drops_all_rows() -> None:
    found = group_shapes(batch=16, ep=32, capacity_factor=1.25, draws=200, **DEEPSEEK)
    assert found.limit_rows == 20
    assert found.rank_rows * 32 + found.dropped == pytest.approx(found.rows)
    assert found.largest.p99 == 20
    assert found.busiest.mean < group_shapes(batch=16, ep=32, **DEEPSEEK).busiest.mean
    assert group_shapes(batch=1, ep=4, capacity_factor=2, **DEEPSEEK).method.startswith("Monte Carlo, 1000 draws")


def test_a_placement_of_ones_own() -> None:
    slots = [0, 4, 1, 5, 2, 6, 3, 7]
    found = group_shapes(batch=4, ep=4, experts=8, top_k=2, placement=slots, popularity=[4, 3, 2, 1, 1, 1, 1, 1])
    assert found.placement == "given"
    assert found.rank_rows_hottest == pytest.approx(16 * 2 * (4 + 1) / 14)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "give the batch per rank or the global batch"),
        ({"batch": 1, "global_batch": 8}, "one of the two"),
        ({"batch": 0, "ep": 2.5, "popularity": "zipf", "capacity_factor": -1}, "4 faults"),
        ({"batch": 1, "ep": 300}, "at least 44 redundant"),
        ({"batch": 1, "placement": "anywhere"}, "unknown 'anywhere'"),
        ({"batch": 1, "draws": 1}, "at least 2"),
        ({"batch": 1, "limit": GroupLimit(count=7, taken=4)}, "do not divide 256"),
        ({"batch": 1, "popularity": weighted([1, 2], experts=2, top_k=1)}, "make it for this model"),
    ],
)
def test_faults(wrong: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        group_shapes(**{"ep": 8, **DEEPSEEK, **wrong})


def test_replicas_leave_the_law_of_the_experts() -> None:
    """A law without names is shuffled over the experts, with replicas or without: the limit's groups stay as hot."""
    limit = GroupLimit(count=8, taken=4)
    bare, full = (
        group_shapes(batch=64, ep=8, experts=256, top_k=8, popularity="zipf:1.5", redundant=spare, limit=limit)
        for spare in (0, 32)
    )
    assert np.array_equal(bare.popularity.probability, full.popularity.probability)
    assert float(full.imbalance) < float(bare.imbalance)


@pytest.mark.parametrize("law", ["uniform", "zipf:1.5", "power_law:1.2"])
def test_the_fullest_gets_no_more_than_all_tokens(law: str) -> None:
    """One expert a rank: a token goes there at most once, and the largest slot is the busiest rank."""
    found = group_shapes(batch=1, ep=8, experts=8, top_k=2, popularity=law)
    assert float(found.busiest.mean) <= 8
    assert float(found.busiest.mean) == pytest.approx(float(found.largest.mean), rel=0.005)
