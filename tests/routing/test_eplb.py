"""The balancer: no layer worse than the published heuristic, near the bound and the optimum, and the laws it obeys."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]

from moeplan.errors import InputError
from moeplan.kinds import Array
from moeplan.routing.eplb import balanced_map, lower_bound
from moeplan.routing.expert_map import in_order
from moeplan.routing.load_files import read_loads
from moeplan.routing.load_laws import law_loads
from moeplan.routing.published_eplb import published_eplb
from moeplan.routing.replicas import lightest_heaviest, replicas

# github.com/deepseek-ai/EPLB, README: 12 experts, 16 replicas, 4 groups, 2 nodes, 8 GPUs.
README = np.array(
    [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ],
    dtype=float,
)
README_MAP = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]
SIZES = [(288, ranks) for ranks in (32, 36, 48, 72, 96, 144, 288)] + [(320, ranks) for ranks in (64, 160, 320)]
LAWS = ("recorded", "uniform", "zipf:0.5", "zipf:0.8", "zipf:1", "zipf:1.5", "lognormal:1", "hot:1:100")


@lru_cache
def loads(law: str) -> Array:
    if law == "recorded":
        return read_loads([Path(str(files("moeplan.data") / "observations" / "expert_load_dsv3_decode.csv"))]).total
    return law_loads(law, layers=6, experts=256).total


def test_the_published_heuristic_gives_its_readme_example() -> None:
    found = published_eplb(README, slots=16, ranks=8, nodes=2, groups=4)
    assert found.expert[0].tolist() == README_MAP[0]
    # Experts 8 (two replicas of 86) and 9 (86) of layer 1 weigh the same: which comes first says nothing.
    same = {9: 8}
    assert [same.get(e, e) for e in found.expert[1].tolist()] == [same.get(e, e) for e in README_MAP[1]]


@pytest.mark.parametrize(("nodes", "groups"), [(1, 1), (2, 4)])
def test_the_readme_example_is_balanced_better(nodes: int, groups: int) -> None:
    sizes: dict[str, Any] = dict(slots=16, ranks=8, nodes=nodes, groups=groups)
    ours, theirs = (make(README, **sizes).max_over_mean(README) for make in (balanced_map, published_eplb))
    assert (ours <= theirs * (1 + 1e-9)).all()
    assert ours.mean() < theirs.mean() - 0.005


@pytest.mark.parametrize("law", LAWS)
def test_no_layer_is_worse_than_the_published_heuristic(law: str) -> None:
    ours, theirs = [], []
    for slots, ranks in SIZES:
        placed = balanced_map(loads(law), slots=slots, ranks=ranks)
        reached = placed.max_over_mean(loads(law))
        published = published_eplb(loads(law), slots=slots, ranks=ranks).max_over_mean(loads(law))
        bound = lower_bound(loads(law), slots=slots, ranks=ranks)
        assert (reached <= published * (1 + 1e-9)).all(), (slots, ranks)
        assert (reached >= bound * (1 - 1e-9)).all()
        if slots == ranks:
            assert reached == pytest.approx(bound)
        ours.append(reached.mean())
        theirs.append(published.mean())
    assert np.mean(ours) < np.mean(theirs) if law != "uniform" else np.mean(ours) <= np.mean(theirs)


def test_on_recorded_loads_the_excess_over_the_mean_is_a_sixth_of_the_published() -> None:
    """58 layers, 288 slots on 72 ranks: 0.4 % instead of 2.6 % in the mean, 0.6 % instead of 5.8 % at worst."""
    reached = balanced_map(loads("recorded"), slots=288, ranks=72).max_over_mean(loads("recorded"))
    published = published_eplb(loads("recorded"), slots=288, ranks=72).max_over_mean(loads("recorded"))
    assert published.mean() == pytest.approx(1.026, abs=0.001)
    assert published.max() == pytest.approx(1.058, abs=0.002)
    assert reached.mean() < 1.005
    assert reached.max() < 1.0075


@pytest.mark.parametrize(("nodes", "ranks"), [(4, 32), (2, 32), (8, 96)])
def test_groups_stay_on_their_node(nodes: int, ranks: int) -> None:
    found = balanced_map(loads("recorded"), slots=288, ranks=ranks, nodes=nodes, groups=8)
    on_node = found.expert.reshape(found.layers, nodes, -1) // 32
    assert all(len(np.unique(node)) == 8 // nodes for layer in on_node for node in layer)
    published = published_eplb(loads("recorded"), slots=288, ranks=ranks, nodes=nodes, groups=8)
    reached, other = (one.max_over_mean(loads("recorded")) for one in (found, published))
    assert (reached <= other * (1 + 1e-9)).all()
    assert reached.mean() < other.mean()


@pytest.mark.parametrize("law", LAWS)
def test_hierarchical_is_no_worse_at_all_sizes(law: str) -> None:
    ours, theirs = [], []
    weight = loads(law)[:3]
    for nodes in (2, 4, 8):
        for slots, ranks in SIZES:
            if ranks % nodes or slots % nodes:
                continue
            sizes: dict[str, Any] = dict(slots=slots, ranks=ranks, nodes=nodes, groups=8)
            reached, published = (
                make(weight, **sizes).max_over_mean(weight) for make in (balanced_map, published_eplb)
            )
            assert (reached <= published * (1 + 1e-9)).all(), sizes
            ours.append(reached.mean())
            theirs.append(published.mean())
    assert len(ours) == 29
    assert np.mean(ours) < np.mean(theirs) if law != "uniform" else np.mean(ours) <= np.mean(theirs)


def best_packing(share: Array, *, ranks: int) -> float:
    """Least load of the fullest rank for these replicas, equal slots, by integer programming."""
    slots = len(share)
    place = np.arange(slots * ranks).reshape(slots, ranks)
    rows = []
    for slot in range(slots):
        rows.append((place[slot], np.ones(ranks), 1, 1))
    for rank in range(ranks):
        rows.append((place[:, rank], np.ones(slots), slots // ranks, slots // ranks))
    matrix = np.zeros((len(rows) + ranks, slots * ranks + 1))
    low, high = np.zeros(len(matrix)), np.zeros(len(matrix))
    for number, (columns, values, least, most) in enumerate(rows):
        matrix[number, columns], low[number], high[number] = values, least, most
    for rank in range(ranks):
        matrix[len(rows) + rank, place[:, rank]], matrix[len(rows) + rank, -1] = share, -1.0
        low[len(rows) + rank] = -np.inf
    found = milp(
        np.append(np.zeros(slots * ranks), 1.0),
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.append(np.ones(slots * ranks), 0),
        bounds=Bounds(0, np.append(np.ones(slots * ranks), np.inf)),
        options={"time_limit": 20, "mip_rel_gap": 1e-4},
    )
    assert found.success
    return float(found.fun)


@pytest.mark.parametrize("seed", range(6))
def test_small_cases_come_within_two_percent_of_the_optimum(seed: int) -> None:
    """The optimum over packings, for the counts that we chose and for those of the published heuristic."""
    rng = np.random.default_rng(seed)
    weight = rng.lognormal(0, 0.8, (1, 8))
    slots, ranks = (12, 4) if seed % 2 else (12, 3)
    placed = balanced_map(weight, slots=slots, ranks=ranks, tolerance=0.0)
    reached = float(placed.rank_loads(weight).max())
    best = min(
        best_packing(np.repeat(weight[0] / counts, counts), ranks=ranks)
        for counts in (placed.copies[0], replicas(weight, slots=slots, most=slots)[0])
    )
    assert best * (1 - 1e-3) <= reached <= best * 1.02


def best_apart(load: Array, counts: Array, *, ranks: int) -> float:
    """Least load of the fullest rank for these counts, equal slots, no rank twice the same; infinity: cannot be."""
    experts, slots = len(load), int(counts.sum()) // ranks
    lies = np.arange(experts * ranks).reshape(experts, ranks)
    matrix = np.zeros((experts + 2 * ranks, lies.size + 1))
    for expert in range(experts):
        matrix[expert, lies[expert]] = 1.0
    for rank in range(ranks):
        matrix[experts + rank, lies[:, rank]] = 1.0
        matrix[experts + ranks + rank, lies[:, rank]], matrix[experts + ranks + rank, -1] = load / counts, -1.0
    low = np.concatenate([counts, np.full(ranks, slots), np.full(ranks, -np.inf)])
    high = np.concatenate([counts, np.full(ranks, slots), np.zeros(ranks)])
    found = milp(
        np.append(np.zeros(lies.size), 1.0),
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.append(np.ones(lies.size), 0),
        bounds=Bounds(0, np.append(np.ones(lies.size), np.inf)),
    )
    return float("inf") if found.x is None else float(found.fun)


@pytest.mark.parametrize("seed", range(12))
def test_small_cases_with_replicas_apart_are_the_optimum(seed: int) -> None:
    """For the better of two sets of counts, where no rank may hold an expert twice."""
    weight = np.random.default_rng(seed).lognormal(0, 0.8, (1, 8))
    ranks = 4 if seed % 2 else 3
    placed = balanced_map(weight, slots=12, ranks=ranks, tolerance=0.0)
    counts = (placed.copies[0], replicas(weight, slots=12, most=ranks)[0])
    best = min(best_apart(weight[0], one, ranks=ranks) for one in counts)
    assert float(placed.rank_loads(weight).max()) <= best * (1 + 1e-4)


def test_replicas_make_the_heaviest_as_light_as_any_counts_can() -> None:
    """Against every way to deal 3 replicas over 4 experts."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        weight = rng.lognormal(0, 1, 4)
        every = [c for c in np.ndindex(4, 4, 4, 4) if sum(c) == 3]
        least = min((weight / (np.array(extra) + 1)).max() for extra in every)
        assert lightest_heaviest(weight[None], slots=7)[0] == pytest.approx(least)


