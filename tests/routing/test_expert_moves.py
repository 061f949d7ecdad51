"""From one placement to another: the fewest experts moved, what they cost, files, and the rows that result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moeplan.errors import InputError
from moeplan.routing.draws import draw_rows, draw_slots
from moeplan.routing.eplb import balanced_map
from moeplan.routing.expert_map import ExpertMap, in_order
from moeplan.routing.expert_moves import Rates, aligned, fewest_moves, loaded, move_cost
from moeplan.routing.load_laws import law_loads
from moeplan.routing.map_files import read_map, write_map
from moeplan.routing.picks import picks
from moeplan.routing.placement import given as given_placement
from moeplan.routing.popularity import weighted
from moeplan.routing.rank_rows import rank_rows

LOADS = law_loads("lognormal:0.9", layers=6, experts=64).total
DRIFTED = LOADS * np.random.default_rng(2).lognormal(0, 0.3, LOADS.shape)
OLD = balanced_map(LOADS, slots=80, ranks=16)


@pytest.mark.parametrize("bound", [1.02, 1.05, 1.2, 1.5])
def test_the_bound_is_met_with_fewer_moves_than_a_fresh_placement(bound: float) -> None:
    found = fewest_moves(DRIFTED, OLD, bound=bound)
    fresh = aligned(OLD, balanced_map(DRIFTED, slots=80, ranks=16))
    assert (found.copies >= 1).all()
    reachable = np.maximum(fresh.max_over_mean(DRIFTED), bound)
    assert (found.max_over_mean(DRIFTED) <= reachable * (1 + 1e-9)).all()
    assert (loaded(OLD, found).sum(axis=1) <= loaded(OLD, fresh).sum(axis=1)).all()
    assert loaded(OLD, found).sum() < 0.6 * loaded(OLD, fresh).sum()


def test_a_wider_bound_needs_no_more_moves() -> None:
    moves = [int(loaded(OLD, fewest_moves(DRIFTED, OLD, bound=bound)).sum()) for bound in (1.05, 1.2, 1.5, 3.0)]
    assert moves == sorted(moves, reverse=True)
    assert moves[-1] == 0


def test_one_replica_is_enough_where_one_expert_became_hot() -> None:
    """Eight experts alike on four ranks with a spare slot each: twice the heat of one is halved by one move."""
    old = ExpertMap(expert=np.array([[0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 0]]), experts=8, ranks=4)
    weight = np.array([[1.0, 2.5, 1, 1, 1, 1, 1, 1]])
    found = fewest_moves(weight, old, bound=1.3)
    assert loaded(old, found).sum() == 1
    assert found.max_over_mean(weight)[0] <= 1.3 < old.max_over_mean(weight)[0]


def test_renaming_ranks_moves_less_and_changes_no_load() -> None:
    fresh = balanced_map(DRIFTED, slots=80, ranks=16)
    renamed = aligned(OLD, fresh)
    assert np.sort(renamed.rank_loads(DRIFTED)) == pytest.approx(np.sort(fresh.rank_loads(DRIFTED)))
    assert loaded(OLD, renamed).sum() < loaded(OLD, fresh).sum()
    assert loaded(OLD, aligned(OLD, OLD)).sum() == 0
    inside = aligned(OLD, fresh, ranks_per_node=8)
    assert np.sort(inside.rank_loads(DRIFTED)[:, :8]) == pytest.approx(np.sort(fresh.rank_loads(DRIFTED)[:, :8]))


def test_cost_of_a_move() -> None:
    """Rank 0 of node 0 loads expert 2 from its neighbour, rank 2 of node 1 expert 0 from the other node."""
    old = ExpertMap(expert=np.array([[0, 1, 2, 3, 4, 1, 5, 3]]), experts=6, ranks=4)
    new = ExpertMap(expert=np.array([[0, 2, 2, 3, 4, 1, 5, 3]]), experts=6, ranks=4)
    far = ExpertMap(expert=np.array([[0, 1, 2, 3, 4, 0, 5, 3]]), experts=6, ranks=4)
    rates = Rates(scale_up=10.0, network=1.0, gpus_per_node=2)
    near, away = (move_cost(old, one, expert_bytes=30.0, rates=rates) for one in (new, far))
    assert (near.moves, near.inside, near.bytes_, near.seconds) == (1, 1, 30.0, 3.0)
    assert (away.moves, away.inside, away.bytes_, away.seconds) == (1, 0, 30.0, 30.0)
    assert move_cost(old, old, expert_bytes=30.0, rates=rates).seconds == 0.0


def test_groups_stay_on_their_nodes_when_moving() -> None:
    old = balanced_map(LOADS, slots=80, ranks=16, nodes=2, groups=4)
    found = fewest_moves(DRIFTED, old, bound=1.05, nodes=2, groups=4)
    on_node = found.expert.reshape(found.layers, 2, -1) // 16
    assert all(len(np.unique(node)) == 2 for layer in on_node for node in layer)


def test_a_file_for_sglang_and_back(tmp_path: Path) -> None:
    """A row per layer of the model; dense ones in the engine's own order; one key, since SGLang passes on every key."""
    path = tmp_path / "place.json"
    write_map(path, OLD, rows=tuple(range(3, 9)), layers=9)
    content = json.loads(path.read_text())
    assert list(content) == ["physical_to_logical_map"]
    assert np.shape(content["physical_to_logical_map"]) == (9, 80)
    assert content["physical_to_logical_map"][0][:3] == [0, 1, 2]
    back = read_map(path, rows=tuple(range(3, 9)), experts=64, ranks=16)
    assert (back.expert == OLD.expert).all()


