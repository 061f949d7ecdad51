"""The reader of aiconfigurator-core's tables, on small Parquet files; on the package itself where it is installed."""

from __future__ import annotations

import builtins
import importlib
import inspect
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from moeplan.cli import silicon as silicon_command
from moeplan.errors import InputError, UnknownName
from moeplan.kernels import silicon, silicon_place
from moeplan.kernels.choice import chosen_fit
from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.origin import Origin
from moeplan.kernels.recipe import RowSource
from moeplan.kernels.rows import rows_of
from moeplan.kernels.silicon import (
    SiliconTable,
    kernel_counts,
    silicon_file,
    silicon_files,
    silicon_system,
    silicon_table,
    version_key,
)
from moeplan.kernels.silicon_flags import Flag, silicon_facts
from moeplan.kernels.silicon_place import silicon_named, silicon_root
from moeplan.kernels.silicon_schema import SCHEMAS, Column
from moeplan.kernels.sources import ALL, KernelSources
from moeplan.kernels.times import Timed
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'moeplan[silicon]'")
parquet: Any = importlib.import_module("pyarrow.parquet")

CATALOG = Catalog.standard()
VERSION = "1.0.0"
DEEPGEMM = RowSource(  # the rows that correct the fit of H200's block-scaled products
    gpu="h200",
    system="h200_sxm",
    family="gemm",
    engine="sglang",
    version="0.5.14",
    kernels=("sglang_deepgemm_gemm_nt_f8f8bf16",),
    where={"gemm_dtype": "fp8_block"},
)
EXAMPLES: dict[str, Any] = {"text": "half", "whole": 3, "real": 2.0, "yes_no": True}
DECODE = {  # what a DeepSeek decode needs, by engine
    "gemm": "sglang",
    "moe": "sglang",
    "wideep_generation_moe": "sglang",
    "generation_mla": "sglang",
    "mla_bmm": "sglang",
    "custom_allreduce": "sglang",
    "wideep_deepep_ll": "sglang",
}


def _example(column: Column, row: int) -> Any:
    return EXAMPLES[column.kind] + row if column.kind == "whole" else EXAMPLES[column.kind]


def _rows(family: str, count: int = 3, **given: list[Any]) -> dict[str, list[Any]]:
    """Rows of every column that the family must have, the ones given as given."""
    length = len(next(iter(given.values()))) if given else count
    columns = {
        column.raw: [_example(column, row) for row in range(length)]
        for column in SCHEMAS[family].columns
        if column.required
    }
    return columns | given


def _write(systems: Path, family: str, rows: dict[str, list[Any]], **place: str) -> Path:
    """Write the rows as the package would, under its folders."""
    system, engine, version = (
        place.get(name, default)
        for name, default in (("system", "h200_sxm"), ("engine", "sglang"), ("version", VERSION))
    )
    path = systems / "data" / system / SCHEMAS[family].folder / engine / version / f"{family}_perf.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(rows), path)
    return path


def _file(systems: Path, family: str, **place: str) -> SiliconTable:
    return silicon_file(systems, **{"system": "h200_sxm", "engine": "sglang", "family": family} | place)


@pytest.fixture
def systems(tmp_path: Path) -> Path:
    """A `systems` folder as pip would install it, without tables yet."""
    root = tmp_path / "aiconfigurator_core" / "systems"
    (root / "data").mkdir(parents=True)
    (tmp_path / "aiconfigurator_core-0.12.0.dist-info").mkdir()
    return root


@pytest.mark.parametrize("family", SCHEMAS)
def test_every_schema_is_read_in_si_units(systems: Path, family: str) -> None:
    _write(systems, family, _rows(family))
    table = _file(systems, family)
    assert len(table) == table.raw_rows == 3
    for column in SCHEMAS[family].columns:
        if not (column.required and column.used):
            continue
        values = table[column.name]
        assert values.dtype.kind == {"text": "O", "whole": "i", "real": "f", "yes_no": "b"}[column.kind], column
        if column.time:
            assert values == pytest.approx(2.0 * column.factor), column
            assert table.units[column.name] in ("s", "B/s")
    assert table.source == f"aiconfigurator-core 0.12.0, h200_sxm, sglang 1.0.0, {family}_perf.parquet"


@pytest.mark.parametrize("family", SCHEMAS)
def test_a_table_that_has_changed_names_package_file_and_columns(systems: Path, family: str) -> None:
    columns = [column for column in SCHEMAS[family].columns if column.required]
    rows = _rows(family)
    del rows["kernel_source"]
    rows[columns[-1].raw] = ["text"] * 3
    rows["invented"] = [1, 2, 3]
    path = _write(systems, family, rows)
    with pytest.raises(InputError) as caught:
        _file(systems, family)
    assert {fault.path for fault in caught.value.faults} == {
        "column kernel_source",
        f"column {columns[-1].raw}",
        "column invented",
    }
    assert "aiconfigurator-core 0.12.0" in caught.value.where
    assert caught.value.where.endswith(str(path.relative_to(systems)))


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        ("m", [1.0, 2.0, 3.0], "type double, wanted whole"),
        ("latency", [1, 2, 3], "type int64, wanted real"),
        ("gemm_dtype", [1, 2, 3], "type int64, wanted text"),
        ("m", [1, None, 3], "without a value"),
    ],
)
def test_a_wrong_type_or_a_hole_is_refused(systems: Path, column: str, values: list[Any], problem: str) -> None:
    _write(systems, "gemm", _rows("gemm") | {column: values})
    with pytest.raises(InputError, match=problem):
        _file(systems, "gemm")


