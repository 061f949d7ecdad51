"""Measured rows as columns, from a table: those within limits, whole shapes, how far a form is off."""

from __future__ import annotations

import numpy as np
import pytest

from moeplan.errors import InputError
from moeplan.kernels.fit import fit_of, fits_of
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.origin import Origin
from moeplan.kernels.recipe import RowSource
from moeplan.kernels.rows import Rows, errors, group_numbers, rows_of
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()


def rows(**shape: list[float]) -> Rows:
    columns = {name: np.array(values, dtype=float) for name, values in shape.items()}
    size = len(next(iter(shape.values())))
    return Rows(gpu=CATALOG.gpu("h800"), shape=columns, seconds=np.arange(1.0, size + 1), source="these")


def test_a_table_as_rows() -> None:
    found = rows_of(RowSource(gpu="h800", table="gemm_fp8"), CATALOG)
    assert len(found) == 61
    assert (found.gpu.slug, found.best) == ("h800", Origin.MEASURED)
    assert found.source == "DeepGEMM dense FP8 on H800"
    assert set(found.shape) == {"m", "n", "k"}


def test_a_capped_table_is_no_surer_as_rows() -> None:
    found = rows_of(RowSource(gpu="h800", table="gemm_batched_bf16"), CATALOG)
    assert found.best is Origin.ASSUMED


def test_limits_keep_both_ends() -> None:
    kept = rows(m=[1, 2, 3, 4], n=[1, 1, 2, 2]).within({"m": (2, 4), "n": (1, 1)})
    assert (kept.shape["m"].tolist(), kept.seconds.tolist()) == ([2.0], [2.0])
    source = RowSource(gpu="h800", table="gemm_fp8", limits={"m": (64, 128), "n": (7168, 7168)})
    found = rows_of(source, CATALOG)
    assert set(found.shape["m"].tolist()) == {64.0, 128.0}
    assert set(found.shape["n"].tolist()) == {7168.0}


def test_no_row_left_and_no_table_are_faults() -> None:
    with pytest.raises(InputError, match="no row of DeepGEMM dense FP8 on H800 is left — widen the limits"):
        rows_of(RowSource(gpu="h800", table="gemm_fp8", limits={"m": (1e6, 1e7)}), CATALOG)
    with pytest.raises(InputError, match="gemm_fp8: mi300x has no such table"):
        rows_of(RowSource(gpu="mi300x", table="gemm_fp8"), CATALOG)


def test_thinned_rows_are_the_same_each_time() -> None:
    whole = rows(m=list(range(100)))
    once, again, other = whole.thinned(10, 1), whole.thinned(10, 1), whole.thinned(10, 2)
    assert len(once) == 10
    assert once.shape["m"].tolist() == again.shape["m"].tolist() == sorted(once.shape["m"].tolist())
    assert once.shape["m"].tolist() != other.shape["m"].tolist()
    assert once.seconds.tolist() == [m + 1 for m in once.shape["m"].tolist()]
    assert whole.thinned(100, 1) is whole


def test_rows_of_one_whole_shape_have_one_number() -> None:
    found = rows(m=[1, 2, 1, 2], n=[5, 5, 5, 6], k=[7, 7, 7, 7])
    numbers = group_numbers(found, ("m", "n", "k"))
    assert numbers[0] == numbers[2]
    assert len(set(numbers.tolist())) == 3
    assert set(group_numbers(found, ("k",)).tolist()) == {0}


def test_an_error_is_predicted_over_measured_less_one() -> None:
    fit = fit_of(fits_of(CATALOG, "gemm.fp8_block.deepgemm")["h800"])
    found = rows_of(RowSource(gpu="h800", table="gemm_fp8"), CATALOG)
    predicted = np.asarray(fit.parts(found.gpu, found.shape).seconds)
    sizes = errors(form_named("gemm"), fit.kernel, found, fit.parameters)
    assert sizes == pytest.approx(predicted / found.seconds - 1, rel=1e-12)
    assert np.median(np.abs(sizes)) < 0.06  # 5.1 % on shapes left out, as its file says
