"""How the results of several GPUs are ranked."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.explain.answer import RANKINGS, Answer, Result, per_dollar, per_watt
from moeplan.predict import Prediction, Predictor
from moeplan.search.best import Found
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision

CATALOG = Catalog.standard()


@cache
def step(gpu: str) -> Prediction:
    model = CATALOG.model("deepseek-v3")
    deployment = Deployment(
        batch=64, ep=32, context=4096, precision=Precision.of(model), acceptance=Acceptance.geometric(0.85, 1, "a test")
    )
    return Predictor.of(model, cluster_of(CATALOG, gpu, "cx7", None), CATALOG).predict(deployment)


def priced(gpu: str, *, price: float | None = None, tdp: float | None = None) -> Prediction:
    found = step(gpu)
    return replace(found, cluster=replace(found.cluster, gpu=replace(found.cluster.gpu, price=price, tdp=tdp)))


def result(name: str, prediction: Prediction | None, *, complete: bool = True) -> Result:
    found = None
    if prediction is not None:
        found = Found(prediction=prediction, tried=2, feasible=1, binding="memory", complete=complete)
    return Result(
        gpu=name,
        nic="cx7",
        asked={"gpu": name, "nic": "cx7"},
        found=found,
        front=(),
        tried=2,
        missing=None,
        unsupported=None,
        complete=complete,
    )


def test_tokens_per_dollar_and_per_joule() -> None:
    """At 2 USD/h a GPU of r tok/s gives 1,800·r tokens for a dollar; at 700 W r/700 for a joule."""
    rate = float(step("h800").tps_per_gpu)
    found = priced("h800", price=2.0, tdp=700.0)
    assert per_dollar(found) == pytest.approx(1800 * rate)
    assert per_watt(found) == pytest.approx(rate / 700)
    assert per_dollar(priced("h800")) is None
    assert per_watt(priced("h800")) is None
    assert list(RANKINGS) == ["tok/s", "tok/s/$", "tok/s/W"]
    assert RANKINGS["tok/s"](found) == rate


def names(answer: Answer) -> list[str]:
    return [item.gpu for item in answer.ranked]


def test_each_ranking_has_its_own_winner() -> None:
    quick, slow = float(step("h800").tps_per_gpu), float(step("h20").tps_per_gpu)
    assert quick > slow
    results = (
        result("slow", priced("h20", price=0.1, tdp=5000.0)),
        result("quick", priced("h800", price=90.0, tdp=700.0)),
        result("none", None),
    )
    assert names(Answer(results=results, rank_by="tok/s")) == ["quick", "slow"]
    assert names(Answer(results=results, rank_by="tok/s/$")) == ["slow", "quick"]
    assert names(Answer(results=results, rank_by="tok/s/W")) == ["quick", "slow"]
    winner = Answer(results=results, rank_by="tok/s/$").winner
    assert winner is not None
    assert winner.gpu == "slow"


def test_what_has_no_price_comes_last() -> None:
    results = (result("quick", priced("h800")), result("slow", priced("h20", price=100.0)))
    answer = Answer(results=results, rank_by="tok/s/$")
    assert names(answer) == ["slow", "quick"]
    nobody = Answer(results=(result("b", priced("h20")), result("a", priced("h800"))), rank_by="tok/s/$")
    assert names(nobody) == ["b", "a"]  # the order asked


def test_no_result_no_winner() -> None:
    assert Answer(results=(), rank_by="tok/s").winner is None
    lost = Answer(results=(result("a", None), result("b", None)), rank_by="tok/s")
    assert lost.winner is None
    assert lost.ranked == []


def test_an_answer_is_complete_when_all_of_it_is() -> None:
    whole, part = result("a", step("h800")), result("b", step("h20"), complete=False)
    assert Answer(results=(whole,), rank_by="tok/s").complete
    assert not Answer(results=(whole, part), rank_by="tok/s").complete
