"""The GEMM tables' columns, as the forms read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moeplan.kernels.forms.batched_gemm import FORM as BATCHED
from moeplan.kernels.forms.form import Kernel
from moeplan.kernels.forms.gemm import FORM as DENSE
from moeplan.kernels.silicon import SiliconTable
from moeplan.kernels.silicon_columns import columns_of
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format


def table(family: str, **columns: list[Any]) -> SiliconTable:
    rows = len(next(iter(columns.values())))
    arrays = {
        name: np.array(values, dtype=object if isinstance(values[0], str) else np.int64)
        for name, values in columns.items()
    }
    return SiliconTable(
        system="h200_sxm",
        family=family,
        engine="sglang",
        version="0.5.14",
        columns={**arrays, "seconds": np.full(rows, 1e-5)},
        units={},
        flags=np.zeros(rows, dtype=np.uint16),
        raw_rows=rows,
        source="made by hand",
    )


def test_a_gemm_keeps_its_axes() -> None:
    columns = columns_of(table("gemm", m=[1, 4096], n=[2112, 7168], k=[7168, 2048]))
    assert {name: values.tolist() for name, values in columns.items()} == {
        "m": [1, 4096],
        "n": [2112, 7168],
        "k": [7168, 2048],
    }
    assert all(values.dtype == float for values in columns.values())


def test_a_batched_gemm_goes_up_into_the_latent_before_the_core_and_down_after() -> None:
    given = table("mla_bmm", op_name=["mla_gen_pre", "mla_gen_post"], num_heads=[16, 128], num_tokens=[3, 64])
    columns = columns_of(given)
    assert {name: values.tolist() for name, values in columns.items()} == {
        "copies": [16, 128],
        "m": [3, 64],
        "n": [512, 128],
        "k": [128, 512],
    }


@pytest.mark.parametrize("family", ["gemm", "mla_bmm"])
def test_the_form_reads_what_the_reader_gives(family: str) -> None:
    dense = table("gemm", m=[8], n=[128], k=[512])
    batched = table("mla_bmm", op_name=["mla_gen_post"], num_heads=[16], num_tokens=[8])
    form, given = (DENSE, dense) if family == "gemm" else (BATCHED, batched)
    columns = columns_of(given)
    assert set(columns) == set(form.shape)
    kernel = Kernel(formats={"weights": weight_format("bf16")})
    parameters = {parameter.name: parameter.start for parameter in form.parameters}
    found = form.parts(Catalog.standard().gpu("h200"), kernel, columns, parameters)
    assert np.all(np.isfinite(found.seconds))
