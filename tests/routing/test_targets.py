"""How many ranks a token's experts lie on."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from moeplan.routing.targets import distinct_targets


@pytest.mark.parametrize(("ranks", "expected"), [(4, 3.61), (8, 5.30), (16, 6.52), (32, 7.27), (64, 7.68)])
def test_the_published_figures(ranks: int, expected: float) -> None:
    """Batch article: 8 distinct of 256 experts."""
    assert float(distinct_targets(ranks, experts=256, top_k=8)) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("places", "groups", "taken"), [(4, 1, 1), (4, 4, 2), (2, 4, 2), (12, 4, 2), (6, 6, 3)])
def test_it_counts_every_way(places: int, groups: int, taken: int) -> None:
    """12 experts, 3 a token, all ways of choosing them inside the groups taken counted."""
    experts, top_k = 12, 3
    size, counts = experts // groups, []
    for chosen in combinations(range(groups), taken):
        pool = [expert for group in chosen for expert in range(group * size, (group + 1) * size)]
        counts += [len({expert * places // experts for expert in picks}) for picks in combinations(pool, top_k)]
    found = distinct_targets(places, experts=experts, top_k=top_k, groups=groups, top_groups=taken)
    assert float(found) == pytest.approx(np.mean(counts))


def test_arrays_broadcast() -> None:
    found = distinct_targets(np.array([1.0, 8.0, 64.0]), experts=256, top_k=np.array([[1.0], [8.0]]))
    assert found.shape == (2, 3)
    assert found[0].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert found[1, 0] == 1.0