@pytest.mark.parametrize("text", ["{}", "[1, 2]", '{"physical_to_logical_map": [[0, 1], [0]]}', "nothing"])
def test_a_file_that_is_no_map_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError):
        read_map(tmp_path / "x.json", rows=(0,), experts=2, ranks=1)


@pytest.mark.parametrize(
    ("expert", "named"),
    [([[0, 1, 2]], "do not divide"), ([[0, 1, 2, 9]], "no expert 9"), ([[0, 1, 2, 2]], "expert 3 has no slot")],
)
def test_maps_that_cannot_be_are_refused(expert: list[list[int]], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ExpertMap(expert=np.array(expert), experts=4, ranks=2)


def test_rows_of_the_busiest_rank_beside_draws() -> None:
    """32 experts, top 4, hot ones: the largest of 8 ranks within 1 % of 4,000 draws, active slots within 0.5 %."""
    loads = law_loads("lognormal:0.7", layers=1, experts=32).total
    placed = balanced_map(loads, slots=40, ranks=8)
    found = rank_rows(loads, placed, tokens=np.array([64.0, 512.0]), top_k=4)
    heat = picks(weighted(loads[0], experts=32, top_k=4))
    place = given_placement(placed.expert[0], experts=32, ep=8)
    for number, tokens in enumerate((64, 512)):
        slots = draw_slots(draw_rows(heat, tokens=tokens, draws=4000, seed=1), place, seed=1)
        ranks = slots.reshape(4000, 8, -1).sum(axis=2)
        assert found.mean[number, 0] == pytest.approx(tokens * 4 / 8)
        assert found.busiest[number, 0] == pytest.approx(ranks.max(axis=1).mean(), rel=0.015)
        active = (slots.reshape(4000, 8, -1) > 0).sum(axis=2).mean(axis=0)
        assert found.active[number, 0] == pytest.approx(active, rel=0.005)


def test_rows_of_a_scalar_equal_those_of_the_array() -> None:
    whole = rank_rows(LOADS, OLD, tokens=np.array([[256.0], [1024.0]]), top_k=4)
    one = rank_rows(LOADS, OLD, tokens=1024.0, top_k=4)
    assert whole.busiest.shape == (2, 1, 6)
    assert whole.active.shape == (2, 1, 6, 16)
    assert whole.busiest[1, 0] == pytest.approx(one.busiest)
    assert whole.placed == pytest.approx(np.broadcast_to(OLD.max_over_mean(LOADS), (2, 1, 6)), rel=1e-6)
    assert (whole.imbalance[0] > whole.imbalance[1]).all()


def test_the_sampling_floor_alone_when_all_are_alike() -> None:
    """EP32, 48 requests, top 8: the batch article's √(2 ln P)/√(B·k) = 13.4 % is above the exact 10.6 %."""
    even = in_order(layers=1, experts=256, slots=256, ranks=32)
    found = rank_rows(np.ones((1, 256)), even, tokens=48.0 * 32, top_k=8)
    assert found.imbalance[0] - 1 == pytest.approx(0.106, abs=0.002)
