"""Layouts: what heads and widths allow, the sizes add up, their names come back."""

from __future__ import annotations

from math import inf

import pytest

from moeplan.errors import InputError
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision, check
from moeplan.specs.spread import LAYOUTS, Spread, named_layouts, spreads

CATALOG = Catalog.standard()
COUNTS, TPS = (1, 2, 4, 6, 8, 16, 32, 64), (1, 2, 4)


def deployment(model: str, spread: Spread, count: int) -> Deployment:
    return Deployment(
        batch=8,
        ep=count // spread.moe_tp,
        tp=spread.tp,
        moe_tp=spread.moe_tp,
        exchange=spread.exchange,
        context=1000,
        precision=Precision.of(CATALOG.model(model)),
        acceptance=Acceptance.geometric(0.8, 1, "given"),
    )


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-235b-a22b-fp8", "gpt-oss-120b", "mixtral-8x7b"])
def test_every_spread_is_a_valid_deployment_of_its_name(model: str) -> None:
    spec = CATALOG.model(model)
    found = spreads(spec, COUNTS, tuple(LAYOUTS), TPS)
    assert {spread.layout for spread in found} == set(LAYOUTS)
    for spread in found:
        for count in spread.counts:
            one = deployment(model, spread, count)
            check(one, spec)
            assert one.gpus == count
            assert one.dp * one.tp == count
            assert one.layout == spread.layout


def test_heads_and_widths_rule_sizes_out() -> None:
    qwen, deepseek = CATALOG.model("qwen3-235b-a22b-fp8"), CATALOG.model("deepseek-v3")
    cut = {spread.counts[0] for spread in spreads(qwen, COUNTS, ("tp",), (1,))}
    assert cut == {2, 4}  # 64 heads divide by 8, but a cut of 1536 in 8 is 192 columns: no whole blocks of 128
    assert {spread.counts[0] for spread in spreads(deepseek, COUNTS, ("tp",), (1,))} == {2, 4, 8, 16}
    assert {spread.counts[0] for spread in spreads(deepseek, COUNTS, ("tep",), (1,))} == {2, 4, 8, 16, 32, 64}


def test_a_dense_model_is_replicated_or_cut() -> None:
    dense = CATALOG.model("qwen3-32b")
    found = spreads(dense, (1, 2, 4, 8), tuple(LAYOUTS), (1,))
    assert [(spread.layout, spread.counts) for spread in found] == [
        ("dep", (1,)),
        ("tp", (2,)),
        ("tp", (4,)),
        ("tp", (8,)),
    ]


def test_an_unknown_layout_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"--layout: unknown 'tepp' — .*tep"):
        named_layouts(["dep", "tepp"])


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        ({"tp": 3, "ep": 8}, "3 does not divide 8 GPUs"),
        ({"tp": 8, "ep": 8}, "all tokens on all GPUs"),
        ({"tp": 4, "ep": 8, "exchange": "all-reduce"}, "tp is 4 of 8"),
        ({"moe_tp": 2, "ep": 4}, "whole experts"),
        ({"tp": 0, "ep": 8}, "tp: is below 1"),
        ({"tp": 8, "ep": 8, "exchange": "all-reduce", "schedule": "two-batch"}, "all-reduce has none"),
    ],
)
def test_sizes_that_contradict_each_other_are_named(sizes: dict[str, object], fault: str) -> None:
    model = CATALOG.model("deepseek-v3")
    asked = Deployment(
        batch=8,
        context=1000,
        precision=Precision.of(model),
        acceptance=Acceptance.geometric(0.8, 1, "given"),
        **sizes,  # type: ignore[arg-type]
    )
    with pytest.raises(InputError, match=fault):
        check(asked, model)


def test_all_to_alls_are_spreads_of_their_own_where_they_reach() -> None:
    model, reach = CATALOG.model("deepseek-v3"), {"deepep-low-latency": (0.0, 8.0), "uccl-low-latency": (8.0, inf)}
    found = spreads(model, (4, 8, 16, 32), ("dep", "dep-ag"), (1, 2), reach)
    sent = {(item.exchange, item.tp): item.counts for item in found if item.layout == "dep"}
    assert sent == {
        ("deepep-low-latency", 1): (4, 8),
        ("deepep-low-latency", 2): (4, 8),
        ("uccl-low-latency", 1): (16, 32),
        ("uccl-low-latency", 2): (16, 32),
    }
    assert {item.counts for item in found if item.layout == "dep-ag"} == {(4, 8, 16, 32)}
    assert [item.exchange for item in spreads(model, (8,), ("dep",), (1,))] == ["deepep-low-latency"]
