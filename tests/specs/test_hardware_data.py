"""The packaged GPUs, NICs and clusters: every file loads, every figure has an origin, key facts are exact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from moeplan.errors import Unsupported
from moeplan.specs import loading
from moeplan.specs.cluster import Nic
from moeplan.specs.cluster_file import ClusterFile
from moeplan.specs.gpu import Gpu
from moeplan.specs.loading import build, read_mapping

DATA = Path(loading.__file__).parents[1] / "data"
FOLDERS = ("gpus", "nics", "clusters")


def files(folder: str) -> list[Path]:
    return sorted(path for path in (DATA / folder).glob("*.yaml") if path.stem != "index")


def slug(path: Path) -> str:
    return path.stem


def gpu(name: str) -> Gpu:
    path = DATA / "gpus" / f"{name}.yaml"
    return build(Gpu, read_mapping(path), str(path))


def nic(name: str) -> Nic:
    path = DATA / "nics" / f"{name}.yaml"
    return build(Nic, read_mapping(path), str(path))


def cluster(name: str) -> ClusterFile:
    path = DATA / "clusters" / f"{name}.yaml"
    return build(ClusterFile, read_mapping(path), str(path))


def covered(figure: str, keys: set[str]) -> bool:
    """Say whether the figure or one of its dotted prefixes is among the keys."""
    parts = figure.split(".")
    return any(".".join(parts[:end]) in keys for end in range(1, len(parts) + 1))


def check_origins(figures: set[str], sources: dict[str, str], assumed: dict[str, str]) -> None:
    """Every figure has an origin in words, and no origin speaks of a figure that is not there."""
    keys = sources.keys() | assumed.keys()
    assert {figure for figure in figures if not covered(figure, keys)} == set()
    assert {key for key in keys if not any(covered(figure, {key}) for figure in figures)} == set()
    assert {key for key, words in {**sources, **assumed}.items() if len(words.split()) < 2} == set()


def figures_of(thing: Gpu) -> set[str]:
    figures = {"memory.capacity", "memory.bandwidth", "vector_rate", "attention_overlap", "gpus_per_node"}
    figures |= {f"compute.{precision}" for precision in thing.compute}
    if thing.scale_up is not None:
        figures |= {"scale_up.bandwidth", "scale_up.domain"}
    return figures | {name for name in ("tdp", "price", "sms", "l2") if getattr(thing, name) is not None}


PROMISED = {
    "gpus": "a100-40, a100-80, a800, h100, h100-pcie, h800, h20, h20-141, h200, l20, l40s, rtx-pro-6000, "
    "b200, b300, gb200, gb300, mi300x, mi325x, mi355x, ascend-910c",
    "nics": "cx7, e810, bluefield-3, cx8, efa-p5en, pollara-400, thor2",
    "clusters": "h800-cx7, h20-cx7, h20-cx7x4, h200-cx7, h100-cx7, b200-cx7, gb200-nvl72, deepseek-decode-2025",
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_promised_hardware_is_there(folder: str) -> None:
    assert set(PROMISED[folder].split(", ")) - {path.stem for path in files(folder)} == set()


@pytest.mark.parametrize("path", files("gpus"), ids=slug)
def test_every_gpu_loads_and_every_figure_has_an_origin(path: Path) -> None:
    thing = gpu(path.stem)
    check_origins(figures_of(thing), thing.sources, thing.assumed)
    assert thing.peak("bf16") > 0
    assert thing.supports("fp8")


@pytest.mark.parametrize("path", files("gpus"), ids=slug)
def test_a_nominal_capacity_is_marked_as_assumed_and_a_reported_one_is_not(path: Path) -> None:
    thing = gpu(path.stem)
    assert ("memory.capacity" in thing.assumed) == (thing.memory.capacity_is == "nominal")
    assert ("memory.capacity" in thing.sources) == (thing.memory.capacity_is == "reported")


@pytest.mark.parametrize("path", files("gpus"), ids=slug)
def test_no_gpu_lists_a_sparse_figure_as_dense(path: Path) -> None:
    thing = gpu(path.stem)
    if "fp8" in thing.compute:  # 8 bits run at twice the rate of 16; a mix-up with 2:4 sparsity gives 1 or 4
        assert thing.peak("fp8") / thing.peak("bf16") == pytest.approx(2.0, rel=0.02)
    if "fp4" in thing.compute:  # at twice the rate of 8 bits, three times on Blackwell Ultra
        assert 3.9 <= thing.peak("fp4") / thing.peak("bf16") <= 6.3


@pytest.mark.parametrize("path", files("nics"), ids=slug)
def test_every_nic_loads_and_every_figure_has_an_origin(path: Path) -> None:
    thing = nic(path.stem)
    stated = {"gpu_initiated"} if thing.gpu_initiated is not None else set()
    check_origins({"line_rate", "effective_rate", "latency", *stated}, thing.sources, thing.assumed)
    assert "latency" in thing.assumed  # no latency of a card was measured; strict runs must see that
    assert thing.latency > 0


@pytest.mark.parametrize("path", files("clusters"), ids=slug)
def test_every_cluster_loads_and_names_packaged_hardware(path: Path) -> None:
    thing = cluster(path.stem)
    figures = {"gpu", "nic", "gpus_per_node", "nics_per_node"} | ({"nodes"} if thing.nodes is not None else set())
    counts = figures - {"gpu", "nic"}
    assert counts <= thing.sources.keys() | thing.assumed.keys()
    assert thing.sources.keys() | thing.assumed.keys() <= figures
    assert nic(thing.nic).line_rate > 0
    assert thing.name == path.stem
    assert thing.gpus_per_node == gpu(thing.gpu).gpus_per_node
    assert 1 <= thing.nics_per_node <= thing.gpus_per_node


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_index_lists_exactly_the_files_present(folder: str) -> None:
    index = read_mapping(DATA / folder / "index.yaml")
    assert set(index) == {path.stem for path in files(folder)}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_in_an_index_is_lower_case_text_and_means_one_thing(folder: str) -> None:
    index = read_mapping(DATA / folder / "index.yaml")
    names = [*index, *(alias for aliases in index.values() for alias in aliases)]
    assert [name for name in names if not isinstance(name, str) or name != name.lower().strip()] == []
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize(
    "path", [path for folder in FOLDERS for path in sorted((DATA / folder).glob("*.yaml"))], ids=lambda p: p.name
)
def test_no_text_speaks_of_the_machine_it_was_written_on(path: Path) -> None:
    text = path.read_text(encoding="utf-8").lower()
    assert [word for word in ("shared", "/work", "hardware.csv", "nics.csv", "hardware.md") if word in text] == []


def test_names_of_gpus_and_nics_are_told_apart() -> None:
    names = [gpu(path.stem).name for path in files("gpus")]
    names += [nic(path.stem).name for path in files("nics")]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_h800_is_an_h100_with_a_narrower_nvlink() -> None:
    h800, h100 = gpu("h800"), gpu("h100")
    assert h800.memory.bandwidth == 3.35e12  # FlashMLA deep-dive
    assert h800.compute == h100.compute
    assert h800.vector_rate == h100.vector_rate == 3.865e12
    assert h800.scale_up is not None
    assert h100.scale_up is not None
    assert (h800.scale_up.bandwidth, h800.scale_up.domain) == (200e9, 8)
    assert (h100.scale_up.bandwidth, h100.scale_up.domain) == (450e9, 8)
    assert h800.price == 2.0  # DeepSeek's own assumption


def test_h200_against_h100_is_memory_alone() -> None:
    h200, h100 = gpu("h200"), gpu("h100")
    assert h200.memory.bandwidth / h100.memory.bandwidth == pytest.approx(1.433, abs=0.001)
    assert h200.peak("bf16") / h100.peak("bf16") == 1.0
    assert h200.memory.capacity / h100.memory.capacity == pytest.approx(141 / 80)


def test_h20_has_an_eighth_of_the_ridge_of_an_h800() -> None:
    h20, h800 = gpu("h20"), gpu("h800")
    assert h20.peak("fp8") == 296e12
    assert h20.memory.capacity == 102_625_181_696
    assert h20.peak("fp8") / h20.memory.bandwidth == pytest.approx(
        74.0
    )  # batch article: balanced at M = 37, so 74 FLOP/byte
    assert h800.peak("fp8") / h800.memory.bandwidth == pytest.approx(591, abs=1)


def test_int8_stands_in_for_fp8_where_there_is_none() -> None:
    for name, peak in (("a100-40", 624e12), ("a100-80", 624e12), ("a800", 624e12), ("ascend-910c", 1504e12)):
        assert "fp8" not in gpu(name).compute
        assert gpu(name).peak("fp8") == gpu(name).peak("int8") == peak


def test_fp4_is_refused_before_blackwell() -> None:
    with pytest.raises(Unsupported, match="no fp4 on H800"):
        gpu("h800").peak("fp4")
    assert gpu("b200").peak("fp4") == 9000e12


def test_blackwell_ultra_trades_int8_for_fp4_and_exp2() -> None:
    b200, b300, gb200, gb300 = (gpu(name) for name in ("b200", "b300", "gb200", "gb300"))
    assert b200.peak("bf16") == b300.peak("bf16") == 2250e12
    assert gb200.peak("bf16") == gb300.peak("bf16") == 2500e12
    assert (b300.peak("fp4"), gb300.peak("fp4")) == (14e15, 15e15)
    assert (b300.peak("int8"), gb300.peak("int8")) == (0.15e15, 0.165e15)
    assert gb200.vector_rate == pytest.approx(4.943e12)  # measured, NVIDIA MUFU.EX2 benchmark
    assert gb300.vector_rate == pytest.approx(10.024e12)  # the same
    assert (b200.domain, gb200.domain, gb200.gpus_per_node) == (8, 72, 4)


def test_reported_capacities_are_exact_bytes() -> None:
    wanted = {
        "a100-80": 85_899_345_920,
        "l40s": 48_305_799_168,
        "rtx-pro-6000": 102_641_958_912,
        "b200": 193_273_528_320,
        "b300": 288_400_343_040,
        "gb200": 198_674_743_296,
        "gb300": 298_013_687_808,
        "h200": 151_397_597_184,
        "h20-141": 151_397_597_184,
    }
    assert {name: gpu(name).memory.capacity for name in wanted} == wanted


@pytest.mark.parametrize("name", ["l20", "l40s", "rtx-pro-6000", "h100-pcie"])
def test_cards_without_nvlink_have_no_scale_up_link(name: str) -> None:
    assert gpu(name).scale_up is None
    assert gpu(name).domain == 1


@pytest.mark.parametrize("path", files("gpus"), ids=slug)
def test_attention_overlap_is_sourced_up_to_hopper_and_assumed_after(path: Path) -> None:
    thing = gpu(path.stem)
    known = {"Ampere": "none", "Ada": "none", "Hopper": "two-stage"}
    assert thing.attention_overlap == known.get(thing.architecture, thing.attention_overlap)
    assert ("attention_overlap" in thing.sources) == (thing.architecture in known)
    assert ("attention_overlap" in thing.assumed) == (thing.architecture not in known)


@pytest.mark.parametrize("name", ["b200", "b300", "gb200", "gb300"])
def test_blackwell_of_the_data_centre_is_taken_as_two_stage(name: str) -> None:
    assert gpu(name).attention_overlap == "two-stage"


def test_effective_rates_of_cx7_and_e810_are_the_articles_gibibytes() -> None:
    cx7, e810 = nic("cx7"), nic("e810")
    assert (cx7.line_rate, cx7.effective_rate) == (50e9, 40 * 2**30)
    assert (e810.line_rate, e810.effective_rate) == (12.5e9, 10 * 2**30)
    assert cx7.latency == pytest.approx(10e-6)


def test_cx8_doubles_cx7_and_efa_pays_for_its_proxy() -> None:
    cx7, cx8, efa = nic("cx7"), nic("cx8"), nic("efa-p5en")
    assert (cx8.line_rate, cx8.effective_rate) == (2 * cx7.line_rate, 2 * cx7.effective_rate)
    assert efa.line_rate == cx7.line_rate
    assert efa.effective_rate == 36e9
    assert efa.latency == pytest.approx(10 * cx7.latency)


def test_clusters_hold_the_counts_they_are_named_after() -> None:
    decode, rack, thin = cluster("deepseek-decode-2025"), cluster("gb200-nvl72"), cluster("h20-cx7x4")
    assert decode.nodes is not None
    assert decode.nodes * decode.gpus_per_node == 144
    assert (decode.gpu, decode.nic) == ("h800", "cx7")
    assert rack.nodes is not None
    assert rack.nodes * rack.gpus_per_node == gpu("gb200").domain == 72
    assert (thin.gpus_per_node, thin.nics_per_node) == (8, 4)
