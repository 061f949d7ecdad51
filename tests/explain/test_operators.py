"""A step's operators: every second of it once, every FLOP and byte, hidden time apart."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moeplan.charts.style import RESOURCE_COLOURS
from moeplan.cli.options import cluster_of
from moeplan.explain.operators import LAUNCHES, StepOperator, step_operators
from moeplan.explain.shares import resource_shares
from moeplan.kernels.origin import Origin
from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import SCHEDULES, Acceptance, Deployment, Precision

CATALOG = Catalog.standard()


@cache
def predictor(model: str, gpu: str) -> Predictor:
    return Predictor.of(CATALOG.model(model), cluster_of(CATALOG, gpu, "cx7", None), CATALOG)


def step(model: str, gpu: str, **changes: object) -> Prediction:
    target = predictor(model, gpu)
    plain = Deployment(
        batch=64,
        ep=1,
        context=4096,
        precision=Precision.of(target.model),
        acceptance=Acceptance.geometric(0.85, 3, "this test"),
    )
    return target.predict(replace(plain, **changes))


@st.composite
def steps(draw: st.DrawFn) -> Prediction:
    model = draw(st.sampled_from(("deepseek-v3", "deepseek-v2-lite", "qwen3-235b-a22b", "gpt-oss-120b", "qwen3-32b")))
    spec = CATALOG.model(model)
    ep = draw(st.sampled_from((1, 8, 32, 144, 320)))
    schedule = draw(st.sampled_from(SCHEDULES if spec.is_moe and ep > 1 else ("naive",)))
    return step(
        model,
        draw(st.sampled_from(("h800", "h20", "b200", "mi300x", "gb200"))),
        ep=ep,
        batch=draw(st.integers(1, 200)) * (2 if schedule == "two-batch" else 1),
        context=draw(st.integers(1, 40_000)),
        drafts=draw(st.integers(0, 3)) if spec.mtp_layers else 0,
        schedule=schedule,
    )


def named(operators: list[StepOperator]) -> dict[str, StepOperator]:
    found = {item.name: item for item in operators}
    assert len(found) == len(operators)
    return found


@given(steps())
@settings(max_examples=60, deadline=None)
def test_the_exposed_seconds_add_up_to_the_step(found: Prediction) -> None:
    operators = step_operators(found)
    total = float(found.seconds)
    assert sum(item.exposed for item in operators) == pytest.approx(total, rel=1e-9)
    for item in operators:
        assert -1e-15 <= item.exposed <= item.seconds * (1 + 1e-9), item
        assert item.network == (item.name in ("dispatch", "combine"))
        assert item.resource in RESOURCE_COLOURS
        assert item.flops >= 0
        if not item.network and found.deployment.schedule == "naive":
            assert item.exposed == pytest.approx(item.seconds)
    shares = resource_shares(found)
    assert sum(shares.values()) == pytest.approx(1, rel=1e-9)
    assert ("MTP drafts" in shares) == bool(found.deployment.drafts)
    assert max(item.origin for item in operators) == found.origin


@given(steps())
@settings(max_examples=30, deadline=None)
def test_busy_seconds_flop_and_bytes_are_those_of_all_layers(found: Prediction) -> None:
    """Added up by stage instead of by operator."""
    busy = flops = traffic = 0.0
    for group in found.groups:
        copies = group.group.count * group.timeline.micro_batches
        for stage in group.layer.stages.values():
            busy += copies * float(stage.seconds)
            flops += copies * sum(float(cost.flops) for cost in stage.costs)
            traffic += copies * sum(float(cost.bytes_) for cost in stage.costs)
    busy += sum(float(cost.seconds) for cost in found.outside) + float(found.drafting)
    flops += sum(float(cost.flops) for cost in found.outside)
    traffic += sum(float(cost.bytes_) for cost in found.outside)
    operators = step_operators(found)
    assert sum(item.seconds for item in operators) == pytest.approx(busy, rel=1e-9)
    assert sum(item.flops for item in operators) == pytest.approx(flops, rel=1e-9)
    assert sum(item.bytes_ for item in operators) == pytest.approx(traffic, rel=1e-9)


def test_work_by_hand() -> None:
    """DeepSeek-V3, 61 layers: o_proj multiplies 128 rows of 128·128 by 7168; the head all of them once."""
    operators = named(step_operators(step("deepseek-v3", "h800", ep=32, batch=128)))
    assert operators["o_proj"].flops == pytest.approx(61 * 2 * 128 * (128 * 128) * 7168)
    assert operators["lm_head"].flops == pytest.approx(2 * 128 * 129_280 * 7168)
    assert operators["dense_gate_up"].flops == pytest.approx(3 * 2 * 128 * 7168 * 2 * 18_432)
    assert operators["shared_down"].flops == pytest.approx(58 * 2 * 128 * 2048 * 7168)
    assert operators["step_overhead"].seconds == pytest.approx(0.5e-3)
    twice = named(step_operators(step("deepseek-v3", "h800", ep=32, batch=128, schedule="two-batch")))
    for name in ("o_proj", "lm_head", "dense_gate_up", "shared_down"):
        assert twice[name].flops == pytest.approx(operators[name].flops)


def test_they_come_in_the_order_of_the_step() -> None:
    names = list(named(step_operators(step("deepseek-v3", "h800", ep=32, batch=128, drafts=1))))
    order = ["input_norm", "mla_core", "o_proj", "router", "dispatch", "routed_gate_up", "lm_head", "MTP drafts"]
    assert [name for name in names if name in order] == order


def test_the_gaps_are_launches() -> None:
    found = step("deepseek-v3", "h800", ep=32, batch=128)
    gaps = named(step_operators(found))["launch gaps"]
    kernels = 0
    for group in found.groups:
        for stage in group.layer.stages.values():
            kernels += group.group.count * sum(
                cost.lane == "compute" and cost.name != "launch gaps" for cost in stage.costs
            )
    assert gaps.seconds == pytest.approx(kernels * 0.85e-6)
    assert gaps.resource == LAUNCHES
    assert gaps.origin == Origin.FITTED


def test_a_hidden_operator_keeps_its_busy_time() -> None:
    operators = named(step_operators(step("deepseek-v3", "h800", ep=128, batch=256, schedule="two-batch")))
    assert operators["combine"].exposed < operators["combine"].seconds
    naive = named(step_operators(step("deepseek-v3", "h800", ep=128, batch=256)))
    assert naive["combine"].exposed == pytest.approx(naive["combine"].seconds)
