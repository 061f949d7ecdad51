"""Kinds of measured table, and tables read as columns: the user's before the packaged one, warm ones capped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moeplan.errors import InputError, UnknownName
from moeplan.kernels.forms.catalog import form_named
from moeplan.kernels.measured import KINDS, kind_named, kinds_of, measured_cold, measured_table, table_at
from moeplan.kernels.origin import Origin
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
SIDECAR = "{{title: mine, gpu: X, kernel: a, precision: b, source: c, licence: d, date: '2026'{more}}}\n"


def write(folder: Path, gpu: str, kind: str, text: str, more: str = "") -> Path:
    path = folder / "kernels" / gpu / f"{kind}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_suffix(".yaml").write_text(SIDECAR.format(more=more))
    return path


def test_every_kind_has_the_columns_and_roles_of_its_form() -> None:
    for name, kind in KINDS.items():
        form = form_named(kind.form)
        assert set(kind.columns) == set(form.shape), name
        assert tuple(kind.formats) == form.roles, name
        assert kind.kernel.formats.keys() == kind.formats.keys(), name


def test_every_packaged_table_is_of_a_known_kind_and_can_be_read() -> None:
    seen = set()
    for path in (CATALOG.roots[-1] / "kernels").glob("*/*.csv"):
        if path.stem.startswith("low_latency"):
            continue  # of the network
        table = measured_table(CATALOG, path.parent.name, path.stem)
        assert table is not None
        assert not table.own
        assert {values.size for values in map(np.asarray, table.shape.values())} == {table.seconds.size}
        assert np.all(table.seconds > 0)
        seen.add(path.stem)
    assert {"gemm_fp8", "grouped_gemm_fp8", "mla_decode_bf16"} <= seen <= KINDS.keys()


def test_the_kind_that_a_step_runs() -> None:
    assert list(kinds_of("gemm", {"weights": "bf16"})) == ["gemm_bf16"]
    assert list(kinds_of("grouped_gemm", {"weights": "fp8_block"})) == ["grouped_gemm_fp8"]  # not the contiguous one
    assert list(kinds_of("gqa_decode", {"core": "bf16", "cache": "fp8"})) == ["gqa_decode_fp8"]
    assert list(kinds_of("gemm", {"weights": "int8"})) == []


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownName, match="did you mean gemm_fp8"):
        kind_named("gemm_fp88")


def test_no_table_is_none() -> None:
    assert measured_table(CATALOG, "mi300x", "gemm_fp8") is None


def test_the_users_table_hides_the_packaged_one(tmp_path: Path) -> None:
    write(tmp_path, "h800", "gemm_fp8", "m,n,k,seconds\n1,2,3,4\n")
    catalog = Catalog.standard(tmp_path)
    table = measured_table(catalog, "h800", "gemm_fp8")
    assert table is not None
    assert (table.own, table.title, table.best) == (True, "mine", Origin.MEASURED)
    assert ({name: np.asarray(values).tolist() for name, values in table.shape.items()}, table.seconds.tolist()) == (
        {"m": [1], "n": [2], "k": [3]},
        [4],
    )
    packaged = measured_table(catalog, "h20", "gemm_fp8")
    assert packaged is not None
    assert not packaged.own


def test_a_table_is_read_once_until_it_changes(tmp_path: Path) -> None:
    write(tmp_path, "h800", "gemm_fp8", "m,n,k,seconds\n1,2,3,4\n")
    catalog = Catalog.standard(tmp_path)
    first = measured_table(catalog, "h800", "gemm_fp8")
    assert measured_table(catalog, "h800", "gemm_fp8") is first
    write(tmp_path, "h800", "gemm_fp8", "m,n,k,seconds\n1,2,3,5\n")
    second = measured_table(catalog, "h800", "gemm_fp8")
    assert second is not None
    assert second.seconds.tolist() == [5]


def test_a_table_measured_warm_is_never_faster_than_its_cold_share(tmp_path: Path) -> None:
    """By hand: 4096 · 7168 bf16 weights, one row; 2·(m·k + n·k + m·n) bytes at 3.35 TB/s and half of that."""
    path = write(tmp_path, "h800", "gemm_bf16", "m,n,k,seconds\n1,4096,7168,1e-6\n1,4096,7168,1\n", ", cold_share: 0.5")
    table = measured_table(Catalog.standard(tmp_path), "h800", "gemm_bf16")
    assert table is not None
    moved = 2.0 * (7168 + 4096 * 7168 + 4096)
    assert table.seconds == pytest.approx([moved / 3.35e12 / 0.5, 1.0], rel=1e-9)
    assert (table.best, table.title) == (Origin.ASSUMED, "mine, at most 0.5 of the roofline")
    assert table_at(path, "gemm_bf16").seconds.tolist() == [1e-6, 1.0]  # as written


def test_rows_of_the_bench_are_those_of_a_step() -> None:
    gpu, shape = measured_cold(CATALOG.gpu("h800"), {"m": np.array([1, 2])}, 2)
    assert (gpu.l2, gpu.slug) == (None, "h800")
    assert {name: values.tolist() for name, values in shape.items()} == {"m": [1.0, 2.0], "converted": [1.0, 1.0]}


def test_columns_of_another_kind_are_a_fault(tmp_path: Path) -> None:
    path = write(tmp_path, "h800", "gemm_fp8", "groups,m,n,k,seconds\n1,1,2,3,4\n")
    with pytest.raises(InputError, match="unknown column 'groups'"):
        table_at(path, "gemm_fp8")
