"""What is remembered of a layer's experts changes no answer."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.kinds import Real
from moeplan.layers import expert_stages
from moeplan.layers.ffn import routed_experts
from moeplan.layers.step import Step
from moeplan.ops.cost import Cost
from moeplan.predict import Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision

CATALOG = Catalog.standard()
MODEL = CATALOG.model("deepseek-v3")
TARGET = Predictor.of(MODEL, CATALOG.cluster("h800-cx7"), CATALOG)
BASE = Deployment(
    batch=np.array([16.0, 64.0])[None, :, None],
    ep=np.array([32.0, 144.0])[:, None, None],
    drafts=np.array([0, 1])[None, None, :],
    context=5000,
    precision=Precision.of(MODEL),
    acceptance=Acceptance.geometric(0.85, 1, "this test"),
)
OTHERS = (
    replace(BASE, precision=Precision.of(MODEL, kv="fp8")),
    replace(BASE, context=60_000),
    replace(BASE, batch=2 * BASE.batch),
    replace(BASE, load="even"),
    replace(BASE, imbalance=1.5),
    replace(BASE, redundant=32),
    replace(BASE, exchange="deepep-normal"),
    replace(BASE, corrections={"routed_down": 0.8}),
    replace(BASE, schedule="two-batch"),
)


def numbers(deployment: Deployment) -> list[Real]:
    """Every stage's seconds, in order."""
    step = TARGET.evaluate(deployment)
    return [stage.seconds for group in step.groups for stage in group.layer.stages.values()] + [step.seconds]


@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
def test_a_step_after_another_is_as_alone(other: Deployment) -> None:
    expert_stages._KEPT.clear()
    alone = numbers(other)
    expert_stages._KEPT.clear()
    numbers(BASE)
    for after, before in zip(numbers(other), alone, strict=True):
        np.testing.assert_array_equal(after, before)


def test_another_cache_format_asks_no_expert_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Step] = []

    def counted(step: Step) -> list[Cost]:
        asked.append(step)
        return routed_experts(step)

    monkeypatch.setattr(expert_stages, "routed_experts", counted)
    expert_stages._KEPT.clear()
    numbers(BASE)
    once = len(asked)
    assert once == 2  # the step, and the pass of its draft
    numbers(OTHERS[0])
    assert len(asked) == once
    numbers(OTHERS[2])
    assert len(asked) == 2 * once
    assert len(expert_stages._KEPT) <= expert_stages.KEPT
