"""The reader of MLA tables, on a table made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from moeplan.kernels.silicon import SiliconTable
from moeplan.kernels.silicon_columns import columns_of

FAMILIES = ("generation_mla", "context_mla", "mla_generation_module", "mla_context_module")


def table(family: str, **columns: list[int]) -> SiliconTable:
    arrays = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    return SiliconTable(
        system="h200_sxm",
        family=family,
        engine="trtllm",
        version="1.0.0",
        columns=arrays,
        units={},
        flags=np.zeros(len(next(iter(columns.values()))), dtype=np.uint16),
        raw_rows=2,
        source="by hand",
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_becomes_batch_heads_new_tokens_and_what_they_see(family: str) -> None:
    found = columns_of(
        table(family, batch_size=[8, 1], num_heads=[16, 128], isl=[1, 4096], step=[4095, 0], tp_size=[8, 1])
    )
    assert {name: values.tolist() for name, values in found.items()} == {
        "batch": [8.0, 1.0],
        "heads": [16.0, 128.0],
        "q_len": [1.0, 4096.0],
        "context": [4096.0, 4096.0],
    }
    assert all(values.dtype == float for values in found.values())
