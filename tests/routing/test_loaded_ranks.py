"""Loads and placement through a step's ranks: limits, agreement with the uniform law, arrays, and faults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import InputError
from moeplan.routing import rank_rows as rank_rows_module
from moeplan.routing.eplb import balanced_map
from moeplan.routing.expert_loads import ExpertLoads
from moeplan.routing.load_laws import law_loads
from moeplan.routing.loaded_ranks import TOKENS, LoadedRanks
from moeplan.routing.rank_rows import rank_rows
from moeplan.routing.slots import deal, expert_load


def ranks(law: str = "zipf:1", *, balanced: bool = False, layers: int = 6, experts: int = 64) -> LoadedRanks:
    return LoadedRanks.of(law_loads(law, layers=layers, experts=experts), top_k=8, balanced=balanced)


@pytest.mark.parametrize("ep", [1, 4, 16, 64])
@pytest.mark.parametrize("tokens", [16, 256, 4096, 100_000])
def test_uniform_loads_without_replicas_are_the_uniform_law(ep: int, tokens: int) -> None:
    """Both are approximations of the same maximum: within 3 % where a rank has 8 rows or more, 10 % below."""
    load = expert_load(deal(64, ep), tokens=tokens, top_k=8)
    imbalance, active = ranks("uniform").at(ep=ep, slots=64, tokens=tokens)
    assert imbalance == pytest.approx(load.rows * ep / (tokens * 8), rel=0.03 if tokens * 8 / ep >= 8 else 0.1)
    assert active == pytest.approx(load.active, rel=0.01)


def test_many_tokens_leave_what_the_placement_does() -> None:
    """S of the batch article: 1 for uniform loads, and for 288 slots of 256 uniform experts on 72 ranks 9/8 at best."""
    found = ranks().busiest(ep=16, slots=64)
    assert found.imbalance[-1] == pytest.approx(found.placed.mean(), rel=0.005)
    best = ranks("uniform", balanced=True, layers=1, experts=256).busiest(ep=72, slots=288)
    assert best.placed[0] == pytest.approx(9 / 8)


@given(tokens=st.integers(1, 1 << 20), law=st.sampled_from(["uniform", "zipf:0.8", "power_law:1.2", "hot:2:20"]))
def test_balanced_is_never_worse_and_nobody_has_more_than_all(tokens: int, law: str) -> None:
    order, balanced = ranks(law), ranks(law, balanced=True)
    for slots in (64, 80):
        first, second = (one.at(ep=16, slots=slots, tokens=tokens) for one in (order, balanced))
        assert 1.0 <= second[0] <= first[0] * 1.02
        for imbalance, active in (first, second):
            assert 0 < active <= slots / 16 + 1e-9
            assert imbalance <= 16 * 1.5  # a rank may have all; a normal law says a little more with few tokens


def test_skew_reads_fewer_experts() -> None:
    """Few tokens that agree read fewer experts than under uniform routing, as SGLang's skewed rows on H200 show."""
    tokens = 32
    uniform, skewed = (ranks(law).at(ep=4, slots=64, tokens=tokens)[1] for law in ("uniform", "zipf:1.5"))
    assert skewed < 0.8 * uniform


def test_arrays_are_the_scalars() -> None:
    loaded = ranks("power_law:1.2")
    ep, tokens = np.array([4.0, 8.0])[:, None, None], np.array([8.0, 100.0, 5000.0])[None, :, None]
    imbalance, active = (np.asarray(one) for one in loaded.at(ep=ep, slots=np.full(ep.shape, 64.0), tokens=tokens))
    assert np.shape(imbalance) == np.shape(active) == (2, 3, 1)
    for i, one in enumerate((4, 8)):
        for j, count in enumerate((8, 100, 5000)):
            assert (imbalance[i, j, 0], active[i, j, 0]) == loaded.at(ep=one, slots=64, tokens=count)


def test_between_its_points_it_is_within_a_percent() -> None:
    loads = law_loads("zipf:0.9", layers=4, experts=64)
    loaded = LoadedRanks.of(loads, top_k=8, balanced=True)
    placed = balanced_map(loaded.chance, slots=64, ranks=16)
    for tokens in TOKENS[3:-1] * 2.0:
        exact = rank_rows(loaded.chance, placed, tokens=tokens, top_k=8).imbalance.mean()
        assert loaded.at(ep=16, slots=64, tokens=tokens)[0] == pytest.approx(exact, rel=0.01)


def test_probabilities_add_up_to_top_k_however_hot_one_expert_is() -> None:
    loaded = ranks("hot:1:1000")
    assert loaded.chance.sum(axis=1) == pytest.approx(8.0)
    assert loaded.chance.max() == 1.0


def test_layers_without_load_are_left_out() -> None:
    some = law_loads("zipf:1", layers=3, experts=16).windows.copy()
    some[:, 1] = 0
    loaded = LoadedRanks.of(ExpertLoads(windows=some, layers=(0, 1, 2), source="a record"), top_k=4)
    assert loaded.chance.shape == (2, 16)


def test_too_few_loaded_experts_are_named_by_layer() -> None:
    some = np.zeros((1, 2, 16))
    some[0, 0, :3], some[0, 1] = 1, 1
    with pytest.raises(InputError) as error:
        LoadedRanks.of(ExpertLoads(windows=some, layers=(3, 4), source="a record"), top_k=4)
    assert [fault.path for fault in error.value.faults] == ["layer 3"]


def test_slots_must_divide_and_a_given_placement_fit() -> None:
    with pytest.raises(InputError, match="64 slots do not divide over 6 ranks"):
        ranks().at(ep=6, slots=64, tokens=100)
    loads = law_loads("zipf:1", layers=2, experts=16)
    given_map = balanced_map(loads.total, slots=16, ranks=4)
    loaded = LoadedRanks.of(loads, top_k=4, given=given_map)
    assert loaded.at(ep=4, slots=16, tokens=1000)[0] >= 1.0
    with pytest.raises(InputError, match="16 slots on 4 ranks, not 16 on 8"):
        loaded.at(ep=8, slots=16, tokens=1000)


@pytest.mark.parametrize("law", ["uniform", "zipf:0.8", "lognormal:1"])
def test_many_ranks_in_groups_are_the_ranks_one_by_one(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 512 ranks only the fullest count alone: within 0.2 % of all alone."""
    heat = law_loads(law, layers=3, experts=512).total
    rows = 2000.0 * heat / heat.mean(axis=1, keepdims=True) * np.array([0.01, 1.0])[:, None, None]
    grouped = rank_rows_module.largest_rows(rows)
    monkeypatch.setattr(rank_rows_module, "ALONE", 10_000)
    assert grouped == pytest.approx(rank_rows_module.largest_rows(rows), rel=2e-3)
