"""Loads and redundant slots in a search: every piece is what its scalars predict, the best of all is found."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.explain.balance_observed import packaged_loads
from moeplan.predict import Prediction, Predictor
from moeplan.routing.expert_loads import ExpertLoads
from moeplan.routing.loaded_ranks import LoadedRanks
from moeplan.search.best import Found, best
from moeplan.search.redundancy import fastest_redundancy
from moeplan.search.space import Space
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import NO_DRAFTS, Acceptance, Deployment, Precision

CATALOG = Catalog.standard(None)
MODEL = CATALOG.model("deepseek-v3")


@cache
def predictor() -> Predictor:
    return Predictor.of(MODEL, cluster_of(CATALOG, "h200", "cx7", None), CATALOG)


@cache
def loaded() -> LoadedRanks:
    loads = packaged_loads(CATALOG)[1][:6]
    return LoadedRanks.of(
        ExpertLoads(windows=loads[None], layers=tuple(range(6)), source="packaged"), top_k=8, balanced=True
    )


def space(**changes: object) -> Space:
    found = Space(
        counts=(16, 24, 72),
        batches=(4, 32, 128),
        drafts=(0, 1),
        precisions=(Precision.of(MODEL),),
        schedules=("naive", "two-batch"),
        context=2000.0,
        acceptance=Acceptance.geometric(0.85, 1, "this test"),
        model=MODEL,
        layouts=("dep", "tep"),
        routed=loaded(),
    )
    return replace(found, **changes)


def every(grid: Space) -> list[Prediction]:
    """Every configuration alone."""
    found = []
    for piece in grid.pieces():
        for row, ep in enumerate(np.ravel(piece.ep)):
            slots = None if piece.redundant is None else int(np.ravel(piece.redundant)[row])
            for batch in np.ravel(piece.batch):
                for drafts in np.ravel(piece.drafts):
                    one = replace(piece, ep=int(ep), batch=int(batch), drafts=int(drafts), redundant=slots)
                    found.append(predictor().predict(one))
    return found


@pytest.mark.parametrize("changes", [{"extras": (0, 1, 2)}, {"redundant": 32}], ids=["auto", "a number"])
def test_the_best_is_the_best_of_all(changes: dict[str, object]) -> None:
    grid = space(**changes)
    answer = best(predictor(), grid, min_tps=15.0)
    steps = every(grid)
    assert isinstance(answer, Found)
    assert len(steps) == answer.tried == grid.size
    allowed = [step for step in steps if bool(step.fits) and float(step.tps_per_user) >= 15.0]
    assert answer.feasible == len(allowed)
    most = max(float(step.tps_per_gpu) for step in allowed)
    assert float(answer.prediction.tps_per_gpu) == pytest.approx(most, rel=1e-9)


def test_a_number_takes_only_sizes_over_which_all_slots_divide() -> None:
    sizes = {int(step.deployment.gpus) for step in every(space(redundant=32, layouts=("dep",)))}
    assert sizes == {16, 24, 72}
    assert {int(one.deployment.gpus) for one in every(space(redundant=0, layouts=("dep",)))} == {16}


def test_a_number_takes_no_size_whose_ranks_cannot_use_it() -> None:
    """All slots divide over one rank, which already holds every expert."""
    grid = space(counts=(1, 16), redundant=16, layouts=("dep",), routed=None)
    assert {int(one.deployment.gpus) for one in every(grid)} == {16}


def test_auto_asks_for_no_more_copies_than_ranks() -> None:
    """Mixtral's 8 experts on two GPUs: with 8 redundant slots both hold every expert, however much faster each was."""
    model = CATALOG.model("mixtral-8x7b")
    machine = Predictor.of(model, cluster_of(CATALOG, "h200", "cx7", None), CATALOG)
    asked: list[int] = []

    def faster_each_time(deployment: Deployment) -> Prediction:
        asked.append(int(deployment.redundant or 0))
        return replace(machine.predict(deployment), seconds=1.0 / len(asked))

    one = Deployment(batch=8, ep=2, context=1000, precision=Precision.of(model), acceptance=NO_DRAFTS)
    found = fastest_redundancy(one, 8, faster_each_time)
    assert asked == [0, 2, 4, 6, 8]
    assert found.deployment.redundant == 8


def test_auto_takes_the_fewest_where_none_fits() -> None:
    one = Deployment(
        batch=4096, ep=72, context=8000, precision=Precision.of(MODEL), acceptance=NO_DRAFTS, routed=loaded()
    )
    found = fastest_redundancy(one, 256, predictor().predict)
    assert not bool(found.fits)
    assert found.deployment.redundant == 32


def test_auto_takes_slots_as_long_as_they_help() -> None:
    """With hot experts and few of them on a rank, slots beyond those that fill it pay; with even loads none do."""
    asked = Deployment(batch=64, ep=64, context=1000, precision=Precision.of(MODEL), acceptance=NO_DRAFTS)
    hot = replace(asked, routed=loaded())
    found = fastest_redundancy(hot, 256, predictor().predict)
    taken = int(found.deployment.redundant or 0)
    assert taken >= 64
    assert taken % 64 == 0
    steps = [predictor().predict(replace(hot, redundant=number)) for number in (taken - 64, taken, taken + 64)]
    assert float(steps[1].seconds) == float(found.seconds) < float(steps[0].seconds)
    assert float(steps[2].seconds) >= float(found.seconds) or not bool(steps[2].fits)
    even = fastest_redundancy(asked, 256, predictor().predict)
    assert even.deployment.redundant == 0