def test_large_strings_and_row_groups_are_the_same_table(systems: Path) -> None:
    rows = _rows("gemm", gemm_dtype=["b", "a", "b", "c"])
    path = _write(systems, "gemm", rows)
    table = pyarrow.table(rows)
    large = table.set_column(0, "op_name", table["op_name"].cast(pyarrow.large_string()))
    parquet.write_table(large, path, row_group_size=2)
    found = _file(systems, "gemm")
    assert sorted(found["gemm_dtype"]) == ["a", "b", "b", "c"]
    assert found["m"][found["gemm_dtype"] == "c"] == 6


def test_milliseconds_microseconds_and_elements(systems: Path) -> None:
    _write(systems, "moe_a2a", _rows("moe_a2a", latency=[30.0], transmit_us=[20.0], notify_us=[10.0]))
    table = _file(systems, "moe_a2a")
    assert table["seconds"] == pytest.approx(table["transmit_seconds"] + table["notify_seconds"])
    assert table["seconds"] == pytest.approx(30e-6)
    rows = _rows("wideep_deepep_ll", dispatch_avg_t_us=[12.0], dispatch_bandwidth_gbps=[256.0])
    _write(systems, "wideep_deepep_ll", rows)
    table = _file(systems, "wideep_deepep_ll")
    assert table["dispatch_seconds"] == pytest.approx(12e-6)
    assert table["dispatch_bandwidth"] == pytest.approx(256e9)
    for family, types, sizes in (
        ("nccl", ["half", "int8"], [2, 1]),
        ("custom_allreduce", ["bfloat16", "float32"], [2, 4]),
    ):
        name = SCHEMAS[family].element_type
        _write(systems, family, _rows(family, message_size=[1024, 1024], latency=[0.5, 0.5]) | {name: types})
        table = _file(systems, family)
        by_type = dict(zip(table[name].tolist(), table["message_bytes"].tolist(), strict=True))
        assert by_type == {word: size * 1024 for word, size in zip(types, sizes, strict=True)}
        assert table["seconds"] == pytest.approx(0.5e-3)
        assert table.units["message_bytes"] == "B"


def test_elements_of_unknown_size_are_refused(systems: Path) -> None:
    _write(systems, "nccl", _rows("nccl", nccl_dtype=["int3"]))
    with pytest.raises(InputError, match="int3"):
        _file(systems, "nccl")


def test_equal_keys_become_their_median(systems: Path) -> None:
    rows = _rows("gemm", m=[1, 2, 1, 1, 2, 3], latency=[5.0, 4.0, 1.0, 2.0, 8.0, 7.0]) | {"n": [8] * 6, "k": [8] * 6}
    _write(systems, "gemm", rows)
    table = _file(systems, "gemm")
    assert table["m"].tolist() == [1, 2, 3]
    assert table["seconds"] == pytest.approx([2e-3, 6e-3, 7e-3])
    assert table.having(Flag.DUPLICATED).tolist() == [True, True, False]
    assert table.fit.all()
    assert (table.raw_rows, len(table)) == (6, 3)


def test_several_kernels_must_be_told_apart(systems: Path) -> None:
    rows = _rows("gemm", kernel_source=["deepgemm", "cublas", "cublas"], gemm_dtype=["fp8_block", "bfloat16", "fp8"])
    _write(systems, "gemm", rows)
    named: dict[str, Any] = {"system": "h200_sxm", "family": "gemm", "engine": "sglang"}
    with pytest.raises(InputError, match=r"2 kernels.*cublas \(2 rows\); deepgemm \(1 rows\)"):
        silicon_table(systems, **named)
    assert len(silicon_table(systems, **named, kernel_source="cublas")) == 2
    assert len(silicon_table(systems, **named, kernel_source=["cublas", "deepgemm"])) == 3
    one = silicon_table(systems, **named, where={"gemm_dtype": "fp8_block"})
    assert (one["kernel_source"].tolist(), one.source.rpartition(", ")[2]) == (["deepgemm"], "kernel deepgemm")
    with pytest.raises(InputError, match="there is cublas, deepgemm"):
        silicon_table(systems, **named, kernel_source="marlin")
    with pytest.raises(InputError, match=r"(?s)no row holds 99.*no column to choose by"):
        silicon_table(systems, **named, where={"m": 99, "seconds": 1})


