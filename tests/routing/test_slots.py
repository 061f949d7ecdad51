"""Experts on ranks: dealing by hand, expectations against Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError
from moeplan.explain.batch_article import sampling_floor
from moeplan.kinds import Array
from moeplan.routing.coverage import NO_LIMIT, GroupLimit
from moeplan.routing.group_shapes import group_shapes
from moeplan.routing.slots import Slots, deal, expert_load, largest_of_normals

QUICK = settings(max_examples=100, deadline=None)


def ranks(slots: Slots) -> list[int]:
    """Slots on every rank, the full ones first."""
    full = int(slots.full_ranks)
    return [int(slots.per_full_rank)] * full + [int(slots.per_full_rank) - 1] * (int(slots.ep) - full)


def simulate(*, experts: int, top_k: int, tokens: int, trials: int, seed: int = 7) -> Array:
    """Rows of every expert, (trials, experts): each token goes to top_k distinct experts, all sets alike."""
    rng = np.random.default_rng(seed)
    chosen = np.argpartition(rng.random((trials * tokens, experts)), top_k, axis=1)[:, :top_k]
    trial = np.repeat(np.arange(trials), tokens * top_k)
    counts = np.bincount(trial * experts + chosen.ravel(), minlength=trials * experts)
    return counts.reshape(trials, experts).astype(float)


def test_128_experts_on_6_ranks() -> None:
    """A user's report (vllm-ascend, PR 16384): two ranks hold 22 experts and four 21."""
    slots = deal(128, 6, redundant=0)
    assert ranks(slots) == [22, 22, 21, 21, 21, 21]
    assert slots.full_ranks == 2
    assert slots.imbalance == pytest.approx(22 / (128 / 6))
    assert round(float(slots.imbalance), 2) == 1.03


def test_256_experts_and_16_replicas_on_16_ranks() -> None:
    slots = deal(256, 16, redundant=16)
    assert ranks(slots) == [17] * 16
    assert slots.imbalance == 1
    assert slots.redundant == 16


@pytest.mark.parametrize(
    ("experts", "ep", "total", "per_rank"),
    [(256, 144, 288, 2), (256, 320, 320, 1), (256, 8, 256, 32), (128, 6, 132, 22)],
)
def test_without_a_number_every_rank_is_filled(experts: int, ep: int, total: int, per_rank: int) -> None:
    slots = deal(experts, ep)
    assert (slots.total, slots.per_full_rank, slots.full_ranks) == (total, per_rank, ep)
    assert slots.imbalance == 1


def test_more_ranks_than_experts_need_replicas() -> None:
    assert ranks(deal(8, 16)) == [1] * 16
    with pytest.raises(InputError, match="at least 8 redundant experts"):
        deal(8, 16, redundant=0)
    assert ranks(deal(8, 16, redundant=8)) == [1] * 16
    with pytest.raises(InputError, match="rank of 16 empty"):
        deal(8, np.array([4.0, 16.0]), redundant=0)


@QUICK
@given(st.integers(1, 512), st.integers(1, 600), st.one_of(st.none(), st.integers(0, 64)))
def test_every_slot_is_on_one_rank(experts: int, ep: int, redundant: int | None) -> None:
    if redundant is not None and experts + redundant < ep:
        with pytest.raises(InputError):
            deal(experts, ep, redundant)
        return
    slots = deal(experts, ep, redundant)
    dealt = ranks(slots)
    assert len(dealt) == ep
    assert sum(dealt) == slots.total >= experts
    assert max(dealt) - min(dealt) <= 1
    assert min(dealt) >= 1
    assert slots.imbalance == pytest.approx(max(dealt) * ep / sum(dealt))
    assert slots.redundant == (redundant if redundant is not None else slots.total - experts)


