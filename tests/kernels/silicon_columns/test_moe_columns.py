"""The MoE tables' columns: equal loads in closed form, power laws drawn anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.kernels.forms.moe import FORM
from moeplan.kernels.silicon import SiliconTable
from moeplan.kernels.silicon_columns import columns_of
from moeplan.kernels.silicon_columns.moe import balanced, busiest_rank
from moeplan.kernels.silicon_flags import Flag


def table(distribution: list[str], *, flags: list[int] | None = None, **columns: list[int]) -> SiliconTable:
    rows = len(distribution)
    given: dict[str, Any] = {
        "hidden_size": [7168] * rows,
        "inter_size": [2048] * rows,
        "topk": [8] * rows,
        "num_experts": [256] * rows,
        "moe_tp_size": [1] * rows,
        "moe_ep_size": [8] * rows,
        **columns,
    }
    return SiliconTable(
        system="b200_sxm",
        family="moe",
        engine="trtllm",
        version="1.0.0",
        columns={
            **{name: np.array(values, dtype=np.int64) for name, values in given.items()},
            "distribution": np.array(distribution, dtype=object),
            "seconds": np.full(rows, 1e-4),
        },
        units={},
        flags=np.array(flags or [0] * rows, dtype=np.uint16),
        raw_rows=rows,
        source="made by hand",
    )


def test_equal_loads_are_the_closed_form() -> None:
    columns = columns_of(table(["balanced"] * 3, num_tokens=[1, 16, 4096]))
    assert tuple(columns) == FORM.shape
    assert columns["rows"].tolist() == [1, 16, 4096]
    assert columns["active"].tolist() == [1, 16, 32]
    assert columns["gated"].tolist() == [2, 2, 2]
    assert columns["inter"].tolist() == [2048, 2048, 2048]


def test_a_share_of_a_row_still_needs_an_expert() -> None:
    active, rows = balanced(np.array([1.0]), np.array([8.0]), np.array([256.0]), np.array([64.0]))
    assert rows.tolist() == [0.125]
    assert active.tolist() == [1]


def test_two_weight_matrices_are_not_gated() -> None:
    columns = columns_of(table(["balanced"] * 2, num_tokens=[1, 1], flags=[int(Flag.UNGATED), 0]))
    assert columns["gated"].tolist() == [1, 2]


def test_a_power_law_gives_the_busiest_rank_more_rows_on_fewer_experts() -> None:
    laws = ["balanced", "power_law_1.01", "power_law_1.2"]
    columns = columns_of(table(laws, num_tokens=[1024] * 3))
    even, mild, steep = columns["rows"].tolist()
    assert even < mild < steep
    assert np.all(columns["active"] <= 32)
    assert columns["rows"].max() <= 1024 * 8


def test_rows_of_the_same_kind_get_the_same_draw() -> None:
    first = columns_of(table(["power_law_1.2"] * 2, num_tokens=[64, 64]))
    again = columns_of(table(["power_law_1.2"] * 2, num_tokens=[64, 64]))
    assert first["rows"].tolist() == again["rows"].tolist()
    assert first["rows"][0] == first["rows"][1]


@given(
    model=st.sampled_from(((8, 2), (16, 1), (128, 8), (256, 8), (512, 10), (160, 8))),
    ep=st.sampled_from((1, 2, 8)),
    tokens=st.integers(1, 20_000),
    law=st.sampled_from((1.01, 1.2)),
)
def test_the_busiest_rank_has_at_least_its_share_and_no_more_than_there_is(
    model: tuple[int, int], ep: int, tokens: int, law: float
) -> None:
    experts, top_k = model
    active, rows = busiest_rank(experts, top_k, ep, tokens, law)
    assert tokens * top_k / ep <= rows <= tokens * min(top_k, experts // ep)
    assert 1 <= active <= min(experts // ep, rows)


@pytest.mark.parametrize("law", [1.01, 1.2])
def test_one_rank_gets_all_rows(law: float) -> None:
    assert busiest_rank(256, 8, 1, 777, law)[1] == 777 * 8