def test_the_latest_version_is_the_default(systems: Path) -> None:
    for version in ("0.5.9", "0.5.14", "0.5.6.post2"):
        _write(systems, "gemm", _rows("gemm"), version=version)
    assert _file(systems, "gemm").version == "0.5.14"
    assert _file(systems, "gemm", version="0.5.9").version == "0.5.9"
    with pytest.raises(InputError, match=r"there is 0\.5\.6\.post2, 0\.5\.9, 0\.5\.14"):
        _file(systems, "gemm", version="0.5.7")
    order = ["0.1.dev19262", "0.24.0", "1.3.0.dev1", "1.3.0rc9", "1.3.0rc20", "1.3.0", "1.3.0.post1", "2.27", "2.27.3"]
    assert sorted(["2.27.3", *order[:-1]], key=version_key) == order


def test_what_is_not_there_is_named(systems: Path) -> None:
    _write(systems, "gemm", _rows("gemm"))
    with pytest.raises(UnknownName, match="did you mean gemm"):
        _file(systems, "gem")
    with pytest.raises(UnknownName, match="h200_sxm"):
        _file(systems, "gemm", system="h200")
    with pytest.raises(InputError, match="there is sglang"):
        _file(systems, "gemm", engine="vllm")
    with pytest.raises(InputError, match="silicon list"):
        _file(systems, "moe")


def test_rows_of_another_device_or_version_are_marked(systems: Path) -> None:
    given = {"device": ["H200", "H200", "H100"], "version": ["1.0.0", "0.9", "1.0.0"], "framework": ["SGLang"] * 3}
    _write(systems, "gemm", _rows("gemm") | given)
    table = _file(systems, "gemm")
    assert table.having(Flag.OTHER_DEVICE).tolist() == [False, False, True]
    assert table.having(Flag.OTHER_VERSION).tolist() == [False, True, False]
    assert table.fit.tolist() == [True, True, False]
    assert "(rows of 0.9)" in table.source
    assert not {"device", "version", "framework"} & set(table.columns)


def test_a_time_of_zero_is_no_time(systems: Path) -> None:
    _write(systems, "computescale", _rows("computescale", latency=[0.0, 1.0]))
    table = _file(systems, "computescale")
    assert table.having(Flag.NOT_TIMED).tolist() == [True, False]
    assert table.fit.tolist() == [False, True]


def test_host_bound_rows_are_those_at_the_floor(systems: Path) -> None:
    sizes = [1, 2, 4, 8, 16, 1000, 2000, 4000, 8000, 16000]
    times = [0.060, 0.058, 0.063, 0.061, 0.059, 0.070, 0.1, 0.2, 0.4, 0.8]
    rows = _rows("gemm", m=sizes, n=[512] * 10, k=[512] * 10, latency=times)
    _write(systems, "gemm", rows | {"gemm_dtype": ["fp8_block"] * 10}, engine="vllm")
    _write(systems, "gemm", rows | {"gemm_dtype": ["bfloat16"] * 10}, engine="trtllm")
    assert _file(systems, "gemm", engine="vllm").having(Flag.HOST_BOUND).tolist() == [True] * 6 + [False] * 4
    assert not _file(systems, "gemm", engine="trtllm").flags.any()


def _moe(**given: list[Any]) -> dict[str, list[Any]]:
    length = len(next(iter(given.values())))
    fixed: dict[str, Any] = dict(
        kernel_source="triton", moe_dtype="fp8_block", num_tokens=64, hidden_size=7168, inter_size=2048, topk=8,
        num_experts=256, moe_tp_size=1, moe_ep_size=1, distribution="balanced", latency=1.0,
    )  # fmt: skip
    return {"op_name": ["moe"] * length} | {name: [value] * length for name, value in fixed.items()} | given


def test_deepseeks_shape_is_mislabelled_in_the_versions_that_are_known_for_it(systems: Path) -> None:
    rows = _moe(hidden_size=[7168, 7168, 4096], num_experts=[256, 384, 256])
    for engine, version, marked in (
        ("sglang", "0.5.14", True),
        ("vllm", "0.24.0", True),
        ("sglang", "0.5.10", False),
        ("trtllm", "0.5.14", False),
    ):
        _write(systems, "moe", rows, engine=engine, version=version)
        table = _file(systems, "moe", engine=engine, version=version)
        deepseek = (table["hidden_size"] == 7168) & (table["num_experts"] == 256)
        assert table.having(Flag.MISLABELLED).tolist() == (deepseek & marked).tolist()
    rows = _moe(kernel_source=["moe_torch_flow_min_latency"] * 3, num_experts=[64, 128, 512])
    _write(systems, "moe", rows, engine="trtllm")
    table = _file(systems, "moe", engine="trtllm")
    assert table.having(Flag.MISLABELLED).tolist() == [False, True, True]


