"""Popularity: laws by hand, faults all at once; the law of a token's picks against every set counted, and draws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError
from moeplan.kinds import Array
from moeplan.routing.capacity import capacity
from moeplan.routing.coverage import NO_LIMIT, GroupLimit
from moeplan.routing.draws import draw_rows
from moeplan.routing.picks import Picks, picks
from moeplan.routing.placement import balanced, in_order
from moeplan.routing.placement import given as given_slots
from moeplan.routing.popularity import Popularity, popularity, power_law, recorded, uniform, weighted, zipf
from moeplan.routing.row_law import row_laws

QUICK = settings(max_examples=60, deadline=None)


@QUICK
@given(
    weights=st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40).filter(lambda w: any(w)),
    share=st.floats(0, 1),
)
def test_probabilities_sum_to_top_k(weights: list[float], share: float) -> None:
    positive = sum(w > 0 for w in weights)
    top_k = max(int(share * positive), 1)
    heat = weighted(weights, experts=len(weights), top_k=top_k)
    assert heat.probability.sum() == pytest.approx(top_k)
    assert np.all((heat.probability >= 0) & (heat.probability <= 1))
    order = np.argsort(weights, kind="stable")
    assert np.all(np.diff(heat.probability[order]) >= -1e-12)
    again = weighted(np.array(weights)[order], experts=len(weights), top_k=top_k)
    assert again.probability == pytest.approx(heat.probability[order])


def test_laws_by_hand() -> None:
    assert uniform(experts=4, top_k=1).probability.tolist() == [0.25] * 4
    assert zipf(1, experts=3, top_k=1).probability == pytest.approx(np.array([6, 3, 2]) / 11)
    assert recorded([10, 30], experts=2, top_k=1).probability.tolist() == [0.25, 0.75]
    ends = power_law(1.2, experts=10_000, top_k=1).probability
    assert ends[0] / ends[-1] == pytest.approx(200, rel=0.01)


def test_all_laws_reduce_to_uniform() -> None:
    even = uniform(experts=64, top_k=6).probability
    for law in ("zipf:0", "power_law:1.2:1", [3.0] * 64):
        heat = popularity(law, experts=64, top_k=6)
        assert heat.probability == pytest.approx(even)
        assert heat.is_uniform
        assert heat.variation == 0


def test_power_law_has_the_density_that_it_names() -> None:
    """Between x and 2x there are 2^(a−1) times as many as between 2x and 4x."""
    weights = power_law(1.5, experts=200_000, top_k=1).probability
    scaled = weights / weights.min()
    low, high = (np.count_nonzero((scaled > x) & (scaled <= 2 * x)) for x in (4, 8))
    assert low / high == pytest.approx(2**0.5, rel=0.01)
    flat = power_law(1.0, experts=1000, top_k=1).probability
    assert np.ptp(np.diff(np.log(flat))) == pytest.approx(0, abs=1e-9)  # a = 1: even in the logarithm


def test_too_hot_is_cut_and_shared() -> None:
    """k = 2 of weights 8, 1, 1: 2·8/10 is above 1, and the others share one pick."""
    heat = weighted([8, 1, 1], experts=3, top_k=2)
    assert heat.probability.tolist() == [1, 0.5, 0.5]
    assert heat.clipped == 1
    assert "1 expert hotter than a row per token" in heat.note
    cascade = weighted([100, 10, 1, 1], experts=4, top_k=3)  # the second is too hot only once the first is cut
    assert cascade.probability.tolist() == [1, 1, 0.5, 0.5]
    assert uniform(experts=3, top_k=3).note == ""


@pytest.mark.parametrize(
    ("text", "name"), [(" Uniform ", "uniform"), ("zipf:1.2", "zipf:1.2"), ("power-law:1.2:800", "power_law:1.2:800")]
)
def test_text(text: str, name: str) -> None:
    assert popularity(text, experts=8, top_k=2).name == name


@pytest.mark.parametrize(
    ("law", "told"),
    [
        ("zipv:1", "did you mean zipf"),
        ("zipf", "cannot read 'zipf'"),
        ("zipf:x", "write uniform, zipf:1.2"),
        ("uniform:1", "cannot read"),
        ("zipf:-1", "exponent -1"),
        ("power_law:1:0.5", "spread 0.5"),
        ([0.0] * 8, "no weight is above zero"),
        ([1.0] + [0.0] * 7, "only 1 weights are above zero"),
        ([[1.0]], "has 2 axes"),
        (["a"], "no number"),
    ],
)
def test_faults(law: object, told: str) -> None:
    with pytest.raises(InputError, match=told):
        popularity(law, experts=8, top_k=2)  # type: ignore[arg-type]  # wrong on purpose


def test_every_fault_at_once() -> None:
    with pytest.raises(InputError) as caught:
        weighted([1, float("nan"), -2], experts=2, top_k=4)
    assert [fault.path for fault in caught.value.faults] == ["top_k", "given", "given[1]", "given[2]"]


def counted(law: Picks, groups: int) -> dict[tuple[int, ...], float]:
    """P of every set, from the definition: Σ over choices of groups that hold it of the odds of its members."""
    odds = (law.bias / (1 - law.bias)).ravel()
    size = len(odds) // groups
    chance: dict[tuple[int, ...], float] = {}
    for chosen in itertools.combinations(range(groups), law.taken):
        pool = [e for e in range(len(odds)) if e // size in chosen]
        for members in itertools.combinations(pool, law.top_k):
            chance[members] = chance.get(members, 0) + float(np.prod(odds[list(members)]))
    total = sum(chance.values())
    return {members: value / total for members, value in chance.items()}


CASES = [("uniform", NO_LIMIT), ("zipf:0.7", NO_LIMIT), ("zipf:0.4", GroupLimit(count=4, taken=2))]


@pytest.mark.parametrize(("name", "limit"), [*CASES, ("uniform", GroupLimit(count=4, taken=2))])
def test_picks_are_those_of_every_set_counted(name: str, limit: GroupLimit) -> None:
    heat = popularity(name, experts=8, top_k=3)
    law = picks(heat, limit)
    chance = counted(law, limit.count)
    marginal = np.zeros(8)
    on_rank = np.zeros((4, 4))
    for members, value in chance.items():
        marginal[list(members)] += value
        for rank in range(4):
            on_rank[rank, sum(e // 2 == rank for e in members)] += value
    assert marginal == pytest.approx(heat.probability, abs=1e-9)
    assert law.probability() == pytest.approx(heat.probability, abs=1e-9)
    assert law.on_ranks(in_order(8, ep=4).shares) == pytest.approx(on_rank, abs=1e-9)


def test_a_free_choice_is_hypergeometric() -> None:
    """C = P·(1 − binom(E − E/P, k)/binom(E, k)): 7.27 ranks of 32, 3.61 of 4 (batch article, made exact)."""
    law = picks(uniform(experts=256, top_k=8))
    for ep, ranks in ((32, 7.27), (4, 3.61)):
        touched = 1 - law.on_ranks(in_order(256, ep=ep).shares)[:, 0]
        assert touched.sum() == pytest.approx(ranks, abs=0.005)


def test_certain_and_impossible_experts() -> None:
    heat = weighted([100, 1, 1, 1, 0], experts=5, top_k=2)
    law = picks(heat)
    assert law.probability() == pytest.approx(np.array([1, 1 / 3, 1 / 3, 1 / 3, 0]), abs=1e-9)
    rows = draw_rows(law, tokens=30, draws=50)
    assert np.all(rows[:, 0] == 30)
    assert np.all(rows[:, 4] == 0)
    assert np.all(rows.sum(axis=1) == 60)


def test_popularity_out_of_a_limits_reach() -> None:
    hot = weighted([100, 1, 100, 1, 100, 1, 100, 1], experts=8, top_k=4)
    with pytest.raises(InputError, match=r"needs 3\.\d\d groups for a token, the limit takes 2"):
        picks(hot, GroupLimit(count=4, taken=2))
    with pytest.raises(InputError, match="3 groups do not divide 8"):
        picks(hot, GroupLimit(count=3, taken=2))


@pytest.mark.parametrize("law", ["zipf:1.3", "zipf:1.5", 0, 1, 2, 3])
def test_skewed_experts_under_the_limit_of_deepseek_v3(law: str | int) -> None:
    """Hot experts of a group move together, and every one of these has a law of 4 of 8 groups."""
    if isinstance(law, str):
        heat = popularity(law, experts=256, top_k=8).shuffled()
    else:
        heat = popularity(np.random.default_rng(law).lognormal(0, 1, 256), experts=256, top_k=8)
    found = picks(heat, GroupLimit(count=8, taken=4))
    assert found.probability() == pytest.approx(heat.probability, abs=1e-9)


def test_weights_at_the_ends_of_floats() -> None:
    assert weighted([1.0, 5e-324], experts=2, top_k=1).probability == pytest.approx([1, 0])
    with pytest.raises(InputError, match="span more than a float holds"):
        weighted([1e300, 1e-300, 1e-300], experts=3, top_k=2)


@pytest.mark.parametrize(("name", "limit"), CASES)
def test_draws_follow_the_law(name: str, limit: GroupLimit) -> None:
    heat = popularity(name, experts=8, top_k=3)
    law, draws, tokens = picks(heat, limit), 100_000, 10
    rows = draw_rows(law, tokens=tokens, draws=draws)
    assert np.all(rows.sum(axis=1) == tokens * 3)
    error = np.sqrt(tokens * heat.probability * (1 - heat.probability) / draws)
    assert np.all(np.abs(rows.mean(axis=0) - tokens * heat.probability) < 4 * error)
    on_rank = law.on_ranks(in_order(8, ep=4).shares)
    laws = row_laws(on_rank, tokens)
    by_rank = rows.reshape(draws, 4, 2).sum(axis=2)
    for rank in range(4):
        seen = np.bincount(by_rank[:, rank], minlength=31)[:31] / draws
        told = np.array([laws.at_most(x)[rank] for x in range(31)])
        assert np.abs(np.cumsum(seen) - told).max() < 0.005


def test_draws_are_those_of_token_after_token() -> None:
    """The walk along experts against tokens drawn one by one, as the 3 smallest of 8 random numbers."""
    rng = np.random.default_rng(4)
    chosen = np.argpartition(rng.random((40_000 * 6, 8)), 3, axis=1)[:, :3]
    step = np.repeat(np.arange(40_000), 18)
    one_by_one = np.bincount(step * 8 + chosen.ravel(), minlength=320_000).reshape(-1, 8)
    walked = draw_rows(picks(uniform(experts=8, top_k=3)), tokens=6, draws=40_000)
    for left, right in (
        (one_by_one.max(axis=1), walked.max(axis=1)),
        ((one_by_one > 0).sum(axis=1), (walked > 0).sum(axis=1)),
        (one_by_one[:, :2].sum(axis=1), walked[:, :2].sum(axis=1)),
    ):
        assert left.mean() == pytest.approx(right.mean(), abs=3 * left.std() * np.sqrt(2 / 40_000))
        assert left.std() == pytest.approx(right.std(), rel=0.03)


def binomial(tokens: int, probability: float) -> Array:
    """P(m = 0 … tokens) by its formula."""
    return np.array(
        [math.comb(tokens, m) * probability**m * (1 - probability) ** (tokens - m) for m in range(tokens + 1)]
    )


@pytest.mark.parametrize(("tokens", "probability"), [(1, 0.3), (20, 0.03125), (300, 0.5), (300, 0.98)])
def test_rows_of_an_expert_are_binomial(tokens: int, probability: float) -> None:
    law = row_laws(np.array([[1 - probability, probability]]), tokens)
    told = np.array([law.at_most(x)[0] for x in range(tokens + 1)])
    assert told == pytest.approx(np.cumsum(binomial(tokens, probability)), abs=1e-11)


def test_capacity_against_draws() -> None:
    heat = popularity("zipf:0.6", experts=16, top_k=2)
    told = capacity(64, factor=1.25, popularity=heat)
    assert told.limit == 10  # ⌈1.25 · 64 · 2 / 16⌉
    rows = draw_rows(picks(heat), tokens=64, draws=100_000)
    over = np.maximum(rows - 10, 0).sum(axis=1)
    assert abs(over.mean() - told.dropped) < 3 * over.std() / np.sqrt(100_000)
    assert (rows > 10).sum(axis=1).mean() == pytest.approx(told.full, rel=0.01)
    assert told.share == pytest.approx(told.dropped / 128)
    both = capacity(np.array([1, 64]), factor=1.25, popularity=heat)
    assert np.asarray(both.dropped) == pytest.approx(np.array([0, told.dropped]))
    assert capacity(64, factor=100, popularity=heat).dropped == pytest.approx(0, abs=1e-9)
    with pytest.raises(InputError, match="a number above 0"):
        capacity(64, factor=0, popularity=heat)


def test_placements() -> None:
    heat = weighted([6, 3.5, 2, 1], experts=4, top_k=1)
    plain = in_order(4, ep=2, redundant=2)
    assert plain.expert.tolist() == [0, 1, 2, 3, 0, 1]
    assert plain.rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert plain.shares.sum(axis=0).tolist() == [1, 1, 1, 1]
    even = balanced(heat, ep=2, redundant=2)  # slots 3, 3, 1.75, 1.75, 2, 1 of 12.5
    assert even.copies.tolist() == [2, 2, 1, 1]
    assert sorted((even.shares @ heat.probability * 12.5).round(9).tolist()) == [5.75, 6.75]
    assert given_slots([0, 1, 2, 3], experts=4, ep=2).shares.tolist() == in_order(4, ep=2).shares.tolist()
    with pytest.raises(InputError, match="2 faults"):
        given_slots([0, 1, 2], experts=4, ep=2)
    with pytest.raises(InputError, match="no expert 4"):
        given_slots([0, 1, 2, 4], experts=4, ep=2)


def test_a_law_is_a_popularity() -> None:
    heat = zipf(1, experts=4, top_k=1)
    assert isinstance(heat, Popularity)
    assert sorted(heat.shuffled().probability) == sorted(heat.probability)
    assert not heat.labelled
    assert recorded([1, 2], experts=2, top_k=1).labelled
