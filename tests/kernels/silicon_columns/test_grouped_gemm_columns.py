"""How rows fall on the experts of the busiest rank, as the wide expert-parallel tables were measured."""

from __future__ import annotations

import numpy as np
import pytest

from moeplan.errors import InputError
from moeplan.kernels.silicon import SiliconTable
from moeplan.kernels.silicon_columns import columns_of
from moeplan.kernels.silicon_columns import grouped_gemm as reader

GENERATION, CONTEXT = "wideep_generation_moe", "wideep_context_moe"


def table(family: str, *rows: tuple[str, int, int]) -> SiliconTable:
    """Rows of distribution, entering tokens and ranks, of DeepSeek's experts."""
    names, tokens, ranks = (np.array(column) for column in zip(*rows, strict=True))
    size = len(rows)
    fixed = {"hidden_size": 7168, "inter_size": 2048, "topk": 8, "num_experts": 256, "moe_tp_size": 1}
    return SiliconTable(
        system="h200_sxm",
        family=family,
        engine="sglang",
        version="0.5.10",
        columns={
            "distribution": names.astype(object),
            "num_tokens": tokens,
            "moe_ep_size": ranks,
            **{name: np.full(size, value) for name, value in fixed.items()},
            "seconds": np.full(size, 1e-4),
        },
        units={},
        flags=np.zeros(size, dtype=np.uint16),
        raw_rows=size,
        source="made by hand",
    )


def test_balanced_decode_spreads_rows_over_all_experts() -> None:
    columns = columns_of(table(GENERATION, ("uniform", 128 * 128, 128), ("uniform", 8 * 16, 8), ("uniform", 4, 4)))
    assert columns["groups"].tolist() == [2, 32, 8]  # 8 single rows a rank where there are fewer rows than experts
    assert columns["idle"].tolist() == [0, 0, 56]
    assert columns["m"].tolist() == [512, 4, 1]
    assert columns["blocks"].tolist() == [16, 32, 8]  # tiles of 128 rows count twice those of 64
    assert columns["n"].tolist() == [4096] * 3
    assert columns["k"].tolist() == [7168] * 3
    assert columns["both"].tolist() == [1] * 3
    assert columns["tokens"].tolist() == [0] * 3


def test_balanced_prefill_fills_tiles() -> None:
    columns = columns_of(table(CONTEXT, ("uniform", 128, 4), ("uniform", 65536, 256)))
    assert columns["blocks"].tolist() == [2, 16]  # 64 experts of 4 rows; one of 2048
    assert columns["groups"].tolist() == [2, 1]
    assert columns["m"].tolist() == [128, 2048]
    assert columns["tokens"].tolist() == [128, 65536]


@pytest.mark.parametrize("tokens", [4, 32, 4096, 100_000])
@pytest.mark.parametrize("name", ["power_law_0.6", "power_law_1.2"])
def test_every_row_is_dealt(name: str, tokens: int) -> None:
    load = reader._dealt(name, tokens, 8, 256)
    assert np.all(load.sum(axis=1) == 8 * tokens)
    assert load.min() >= 0
    assert load.max() <= tokens


def test_the_busiest_rank_has_more_than_its_share() -> None:
    rows = [(f"power_law_{power}", 4096, 32) for power in ("0.6", "1.2")]
    even = columns_of(table(GENERATION, ("uniform", 4096, 32)))
    skewed = columns_of(table(GENERATION, *rows))
    total = skewed["groups"] * skewed["m"]
    assert even["groups"] * even["m"] < total[0] < total[1]
    assert np.all(skewed["groups"] + skewed["idle"] == pytest.approx(8))
    assert np.all(skewed["blocks"] * 64 >= total)


def test_padding_to_whole_tiles_counts_as_rows() -> None:
    columns = columns_of(table(CONTEXT, ("power_law_1.01", 4096, 32)))
    assert columns["groups"] * columns["m"] == pytest.approx(128 * columns["blocks"])


def test_an_unknown_distribution_is_named() -> None:
    with pytest.raises(InputError, match="zipf"):
        columns_of(table(GENERATION, ("zipf", 4096, 32)))