def test_expert_parallel_rows_of_sglang_0_5_10_and_ungated_models_are_marked(systems: Path) -> None:
    _write(systems, "moe", _moe(moe_ep_size=[1, 8], latency=[8.0, 4.0]), version="0.5.10")
    assert _file(systems, "moe").having(Flag.OTHER_WORK).tolist() == [False, True]
    rows = _moe(hidden_size=[2688, 2688], inter_size=[1856, 5120], topk=[6, 22]) | {
        "kernel_source": ["sglang_fused_moe_triton"] * 2
    }
    _write(systems, "moe", rows)
    table = _file(systems, "moe", version=VERSION)
    assert table.having(Flag.UNGATED).tolist() == [True, False]
    assert table.having(Flag.UNFUSED_TOP_K).tolist() == [False, True]
    assert table.fit.all()


def test_a_bad_tactic_is_slower_than_more_work(systems: Path) -> None:
    ranks, times = [1, 2, 4, 8, 16], [1.0, 0.5, 2.5, 0.15, 0.4]
    _write(systems, "moe", _moe(moe_ep_size=ranks, latency=times))
    table = _file(systems, "moe")
    assert dict(zip(table["moe_ep_size"].tolist(), table.having(Flag.BAD_TACTIC).tolist(), strict=True)) == {
        1: False, 2: False, 4: True, 8: False, 16: True,
    }  # fmt: skip
    steps, times = [15, 31, 63, 127], [0.02, 3.0, 0.04, 0.08]
    same = {"batch_size": [8] * 4, "num_heads": [128] * 4, "tp_size": [1] * 4, "isl": [1] * 4}
    _write(systems, "generation_mla", _rows("generation_mla", step=steps, latency=times) | same)
    assert _file(systems, "generation_mla").having(Flag.BAD_TACTIC).tolist() == [False, True, False, False]


def test_eager_all_reduce_is_marked(systems: Path) -> None:
    kernels = ["SGLang_CustomAllReduce_graph", "SGLang_CustomAllReduce_eager"]
    _write(systems, "custom_allreduce", _rows("custom_allreduce", kernel_source=kernels, backend=["a", "b"]))
    table = _file(systems, "custom_allreduce")
    assert dict(zip(table["kernel_source"], table.having(Flag.EAGER), strict=True)) == dict(
        zip(kernels, [False, True], strict=True)
    )
    assert "backend" not in table.columns


def test_rules_name_columns_that_are_there() -> None:
    for rule in silicon_facts().rules:
        used = {*rule.text, *rule.least, *(name for shape in rule.shapes for name in shape)}
        used |= {*rule.floor.work, *rule.floor.share, *rule.floor.per} if rule.floor else set()
        used |= {*rule.outdone.more, *rule.outdone.less} if rule.outdone else set()
        for family in rule.families:
            assert used <= {column.name for column in SCHEMAS[family].axes}, rule


def test_systems_are_gpus_of_the_catalog() -> None:
    for slug in silicon_facts().systems:
        assert Catalog.standard().gpu(slug).slug == slug
    assert silicon_system("h200") == "h200_sxm"
    assert silicon_system("h20") is None


def test_tables_are_read_once_and_cannot_be_written(systems: Path) -> None:
    _write(systems, "gemm", _rows("gemm"))
    table = _file(systems, "gemm")
    assert _file(systems, "gemm") is table
    with pytest.raises(ValueError, match="read-only"):
        table["seconds"][0] = 1.0


def test_files_and_kernels_are_listed(systems: Path) -> None:
    _write(systems, "gemm", _rows("gemm", kernel_source=["a", "b", "a"]))
    _write(systems, "gemm", _rows("gemm"), system="b200_sxm", engine="vllm")
    (systems / "data" / "h200_sxm" / "gemm" / "sglang" / VERSION / "unknown_perf.parquet").touch()
    files = silicon_files(systems)
    assert [(file.system, file.family, file.engine) for file in files] == [
        ("b200_sxm", "gemm", "vllm"),
        ("h200_sxm", "gemm", "sglang"),
    ]
    assert kernel_counts(systems, files[1]) == {"a": 2, "b": 1}


