"""What another cut of attention is worth, against every cut worked out one by one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.explain.attention_cut import cut_gain, opens
from moeplan.layers.layer import attention_operators, cut_attention
from moeplan.predict import Prediction, Predictor
from moeplan.schedules.timeline import timeline
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision

CATALOG = Catalog.standard()


def asked(
    batch: int, context: int, schedule: str = "two-batch", *, name: str = "deepseek-v3"
) -> tuple[Predictor, Prediction]:
    model = CATALOG.model(name)
    target = Predictor.of(model, cluster_of(CATALOG, "h800", "cx7", None), CATALOG)
    wanted = Deployment(
        batch=batch,
        ep=128,
        context=context,
        precision=Precision.of(model),
        acceptance=Acceptance.geometric(0.85, 1, "this test"),
        schedule=schedule,
    )
    return target, target.predict(wanted)


@pytest.mark.parametrize(
    ("name", "batch", "context", "least"),
    [("deepseek-v3", 128, 5000, 0.0), ("deepseek-v3", 64, 60_000, 0.0), ("qwen3-30b-a3b", 32, 500, 0.01)],
)
def test_the_best_cut_against_all(name: str, batch: int, context: int, least: float) -> None:
    """DeepSeek's own cut is the best of DeepSeek-V3 here; a model with a light attention gains by another."""
    target, step = asked(batch, context, name=name)
    found = cut_gain(target, step)
    assert found is not None
    assert found.gain >= least
    group = step.groups[-1]
    names = attention_operators(group.layer)
    assert found.tried == len(names) + 1
    times = {
        at: float(timeline(cut_attention(group.layer, step.step, at), "two-batch").seconds)
        for at in range(len(names) + 1)
    }
    best = found.prediction.groups[-1]
    assert float(best.timeline.seconds) == pytest.approx(min(times.values()))
    opened = opens(best)
    at = names.index(opened) if opened in names else len(names)
    assert times[at] == pytest.approx(min(times.values()))
    share = group.group.count * (float(group.timeline.seconds) - min(times.values())) / float(step.seconds)
    assert found.gain == pytest.approx(1 / (1 - share) - 1)


def test_the_cut_of_the_step_itself_is_one_of_them() -> None:
    _, step = asked(128, 5000)
    group = step.groups[-1]
    front = len(group.layer.stages["attention_front"].costs) - 1  # its gaps are no operator
    again = cut_attention(group.layer, step.step, front)
    for name, stage in group.layer.stages.items():
        assert float(again.stages[name].seconds) == pytest.approx(float(stage.seconds))
        assert [cost.name for cost in again.stages[name].costs] == [cost.name for cost in stage.costs]


def test_other_schedules_have_no_cut_to_search() -> None:
    target, step = asked(128, 5000, "naive")
    assert cut_gain(target, step) is None
    assert cut_gain(target, target.predict(replace(step.deployment, schedule="two-batch-best"))) is None