cases = st.tuples(
    st.integers(1, 3), st.sampled_from([(8, 4), (12, 3), (16, 16), (6, 6)]), st.integers(0, 3), st.integers(0, 10_000)
)


@given(cases)
def test_conservation_and_laws(case: tuple[int, tuple[int, int], int, int]) -> None:
    """Every expert has a slot, the load is all there, numbering does not matter, replicas never make it worse."""
    layers, (experts, ranks), more, seed = case
    rng = np.random.default_rng(seed)
    weight = rng.integers(0, 50, (layers, experts)).astype(float)
    slots = experts + more * ranks
    found = balanced_map(weight, slots=slots, ranks=ranks)
    assert (found.copies >= 1).all()
    assert (found.copies.sum(axis=1) == slots).all()
    assert found.rank_loads(weight).sum(axis=1) == pytest.approx(weight.sum(axis=1))
    again = balanced_map(weight, slots=slots, ranks=ranks)
    assert (found.expert == again.expert).all()
    plain = in_order(layers=layers, experts=experts, slots=experts, ranks=ranks)
    reached = found.max_over_mean(weight)
    assert (reached <= plain.max_over_mean(weight) * (1 + 1e-9)).all()
    assert (reached <= published_eplb(weight, slots=slots, ranks=ranks).max_over_mean(weight) * (1 + 1e-9)).all()
    assert (reached >= lower_bound(weight, slots=slots, ranks=ranks) * (1 - 1e-9)).all()