def test_a_missing_package_or_library_says_what_to_install(systems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOEPLAN_SILICON", raising=False)
    monkeypatch.setattr(silicon_place, "find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"pip install 'moeplan\[silicon\]'"):
        silicon_root()
    monkeypatch.setenv("MOEPLAN_SILICON", str(systems))
    assert silicon_root() == systems
    for wrong in (systems / "data", "", systems / "data" / "gone"):
        with pytest.raises(InputError, match="holds no folder `data`"):
            silicon_root(wrong)
    _write(systems, "gemm", _rows("gemm"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"pyarrow: is not installed — pip install 'moeplan\[silicon\]'"):
        _file(systems, "gemm")


def test_tables_are_there_where_the_environment_or_pip_says_so(systems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEPLAN_SILICON", str(systems))
    assert silicon_named() == str(systems)
    silicon_place._named.cache_clear()
    monkeypatch.setattr(silicon_place, "find_spec", lambda name: None if name == "pyarrow" else object())
    assert silicon_named() is None  # nothing to read them with
    silicon_place._named.cache_clear()
    monkeypatch.delenv("MOEPLAN_SILICON")
    monkeypatch.setattr(silicon_place, "find_spec", lambda _name: object())
    assert silicon_named() == ""  # installed
    silicon_place._named.cache_clear()
    monkeypatch.setattr(silicon_place, "find_spec", lambda _name: None)
    assert silicon_named() is None
    silicon_place._named.cache_clear()


def test_the_package_is_found_without_being_imported(systems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOEPLAN_SILICON", raising=False)
    (systems.parent / "__init__.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(systems.parents[1])
    assert silicon_root() == systems
    assert "aiconfigurator_core" not in sys.modules


def test_a_file_that_is_no_parquet_is_a_fault(systems: Path) -> None:
    _write(systems, "gemm", _rows("gemm")).write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match="cannot be read"):
        _file(systems, "gemm")


def test_the_rows_that_are_kept_back_cannot_be_opened(systems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No argument leads out of systems/data, no link leads to another file, and nothing but Parquet is opened."""
    sample = systems / silicon.KEPT_BACK
    for place in (sample, systems / "data" / silicon.KEPT_BACK):
        place.write_text("m,n,k,latency\n1,1,1,1\n")
    outside = systems / "outside.parquet"
    parquet.write_table(pyarrow.table(_rows("gemm")), outside)
    monkeypatch.setenv("MOEPLAN_SILICON", str(systems))
    link = _write(systems, "gemm", _rows("gemm"))
    named = _write(systems, "gemm", _rows("gemm"), version=DEEPGEMM.version)
    library = KernelLibrary.of(CATALOG.gpu("h200"), Catalog.standard(systems.parent))
    opened: list[str] = []
    for owner, name in ((builtins, "open"), (io, "open"), (os, "open"), (parquet, "ParquetFile")):
        true = getattr(owner, name)

        def record(path: Any, *args: Any, true: Any = true, **kwargs: Any) -> Any:
            opened.append(str(path))
            return true(path, *args, **kwargs)

        monkeypatch.setattr(owner, name, record)
    for target in (sample, systems / "data" / silicon.KEPT_BACK, outside):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(InputError, match=r"is no \.parquet under systems/data"):
            _file(systems, "gemm")
        with pytest.raises(InputError, match=r"is no \.parquet under systems/data"):
            kernel_counts(systems, silicon_files(systems)[-1])
        named.unlink()
        named.symlink_to(target)
        for ask in (
            lambda: rows_of(DEEPGEMM, CATALOG),
            lambda: rows_of(DEEPGEMM, CATALOG, root=systems),
            lambda: library.gemm(m=64, n=4096, k=7168, weights=weight_format("fp8_block")),
        ):
            with pytest.raises(InputError, match=r"is no \.parquet under systems/data"):
                ask()
    for wrong in ("..", "../..", str(systems), silicon.KEPT_BACK):
        for argument in ("system", "family", "engine", "version"):
            with pytest.raises(InputError):
                _file(systems, **{"family": "gemm"} | {argument: wrong})
            with pytest.raises(InputError):
                rows_of(replace(DEEPGEMM, **{argument: wrong}), CATALOG)  # texts
    with pytest.raises(InputError):
        silicon_root(sample)
    link.unlink()
    _write(systems, "gemm", _rows("gemm"))
    assert len(_file(systems, "gemm")) == 3
    inside = {Path(path) for path in opened if systems.parent in Path(path).parents}
    assert inside == {link}, "what may be read is seen to be opened, and nothing else"
    assert not [path for path in opened if path.endswith(".csv") or Path(path).resolve() in (outside, sample)]


def test_no_code_names_them_but_the_refusal() -> None:
    source = Path(silicon.__file__)
    package = source.parents[1]
    naming = [path for path in package.rglob("*.py") if "silicon_sample" in path.read_text(encoding="utf-8")]
    assert naming == [source]
    rest = source.read_text(encoding="utf-8").replace(inspect.getsource(silicon._checked), "")
    assert [line for line in rest.splitlines() if "silicon_sample" in line] == [
        'KEPT_BACK: Final = "silicon_sample.csv"'
    ]
    assert rest.count("KEPT_BACK") == 1  # used in the refusal alone


def _silicon(**given: Any) -> RowSource:
    fixed: dict[str, Any] = {"gpu": "h200", "system": "h200_sxm", "engine": "sglang", "version": VERSION}
    return RowSource(**fixed | given)


def test_dense_rows_are_of_one_kernel_and_format_in_si_units(systems: Path) -> None:
    rows = _rows("gemm", m=[64, 128, 64], n=[4096, 4096, 512], k=[7168] * 3, latency=[0.02, 0.03, 0.01])
    rows |= {"gemm_dtype": ["fp8_block", "fp8_block", "bfloat16"], "kernel_source": ["deepgemm", "deepgemm", "cublas"]}
    _write(systems, "gemm", rows)
    with pytest.raises(InputError, match=r"2 kernels.*cublas \(1 rows\); deepgemm \(2 rows\)"):
        rows_of(_silicon(family="gemm"), CATALOG, root=systems)
    for source in (
        _silicon(family="gemm", kernels=("deepgemm",)),
        _silicon(family="gemm", where={"gemm_dtype": "fp8_block"}),
    ):
        found = rows_of(source, CATALOG, root=systems)
        assert {name: values.tolist() for name, values in found.shape.items()} == {
            "m": [64.0, 128.0],
            "n": [4096.0, 4096.0],
            "k": [7168.0, 7168.0],
        }
        assert found.seconds == pytest.approx([0.02e-3, 0.03e-3])
        assert (found.gpu.slug, found.best) == ("h200", Origin.MEASURED)
        assert found.source.endswith("h200_sxm, sglang 1.0.0, gemm_perf.parquet, kernel deepgemm")
    with pytest.raises(InputError, match="no row holds"):
        rows_of(_silicon(family="gemm", where={"gemm_dtype": "fp8_blck"}), CATALOG, root=systems)


def test_attentions_rows_see_the_new_token_and_those_before(systems: Path) -> None:
    types: dict[str, list[Any]] = {"mla_dtype": ["bfloat16"] * 2, "kv_cache_dtype": ["bfloat16"] * 2}
    rows = _rows("generation_mla", batch_size=[64, 64], step=[4095, 8191], isl=[1, 1], latency=[0.5, 0.9]) | types
    _write(systems, "generation_mla", rows | {"num_heads": [128, 128], "tp_size": [1, 1]})
    found = rows_of(_silicon(family="generation_mla"), CATALOG, root=systems)
    assert {name: values.tolist() for name, values in found.shape.items()} == {
        "batch": [64.0, 64.0],
        "heads": [128.0, 128.0],
        "q_len": [1.0, 1.0],
        "context": [4096.0, 8192.0],
    }
    kept = rows_of(_silicon(family="generation_mla", limits={"context": (8000, 9000)}), CATALOG, root=systems)
    assert kept.seconds == pytest.approx([0.9e-3])
    with pytest.raises(InputError, match="widen the limits"):
        rows_of(_silicon(family="generation_mla", limits={"context": (1, 2)}), CATALOG, root=systems)


def test_batched_products_of_mla_go_by_heads(systems: Path) -> None:
    rows = _rows("mla_bmm", op_name=["mla_gen_pre", "mla_gen_post"], latency=[0.01, 0.02]) | {
        "bmm_dtype": ["bfloat16"] * 2, "num_heads": [128, 16], "num_tokens": [64, 64],
    }  # fmt: skip
    _write(systems, "mla_bmm", rows)
    found = rows_of(_silicon(family="mla_bmm"), CATALOG, root=systems)
    by_seconds = dict(zip(found.seconds.round(6).tolist(), range(2), strict=True))
    for seconds, copies, n, k in ((10e-6, 128, 512, 128), (20e-6, 16, 128, 512)):
        place = by_seconds[seconds]
        assert [found.shape[name][place] for name in ("copies", "m", "n", "k")] == [copies, 64, n, k]


def test_experts_rows_go_by_active_experts_and_time_both_products(systems: Path) -> None:
    rows = _moe(num_tokens=[32, 4096], moe_ep_size=[32, 32], distribution=["uniform"] * 2, latency=[0.1, 0.2])
    _write(systems, "wideep_generation_moe", rows)
    found = rows_of(_silicon(family="wideep_generation_moe"), CATALOG, root=systems)
    # 32 tokens x 8 / 32 ranks: one row for each of 8 experts; 4096: 128 rows each, a tile of 128 being two of 64
    assert {name: values.tolist() for name, values in found.shape.items()} == {
        "groups": [8.0, 8.0],
        "idle": [0.0, 0.0],
        "m": [1.0, 128.0],
        "blocks": [8.0, 16.0],
        "tokens": [0.0, 0.0],
        "n": [4096.0, 4096.0],
        "k": [7168.0, 7168.0],
        "both": [1.0, 1.0],
    }


def test_rows_unfit_for_use_are_left_out(systems: Path) -> None:
    _write(systems, "gemm", _rows("gemm", latency=[0.0, 1.0, 2.0], m=[1, 2, 3]))
    assert rows_of(_silicon(family="gemm"), CATALOG, root=systems).shape["m"].tolist() == [2.0, 3.0]
    _write(systems, "moe", _moe(latency=[1.0]), version="0.5.14")  # mislabelled
    with pytest.raises(InputError, match=r"no row of .* is left"):
        rows_of(_silicon(family="moe", version="0.5.14"), CATALOG, root=systems)


def test_a_family_without_a_form_is_named(systems: Path) -> None:
    _write(systems, "oneccl", _rows("oneccl"))
    with pytest.raises(UnknownName, match="silicon family with a form"):
        rows_of(_silicon(family="oneccl"), CATALOG, root=systems)


@pytest.fixture
def named(systems: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder as the environment names it, for the library."""
    monkeypatch.setenv("MOEPLAN_SILICON", str(systems))
    return systems


def _library(systems: Path, gpu: str = "h200", sources: KernelSources = ALL, *, cold: bool = False) -> KernelLibrary:
    """With a data folder of its own, so that nothing is remembered from another test's tables."""
    mine = systems.parent / "mine"
    mine.mkdir(exist_ok=True)
    return replace(KernelLibrary.of(CATALOG.gpu(gpu), Catalog.standard(mine), sources), cold=cold)


def _timed(library: KernelLibrary, form: str, **shape: float) -> Timed:
    found = library.timed(form, {"weights": "fp8_block"}, shape)
    assert found is not None
    return found


def _deepgemm(systems: Path, milliseconds: list[float]) -> None:
    rows = _rows("gemm", m=[64, 128], n=[4096] * 2, k=[7168] * 2, latency=milliseconds)
    rows |= {"gemm_dtype": ["fp8_block"] * 2, "kernel_source": [DEEPGEMM.kernels[0]] * 2}
    _write(systems, "gemm", rows, version=DEEPGEMM.version)


def test_the_library_takes_silicon_where_the_environment_names_it(named: Path) -> None:
    _deepgemm(named, [0.05, 0.08])
    shape = {"n": 4096.0, "k": 7168.0}
    found = _timed(_library(named), "gemm", m=128.0, **shape)
    assert found.seconds == pytest.approx(0.08e-3, rel=1e-9)
    assert found.origin is Origin.MEASURED
    assert found.source.endswith(f"h200_sxm, sglang 0.5.14, gemm_perf.parquet, kernel {DEEPGEMM.kernels[0]}")
    between = _timed(_library(named), "gemm", m=90.0, **shape)
    assert (between.origin, between.source) == (Origin.INTERPOLATED, found.source)
    far = _timed(_library(named), "gemm", m=128.0, n=64.0, k=7168.0)
    assert (far.origin, far.speed) == (Origin.FITTED, 1.0)
    # a step: the form without quantisation and last-level cache, in the ratio that was measured with them
    fits = _library(named, sources=KernelSources(allowed=("fitted",)), cold=True)
    cold = _timed(_library(named, cold=True), "gemm", m=128.0, converted=1.0, **shape)
    assert cold.seconds == pytest.approx(
        _timed(fits, "gemm", m=128.0, converted=1.0, **shape).seconds / found.speed, rel=1e-9
    )


def test_silicon_can_be_left_out_and_named_alone(named: Path) -> None:
    _deepgemm(named, [0.05, 0.08])
    shape = {"m": 128.0, "n": 4096.0, "k": 7168.0}
    for allowed in (("table", "fitted"), ("fitted",)):
        assert _timed(_library(named, sources=KernelSources(allowed=allowed)), "gemm", **shape).origin is Origin.FITTED
    alone = _library(named, sources=KernelSources(allowed=("silicon",)))
    assert _timed(alone, "gemm", **shape).origin is Origin.MEASURED
    with pytest.raises(InputError, match="gemm fp8_block: no source answers"):
        _timed(alone, "gemm", m=128.0, n=64.0, k=7168.0)


def test_the_users_table_comes_before_silicon(named: Path) -> None:
    _deepgemm(named, [0.05, 0.08])
    table = named.parent / "mine" / "kernels" / "h200" / "gemm_fp8.csv"
    table.parent.mkdir(parents=True)
    table.write_text("m,n,k,seconds\n128,4096,7168,0.5\n")
    table.with_suffix(".yaml").write_text(
        "{title: mine, gpu: H200, kernel: a, precision: fp8, source: b, licence: c, date: '2026'}\n"
    )
    found = _timed(_library(named, cold=True), "gemm", m=128.0, n=4096.0, k=7168.0, converted=1.0)
    assert (found.source, found.origin) == ("mine", Origin.MEASURED)
    assert found.seconds == pytest.approx(0.5, rel=1e-9)
    other = _timed(_library(named), "gemm", m=128.0, n=64.0, k=7168.0)
    assert other.origin is Origin.FITTED


def test_a_time_of_both_products_corrects_each(named: Path) -> None:
    """DeepSeek's experts, 128 rows for each of eight: one ratio, found by the first product's shape."""
    rows = _moe(num_tokens=[4096], moe_ep_size=[32], distribution=["uniform"], latency=[0.2])
    _write(named, "wideep_generation_moe", rows, version="0.5.10")
    chosen = chosen_fit(CATALOG, CATALOG.gpu("h200"), "grouped_gemm", {"weights": "fp8_block"})
    assert chosen is not None
    whole = {"groups": 8.0, "m": 128.0, "n": 4096.0, "k": 7168.0, "blocks": 16.0, "both": 1.0}
    speed = float(chosen.fit.parts(CATALOG.gpu("h200"), whole).seconds) / 0.2e-3
    library = _library(named)
    up = _timed(library, "grouped_gemm", groups=8.0, m=128.0, n=4096.0, k=7168.0)
    down = library.timed(
        "grouped_gemm",
        {"weights": "fp8_block"},
        {"groups": 8.0, "m": 128.0, "n": 7168.0, "k": 2048.0},
        other_product=True,
    )
    assert down is not None
    assert (up.origin, down.origin) == (Origin.MEASURED, Origin.MEASURED)
    assert up.speed == down.speed == pytest.approx(speed, rel=1e-9)
    assert 0.1e-3 < up.seconds + down.seconds < 0.2e-3  # what is between the two is an operator of its own


def _run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    silicon_command.command.main(args=list(arguments), standalone_mode=False)
    return capsys.readouterr().out


def test_list_and_show(systems: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEPLAN_SILICON", str(systems))
    rows = _rows("gemm", kernel_source=["deepgemm", "cublas"], latency=[0.0123, 0.0])
    _write(systems, "gemm", rows)
    _write(systems, "nccl", _rows("nccl"), system="b200_sxm", engine="nccl")
    listed = _run("list", capsys=capsys)
    assert "aiconfigurator-core 0.12.0" in listed
    assert [line.split() for line in listed.splitlines() if "gemm" in line] == [
        ["h200_sxm", "gemm", "sglang", "1.0.0", "2", "cublas,", "deepgemm"]
    ]
    content = json.loads(_run("list", "--system", "h200", "--json", capsys=capsys))
    assert content["schema"] == "moeplan.silicon/1"
    assert [table["kernel_sources"] for table in content["tables"]] == [{"cublas": 1, "deepgemm": 1}]
    shown = _run("show", "h200", "gemm", "--engine", "sglang", capsys=capsys)
    assert "12.3 µs" in shown
    assert "1 of kernel deepgemm" in shown
    assert "1 not-timed" in shown
    asked = [
        "show",
        "h200_sxm",
        "gemm",
        "--engine",
        "sglang",
        "--kernel-source",
        "deepgemm",
        "--where",
        "m=3",
        "--json",
    ]
    content = json.loads(_run(*asked, capsys=capsys))
    assert content["head"]["seconds"] == pytest.approx([12.3e-6])
    assert (content["units"]["seconds"], content["rows"], content["engine_version"]) == ("s", 1, "1.0.0")
    with pytest.raises(InputError, match="no tables of it"):
        _run("show", "h20", "gemm", "--engine", "sglang", capsys=capsys)
    with pytest.raises(InputError, match="COLUMN=VALUE"):
        _run("show", "h200", "gemm", "--engine", "sglang", "--where", "m", capsys=capsys)


def _installed() -> Path:
    try:
        return silicon_root()
    except InputError:
        pytest.skip("aiconfigurator-core is not installed: pip install 'moeplan[silicon]'")


def test_the_package_has_the_known_columns_and_pitfalls() -> None:
    """aiconfigurator-core 0.12: rows counted with pyarrow alone."""
    root = _installed()
    gemm = silicon_file(root, system="h200_sxm", family="gemm", engine="sglang", version="0.5.14")
    assert (gemm.raw_rows, len(gemm), int(gemm.fit.sum())) == (101_010, 101_010, 101_010)
    old = silicon_file(root, system="h200_sxm", family="moe", engine="sglang", version="0.5.10")
    assert old.raw_rows - len(old) == 8505
    assert set(old["moe_ep_size"][old.fit].tolist()) == {1}
    new = silicon_file(root, system="h200_sxm", family="moe", engine="sglang", version="0.5.14")
    assert int(new.having(Flag.MISLABELLED).sum()) == 2835
    bound = silicon_file(root, system="h200_sxm", family="gemm", engine="vllm", version="0.24.0")
    assert set(bound["gemm_dtype"][bound.having(Flag.HOST_BOUND)].tolist()) == {"fp8_block"}
    a2a = silicon_file(root, system="h200_sxm", family="moe_a2a", engine="vllm", version="0.24.0")
    assert a2a["seconds"] == pytest.approx(a2a["transmit_seconds"] + a2a["notify_seconds"])
    layer = silicon_table(
        root, system="h200_sxm", family="gemm", engine="sglang", where={"gemm_dtype": "fp8_block", "n": 4096, "k": 7168}
    )
    source = RowSource(
        gpu="h200",
        system="h200_sxm",
        family="gemm",
        engine="sglang",
        where={"gemm_dtype": "fp8_block", "n": "4096", "k": "7168"},
    )
    assert len(rows_of(source, CATALOG, root=root)) == len(layer)


@pytest.mark.budget
def test_a_gpus_decode_tables_take_less_than_a_second_of_cpu() -> None:
    root = _installed()
    code = (
        "import time; start = time.process_time()\n"
        "from pathlib import Path\n"
        "from moeplan.kernels.silicon import silicon_file\n"
        f"for family, engine in {DECODE!r}.items():\n"
        f"    silicon_file(Path({str(root)!r}), system='h200_sxm', family=family, engine=engine)\n"
        "print(time.process_time() - start)\n"
    )
    took = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(3)
    ]
    assert min(took) < 1.0
    start = time.process_time()
    for _ in range(3):
        silicon_file(root, system="h200_sxm", family="gemm", engine="sglang")
    assert time.process_time() - start < 1.0
