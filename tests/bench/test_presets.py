"""Shapes of the presets, computed apart from how the presets are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeplan.bench.family import COLUMNS, COMMANDS, Family, Shape
from moeplan.bench.presets import preset, preset_names, shapes_of_file
from moeplan.errors import InputError, UnknownName
from moeplan.specs.catalog import Catalog
from moeplan.specs.model import Mla

CATALOG = Catalog.standard()
GROUPED: tuple[Family, ...] = ("grouped_gemm_fp8",)
ALL: tuple[Family, ...] = tuple(COLUMNS)


def test_the_grouped_gemm_article_is_equations_6_and_7() -> None:
    wanted = set()
    for ranks in (4, 8, 16, 32, 64, 72, 128, 144):
        for batch in (2**power for power in range(10)):
            for q_len in (1, 2, 3, 4):
                tokens = batch * q_len
                groups = -(-min(256, 8 * tokens * ranks) // ranks)  # 8 · min(32/D, B·Q), whole
                for n, k in ((4096, 7168), (7168, 2048)):
                    wanted.add((groups, -(-tokens * ranks // 32), n, k))  # ⌈B·Q·D/32⌉
    shapes = preset(CATALOG, "grouped-gemm-article", GROUPED).shapes()
    assert len(shapes) == len(wanted)
    assert {tuple(shape.values()) for shape in shapes} == wanted


def test_the_grouped_gemm_article_has_the_setups_of_the_article() -> None:
    shapes = preset(CATALOG, "grouped-gemm-article", GROUPED).shapes()
    for groups, m in ((64, 16), (32, 32), (16, 64), (8, 128)):  # 128 tokens per GPU at D = 4, 8, 16, 32
        assert {"groups": groups, "m": m, "n": 4096, "k": 7168} in shapes


def test_the_batch_article_reads_the_352_megabytes_of_eight_experts() -> None:
    found = preset(CATALOG, "batch-article", GROUPED)
    shapes = found.shapes()
    assert found.block_m == (16, 32, 64, 128)
    assert {shape["groups"] for shape in shapes} == {8}
    assert max(shape["m"] for shape in shapes) == 16
    per_m = [shape["groups"] * shape["n"] * shape["k"] for shape in shapes if shape["m"] == 16]
    assert sum(per_m) == 8 * 3 * 7168 * 2048 == 352_321_536


def test_dense_products_are_those_of_the_model() -> None:
    model = CATALOG.model("deepseek-v3")
    mla, experts = model.attention, model.experts
    assert isinstance(mla, Mla)
    assert experts is not None
    assert mla.q_lora_rank is not None
    d = model.hidden
    wanted = {
        (mla.q_lora_rank + mla.latent_dim, d),
        (mla.heads * mla.qk_head_dim, mla.q_lora_rank),
        (mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        (d, mla.heads * mla.v_head_dim),
        (2 * experts.shared_width, d),
        (d, experts.shared_width),
        (2 * model.dense_width, d),
        (d, model.dense_width),
    }
    shapes = preset(CATALOG, "deepseek-dense", ("gemm_fp8",)).shapes()
    assert {(shape["n"], shape["k"]) for shape in shapes} == wanted
    assert len(shapes) == len(wanted) * 10
    absorbed = preset(CATALOG, "deepseek-absorbed", ("gemm_batched_bf16",)).shapes()
    latent = mla.kv_lora_rank
    sides = {(latent, mla.qk_nope_head_dim), (mla.v_head_dim, latent)}
    assert {(shape["n"], shape["k"]) for shape in absorbed} == sides
    assert {shape["copies"] for shape in absorbed} == {mla.heads // tp for tp in (1, 2, 4, 8)}


@pytest.mark.parametrize("name", preset_names(CATALOG))
def test_every_preset_is_whole(name: str) -> None:
    found = preset(CATALOG, name, ALL)
    shapes = found.shapes()
    assert shapes
    assert len({tuple(shape.values()) for shape in shapes}) == len(shapes)
    assert all(tuple(shape) == COLUMNS[found.family] for shape in shapes)
    assert all(value >= 1 for shape in shapes for value in shape.values())


def test_every_command_has_a_preset() -> None:
    assert "devices" not in preset_names(CATALOG)
    for families in COMMANDS.values():
        for family in families:
            assert preset_names(CATALOG, (family,))


def test_an_unknown_preset_and_one_of_another_command() -> None:
    with pytest.raises(UnknownName, match=r"did you mean .*grouped-gemm-article"):
        preset(CATALOG, "grouped-gemm-articl", GROUPED)
    with pytest.raises(InputError, match="is of grouped_gemm_fp8"):
        preset(CATALOG, "grouped-gemm-article", ("gemm_fp8",))


def test_a_users_preset(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    text = "{title: mine, source: me, family: grouped_gemm_fp8, grid: {m: [3], groups: [2], k: [128], n: [256, 256]}}"
    (tmp_path / "bench" / "mine.yaml").write_text(text)
    shapes = preset(Catalog.standard(tmp_path), "mine", GROUPED).shapes()
    assert shapes == [{"groups": 2, "m": 3, "n": 256, "k": 128}]


def written(folder: Path, text: str) -> Path:
    path = folder / "shapes.csv"
    path.write_text(text)
    return path


def test_the_header_tells_the_family(tmp_path: Path) -> None:
    families = COMMANDS["gemm"]
    dense: list[Shape] = [{"m": 8, "n": 128, "k": 256}]
    assert shapes_of_file(written(tmp_path, "k,n,m\n256,128,8\n256,128,8\n"), families) == ("gemm_fp8", dense)
    batched: list[Shape] = [{"copies": 2, "m": 8, "n": 128, "k": 256}]
    assert shapes_of_file(written(tmp_path, "copies,m,n,k\n2,8,128,256\n"), families) == ("gemm_batched_bf16", batched)


def test_a_measured_table_serves_as_shapes() -> None:
    path = CATALOG.kernel_table("h800", "gemm_fp8")
    assert path is not None
    family, shapes = shapes_of_file(path, COMMANDS["gemm"])
    assert family == "gemm_fp8"
    assert len(shapes) == len({line.rpartition(",")[0] for line in path.read_text().splitlines()[1:]})
    with pytest.raises(InputError, match="write groups,m,n,k"):
        shapes_of_file(path, GROUPED)


@pytest.mark.parametrize("cell", ["0", "-1", "1.5", "x", "", "1e3", "٣", "9" * 30])
def test_a_cell_that_is_no_size(tmp_path: Path, cell: str) -> None:
    with pytest.raises(InputError, match="line 2, n") as caught:
        shapes_of_file(written(tmp_path, f"m,n,k\n8,{cell},128\n"), COMMANDS["gemm"])
    assert len(caught.value.faults) == 1


def test_files_that_are_no_shapes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        shapes_of_file(tmp_path / "none.csv", GROUPED)
    with pytest.raises(InputError, match="there are none"):
        shapes_of_file(written(tmp_path, "groups,m,n,k\n"), GROUPED)
    with pytest.raises(InputError, match="line 2, k"):
        shapes_of_file(written(tmp_path, "groups,m,n,k\n1,2,3\n"), GROUPED)
