"""The attention tables' columns, as the forms read them."""

from __future__ import annotations

import numpy as np
import pytest

from moeplan.kernels.forms.form import Kernel
from moeplan.kernels.forms.gqa_decode import FORM as DECODE
from moeplan.kernels.forms.gqa_prefill import FORM as PREFILL
from moeplan.kernels.silicon import SiliconTable
from moeplan.kernels.silicon_columns import columns_of
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format


def table(family: str, rows: list[tuple[int, ...]]) -> SiliconTable:
    names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step")
    columns = {
        name: np.array(values, dtype=np.int64) for name, values in zip(names, zip(*rows, strict=True), strict=True)
    }
    return SiliconTable(
        system="h200_sxm",
        family=family,
        engine="sglang",
        version="0.5.14",
        columns={**columns, "seconds": np.full(len(rows), 1e-5)},
        units={},
        flags=np.zeros(len(rows), dtype=np.uint16),
        raw_rows=len(rows),
        source="made by hand",
    )


@pytest.mark.parametrize(
    ("family", "rows", "q_len", "context"),
    [
        ("generation_attention", [(2, 1, 32, 8, 128, 1023), (1, 1, 8, 8, 64, 1)], [1, 1], [1024, 2]),
        ("context_attention", [(2, 512, 32, 8, 128, 0), (1, 16, 8, 8, 64, 0)], [512, 16], [512, 16]),
    ],
)
def test_context_counts_the_new_tokens(
    family: str, rows: list[tuple[int, ...]], q_len: list[int], context: list[int]
) -> None:
    columns = columns_of(table(family, rows))
    assert columns["batch"].tolist() == [2, 1]
    assert columns["heads"].tolist() == [32, 8]
    assert columns["kv_heads"].tolist() == [8, 8]
    assert columns["head_dim"].tolist() == [128, 64]
    assert columns["q_len"].tolist() == q_len
    assert columns["context"].tolist() == context
    assert columns["group"].tolist() == [4, 1]


def test_the_forms_read_these_columns() -> None:
    bf16 = weight_format("bf16")
    kernel = Kernel(formats={"core": bf16, "cache": bf16})
    gpu = Catalog.standard().gpu("h200")
    for form, family in ((DECODE, "generation_attention"), (PREFILL, "context_attention")):
        columns = columns_of(table(family, [(2, 16, 32, 8, 128, 0)]))
        start = {parameter.name: parameter.start for parameter in form.parameters}
        assert set(form.shape) < set(columns)
        assert np.shape(form.parts(gpu, kernel, columns, start).seconds) == (1,)