@pytest.mark.parametrize("ranks", [36, 72, 96, 144])
def test_numbering_does_not_matter(ranks: int) -> None:
    order = np.random.default_rng(5).permutation(256)
    weight = loads("recorded")[:12]
    reached = balanced_map(weight, slots=288, ranks=ranks).max_over_mean(weight)
    renamed = balanced_map(weight[:, order], slots=288, ranks=ranks).max_over_mean(weight[:, order])
    assert renamed == pytest.approx(reached, rel=1e-9)


def test_scale_does_not_matter() -> None:
    weight = loads("recorded")[:6]
    once, more = (balanced_map(weight * by, slots=288, ranks=72) for by in (1.0, 2.0**20))
    assert (once.expert == more.expert).all()


def test_replicas_lie_apart_where_they_can() -> None:
    for law in ("recorded", "zipf:1", "lognormal:1"):
        for ranks in (48, 72, 96):
            assert balanced_map(loads(law), slots=288, ranks=ranks).doubled.sum() <= 8
    hot = balanced_map(loads("hot:1:100"), slots=288, ranks=32)
    assert hot.doubled.sum() == 0
    assert hot.max_over_mean(loads("hot:1:100")).max() < 1.005  # published: 1.18, for 33 replicas on 32 ranks


def test_a_layer_without_load_stays_in_order() -> None:
    weight = np.concatenate([np.zeros((1, 256)), loads("recorded")[:1]])
    found = balanced_map(weight, slots=288, ranks=72)
    assert (found.expert[0] == np.arange(288) % 256).all()
    assert found.max_over_mean(weight)[0] == 1.0


def test_never_worse_than_the_placement_at_hand() -> None:
    weight = np.ones((1, 6))
    at_hand = in_order(layers=1, experts=6, slots=6, ranks=3)
    assert (balanced_map(weight, slots=6, ranks=3, current=at_hand).expert == at_hand.expert).all()


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        (dict(slots=200, ranks=72), "32 redundant slots or more, in steps of 72"),
        (dict(slots=256, ranks=72), "give 32 redundant"),
        (dict(slots=290, ranks=72), "give 32 or 104 redundant"),
        (dict(slots=288, ranks=72, nodes=5, groups=8), "72 ranks do not divide over 5 nodes"),
        (dict(slots=288, ranks=72, nodes=9, groups=8), "8 groups do not divide over 9 nodes"),
        (dict(slots=288, ranks=0), "ranks: is 0"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_with_what_would(sizes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as refused:
        balanced_map(np.ones((1, 256)), **sizes)
    assert named in str(refused.value)


@pytest.mark.parametrize("wrong", [np.ones(8), np.ones((0, 8)), np.full((1, 8), np.nan), np.full((2, 8), -1.0)])
def test_loads_that_are_none_are_refused(wrong: Array) -> None:
    with pytest.raises(InputError, match="finite numbers from 0 up"):
        balanced_map(wrong, slots=8, ranks=4)
