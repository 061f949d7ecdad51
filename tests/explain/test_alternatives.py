"""What each choice of the winner is worth: no alternative beats it, each is the best of its part."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from msgspec.structs import replace

from moeplan.cli import main
from moeplan.cli.options import cluster_of
from moeplan.explain import alternatives as module
from moeplan.explain.alternatives import alternatives
from moeplan.predict import Prediction, Predictor
from moeplan.routing.load_laws import law_loads
from moeplan.routing.loaded_ranks import LoadedRanks
from moeplan.search.best import Found, best
from moeplan.search.space import Space
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision

CATALOG = Catalog.standard()
PREDICTOR = Predictor.of(CATALOG.model("deepseek-v3"), cluster_of(CATALOG, "h800", "cx7", None), CATALOG)
SPACE = Space(
    counts=(16, 32),
    batches=(8, 16, 31, 64),
    drafts=(0, 1, 2),
    precisions=tuple(Precision.of(PREDICTOR.model, kv=kv, core="bf16") for kv in ("bf16", "fp8")),
    schedules=("naive", "two-batch"),
    context=4000.0,
    acceptance=Acceptance.geometric(0.85, 2, "assumed"),
)
MIN_TPS = 20.0


def winner() -> Found:
    found = best(PREDICTOR, SPACE, min_tps=MIN_TPS)
    assert isinstance(found, Found)
    return found


def brute(**fixed: Any) -> float:
    """The best throughput with some choices fixed, one prediction at a time."""
    top = 0.0
    for ep, batch, drafts, precision, schedule in itertools.product(
        SPACE.counts, SPACE.batches, SPACE.drafts, SPACE.precisions, SPACE.schedules
    ):
        taken = {"kv": precision.kv.name, "schedule": schedule, "drafts": drafts}
        if any(taken[name] != value for name, value in fixed.items()) or (schedule == "two-batch" and batch % 2):
            continue
        step = PREDICTOR.predict(
            Deployment(
                batch=batch,
                ep=ep,
                context=SPACE.context,
                drafts=drafts,
                precision=precision,
                schedule=schedule,
                acceptance=SPACE.acceptance,
            )
        )
        if bool(step.fits) and float(step.tps_per_user) >= MIN_TPS:
            top = max(top, float(step.tps_per_gpu))
    return top


def test_every_other_choice_is_asked_once_and_is_the_best_of_its_part() -> None:
    found = winner()
    chosen = found.prediction.deployment
    others = {other.choice: other.prediction for other in alternatives(PREDICTOR, SPACE, found, min_tps=MIN_TPS)}
    kv = next(name for name in ("bf16", "fp8") if name != chosen.precision.kv.name)
    schedule = next(name for name in SPACE.schedules if name != chosen.schedule)
    expected: dict[str, dict[str, Any]] = {f"KV {kv}": {"kv": kv}, schedule: {"schedule": schedule}}
    for drafts in SPACE.drafts:
        if drafts != int(chosen.drafts):
            expected[f"{drafts} MTP draft{'s' if drafts != 1 else ''}"] = {"drafts": drafts}
    assert others.keys() == expected.keys()
    for choice, fixed in expected.items():
        step = others[choice]
        reached = float(step.tps_per_gpu) if step is not None else 0.0
        assert reached == pytest.approx(brute(**fixed))
        assert reached <= float(found.prediction.tps_per_gpu)


def test_a_choice_that_nothing_feasible_has_is_said_so() -> None:
    """More cache than fits in bf16 leaves fp8 only."""
    space = replace(SPACE, batches=(64,), counts=(32,), context=10_000.0)
    found = best(PREDICTOR, space, min_tps=1.0)
    assert isinstance(found, Found)
    assert found.prediction.deployment.precision.kv.name == "fp8"
    others = {other.choice: other.prediction for other in alternatives(PREDICTOR, space, found, min_tps=1.0)}
    assert others["KV bf16"] is None


def placed(**changes: Any) -> dict[str, Prediction | None]:
    """The alternatives of a small space under skewed loads, experts balanced."""
    loads = law_loads("zipf:1", layers=4, experts=256)
    space = replace(
        SPACE,
        batches=(64,),
        drafts=(0,),
        precisions=SPACE.precisions[:1],
        schedules=("naive",),
        model=PREDICTOR.model,
        routed=LoadedRanks.of(loads, top_k=8, balanced=True),
        **changes,
    )
    found = best(PREDICTOR, space, min_tps=1.0)
    assert isinstance(found, Found)
    others = alternatives(PREDICTOR, space, found, min_tps=1.0)
    assert all(
        other.prediction is None
        or float(other.prediction.tps_per_gpu) <= float(found.prediction.tps_per_gpu) * (1 + 1e-12)
        for other in others
    )
    return {other.choice: other.prediction for other in others}


def test_other_placements_are_alternatives() -> None:
    others = placed(extras=(0, 1, 2), counts=(32,))
    assert "experts in order" in others
    numbers = {"no more expert slots": 0, "1 more expert slot a rank": 32, "2 more expert slots a rank": 64}
    assert len(numbers.keys() & others.keys()) == 2  # all but the winner's
    assert others.keys() <= {"experts in order", *numbers}
    for choice, redundant in numbers.items():
        step = others.get(choice)
        assert step is None or step.slots is None or int(step.slots.redundant) == redundant


def test_a_number_of_slots_that_was_asked_for_has_no_other() -> None:
    """64 redundant slots on 32 ranks are two more on each: still the only number there is."""
    others = placed(redundant=64, counts=(32,))
    assert others.keys() == {"experts in order"}
    order = others["experts in order"]
    assert order is not None
    assert int(order.deployment.redundant or 0) == 64


def test_other_all_to_alls_are_alternatives() -> None:
    sent = {"deepep-low-latency", "deepep-normal"}
    others = placed(reach=dict.fromkeys(sorted(sent), (0.0, math.inf)))
    (other,) = sent & others.keys()  # the winner's is no alternative
    assert others.keys() == {"experts in order", other}
    step = others[other]
    assert step is not None
    assert step.deployment.exchange == other


def test_an_interrupt_gives_no_half_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    found = winner()
    monkeypatch.setattr(module, "best", lambda *_, **__: replace(found, complete=False))
    with pytest.raises(KeyboardInterrupt):
        alternatives(PREDICTOR, SPACE, found, min_tps=MIN_TPS)


PLAN = "plan deepseek-v3 --gpu h800 --gpus 16..32 --context 4k --min-tps 20 --max-batch 64".split()


def test_the_command_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (PLAN, [*PLAN, "--json"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    text, document = capsys.readouterr().out.split("\n{", 1)
    answer = json.loads("{" + document)
    top = answer["best"][answer["winner"]]["metrics"]["tok_s_per_gpu"]
    assert answer["alternatives_compared"]
    assert {"dep-ag", "dtp-ag", "tep", "tp"} < {other["choice"] for other in answer["alternatives"]}
    for other in answer["alternatives"]:
        assert f"with {other['choice']}" in text
        assert other["tok_s_per_gpu"] <= top
        assert 0 <= other["measured_share"] <= 1


def test_an_interrupted_comparison_makes_the_answer_partial(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("moeplan.cli.plan.alternatives", interrupt)
    with pytest.raises(SystemExit) as stop:
        main([*PLAN, "--json"])
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert stop.value.code == 130
    assert "interrupted" in err
    assert answer["best"]
    assert not answer["complete"]
    assert not answer["alternatives_compared"]


def test_a_space_too_large_to_search_again_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moeplan.cli.plan.MOST_CONFIGURATIONS", 10)
    with pytest.raises(SystemExit) as stop:
        main(PLAN)
    assert stop.value.code == 0
    assert "is not compared in spaces above" in capsys.readouterr().out


def test_an_interrupted_comparison_does_not_blame_the_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("moeplan.cli.plan.alternatives", interrupt)
    with pytest.raises(SystemExit):
        main(PLAN)
    out = capsys.readouterr().out
    assert "not compared: interrupted" in out
    assert "in spaces above" not in out