def test_rows_of_an_expert_as_deepseek_profiled_them() -> None:
    """DeepSeek's profile data, issue 20: EP128, 128 tokens per rank, top-8 of 256: 512 rows per expert."""
    load = expert_load(deal(256, 128), tokens=128 * 128, top_k=8)
    assert load.mean_rows_per_slot == 512


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens", "ep", "trials"),
    [(64, 4, 16, 8, 8000), (256, 8, 32, 32, 1500), (32, 4, 20, 4, 8000), (8, 2, 3, 4, 40000)],
)
def test_mean_rows_and_active_experts_against_monte_carlo(
    experts: int, top_k: int, tokens: int, ep: int, trials: int
) -> None:
    rows = simulate(experts=experts, top_k=top_k, tokens=tokens, trials=trials)
    assert (rows.sum(axis=1) == tokens * top_k).all()
    slots = deal(experts, ep, redundant=0)
    load = expert_load(slots, tokens=tokens, top_k=top_k)
    assert load.mean_rows_per_slot == pytest.approx(float(rows.mean()), rel=1e-9)
    active = (rows > 0).reshape(trials, ep, experts // ep).sum(axis=2).astype(float)
    error = 5 * float(active.std()) / math.sqrt(trials)  # one rank's mean over the trials, generously
    assert load.active == pytest.approx(float(active.mean()), abs=error)
    assert load.slots == experts // ep


def test_uneven_ranks_get_rows_by_their_slots() -> None:
    rows = simulate(experts=10, top_k=2, tokens=40, trials=3000)
    slots = deal(10, 4, redundant=0)  # 3, 3, 2, 2
    load = expert_load(slots, tokens=40, top_k=2)
    full = rows[:, :3].sum(axis=1)
    assert float(load.mean_rows_per_slot) * 3 == pytest.approx(float(full.mean()), rel=0.01)


@pytest.mark.parametrize(
    ("experts", "top_k", "per_rank", "ep", "trials"), [(256, 8, 48, 32, 60), (64, 6, 32, 8, 400), (128, 8, 64, 16, 100)]
)
def test_the_fullest_rank_against_monte_carlo(experts: int, top_k: int, per_rank: int, ep: int, trials: int) -> None:
    """The mean of the largest of P ranks, within what the trials leave open; the article's estimate lies above it."""
    rows = simulate(experts=experts, top_k=top_k, tokens=per_rank * ep, trials=trials)
    largest = rows.reshape(trials, ep, experts // ep).sum(axis=2).max(axis=1)
    fullest, open_ = float(largest.mean()), 4 * float(largest.std()) / math.sqrt(trials)
    mean = per_rank * top_k
    load = expert_load(deal(experts, ep), tokens=per_rank * ep, top_k=top_k)
    assert mean < fullest < mean * (1 + float(sampling_floor(ep, mean)))
    assert abs(float(load.rows) - fullest) < open_ + 0.02 * fullest


def test_the_sampling_floor_of_the_batch_article() -> None:
    """48 requests per rank, EP32, top-8: the article's 13.4 % above the mean, 10.5 % exactly; EPLB removes neither."""
    load = expert_load(deal(256, 32), tokens=48 * 32, top_k=8)
    assert round(float(sampling_floor(32, 48 * 8)), 3) == 0.134
    exact = group_shapes(batch=48, ep=32, experts=256, top_k=8).busiest.mean
    assert float(load.rows) == pytest.approx(float(exact), rel=1e-3)
    assert round(float(load.rows) / (48 * 8) - 1, 3) == 0.105


@pytest.mark.parametrize("limit", [NO_LIMIT, GroupLimit(count=8, taken=4)])
@pytest.mark.parametrize("ep", [2, 8, 32, 128])
@pytest.mark.parametrize("batch", [1, 4, 64])
def test_the_fullest_rank_is_that_of_the_exact_law(batch: int, ep: int, limit: GroupLimit) -> None:
    exact = group_shapes(batch=batch, ep=ep, experts=256, top_k=8, limit=limit).busiest.mean
    load = expert_load(deal(256, ep), tokens=batch * ep, top_k=8, limit=limit)
    assert float(load.rows) == pytest.approx(float(exact), rel=0.015 if batch < 4 else 0.004)


def test_the_largest_of_normal_numbers() -> None:
    """Against tables of normal order statistics (Harter 1961): 0.5642, 1.4236, 2.0697, 2.5076."""
    assert largest_of_normals(1) == 0
    assert largest_of_normals(np.array([2.0, 8.0, 32.0, 100.0])) == pytest.approx(
        [0.5642, 1.4236, 2.0697, 2.5076], abs=0.03
    )


def test_a_lone_rank_has_no_fullest() -> None:
    load = expert_load(deal(256, 1), tokens=100, top_k=8)
    assert load.rows == 800


def test_replicas_share_their_experts_rows() -> None:
    plain = expert_load(deal(256, 32, redundant=0), tokens=4096, top_k=8)
    doubled = expert_load(deal(256, 32, redundant=256), tokens=4096, top_k=8)
    assert doubled.mean_rows_per_slot == plain.mean_rows_per_slot / 2
    assert doubled.rows == pytest.approx(plain.rows, rel=2e-3)  # as many rows per rank, over twice the slots


@QUICK
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 5000), st.data())
def test_rows_are_conserved_and_bounded(experts: int, ep: int, tokens: int, data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, experts))
    slots = deal(experts, ep)
    load = expert_load(slots, tokens=tokens, top_k=top_k)
    assert float(load.mean_rows_per_slot) * float(slots.total) == pytest.approx(tokens * top_k)
    assert 0 < load.active <= load.slots == slots.per_full_rank
    assert load.active <= float(load.rows) * (1 + 1e-12)  # an active slot has a row
    assert tokens * top_k / ep <= float(load.rows) * (1 + 1e-12)  # the fullest has at least the mean
    assert load.rows <= tokens * slots.per_full_rank  # and no slot sees a token twice
    assert load.rows_per_active >= 1 - 1e-12


@QUICK
@given(st.integers(1, 300), st.integers(1, 200), st.integers(1, 3000))
def test_more_tokens_never_mean_less_work(experts: int, ep: int, tokens: int) -> None:
    top_k, slots = min(4, experts), deal(experts, ep)
    fewer = expert_load(slots, tokens=tokens, top_k=top_k)
    more = expert_load(slots, tokens=tokens + 1, top_k=top_k)
    assert float(more.rows) >= float(fewer.rows)
    assert float(more.active) >= float(fewer.active) - 1e-12


def test_open_axes_are_the_matching_scalars() -> None:
    sizes, tokens = np.array([1.0, 6.0, 32.0, 320.0])[:, None], np.array([1.0, 17.0, 4096.0])[None, :]
    together = expert_load(deal(256, sizes), tokens=tokens * sizes, top_k=8)
    for i, j in np.ndindex(4, 3):
        ep, count = float(sizes[i, 0]), float(tokens[0, j])
        one = expert_load(deal(256, ep), tokens=count * ep, top_k=8)
        assert np.asarray(together.rows)[i, j] == pytest.approx(one.rows, rel=1e-12)
        assert np.asarray(together.active)[i, j] == pytest.approx(one.active, rel=1e-12)
