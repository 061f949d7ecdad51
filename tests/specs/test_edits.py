"""Edits by hand: which figure a path means, what a value may be, which rules hold after all of them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from moeplan.cli.options import cluster_of
from moeplan.engines.emit.sglang import sglang_command
from moeplan.errors import InputError
from moeplan.kernels.origin import Origin
from moeplan.ops.cost import Cost
from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Nic
from moeplan.specs.deployment import Acceptance, Deployment, Precision
from moeplan.specs.edits import Edit, edited, parse_edits
from moeplan.specs.gpu import EDITED, Gpu
from moeplan.specs.model import Experts, Gqa, Mla, ModelSpec

CATALOG = Catalog.standard()
H800, CX7 = CATALOG.gpu("h800"), CATALOG.nic("cx7")
DEEPSEEK, LLAMA = CATALOG.model("deepseek-v3"), CATALOG.model("llama-3.1-8b")


def gpu(*texts: str, of: Gpu = H800) -> Gpu:
    return edited(of, "gpu", parse_edits(texts))


def nic(*texts: str) -> Nic:
    return edited(CX7, "nic", parse_edits(texts))


def model(*texts: str, of: ModelSpec = DEEPSEEK) -> ModelSpec:
    return edited(of, "model", parse_edits(texts))


def faults(thing: Any, *texts: str) -> dict[str, str]:
    """Path and problem of every fault of some edits of a thing."""
    target = {Gpu: "gpu", Nic: "nic", ModelSpec: "model"}[thing.__class__]
    with pytest.raises(InputError) as stop:
        edited(thing, target, parse_edits(texts))  # type: ignore[arg-type]  # one of the three
    assert all(fault.problem for fault in stop.value.faults)
    return {fault.path: f"{fault.problem} {fault.fix}" for fault in stop.value.faults}


# --- which figure a path means --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1.28e2", "1.28E2", "128e0", "12.8e+1", "128"])
def test_a_number_may_have_an_exponent(text: str) -> None:
    """YAML 1.1 takes 1e9 for text; here, and in files, it is the number that it looks like."""
    experts = model(f"model.experts.count={text}").experts
    assert isinstance(experts, Experts)
    assert experts.count == 128
    assert "1280.5" in faults(DEEPSEEK, "model.experts.count=12.805e2")["model.experts.count"]
    assert "has no unit" in faults(H800, f"gpu.memory.bandwidth={text}")["gpu.memory.bandwidth"]


def test_a_full_path_and_its_unique_end_mean_the_same() -> None:
    assert gpu("gpu.memory.bandwidth=4.8TB/s").memory.bandwidth == 4.8e12
    assert gpu("gpu.bandwidth=4.8TB/s", of=CATALOG.gpu("l40s")).memory.bandwidth == 4.8e12  # no second bandwidth there
    assert gpu("gpu.capacity=141 GB").memory.capacity == 141e9
    assert gpu("gpu.domain=72").domain == 72
    assert nic("nic.latency=5µs").latency == pytest.approx(5e-6)
    experts = model("model.top_k=6").experts
    assert isinstance(experts, Experts)
    assert (experts.top_k, experts.count, experts.width) == (6, 256, 2048)
    attention = model("model.heads=64").attention
    assert isinstance(attention, Mla)
    assert attention.heads == 64
    assert model("model.hidden=4096", of=LLAMA).hidden == 4096


def test_an_entry_of_a_dictionary() -> None:
    for text in ("gpu.compute.bf16=500TFLOP/s", "gpu.bf16=0.5 PFLOP/s"):
        assert gpu(text).compute == {**H800.compute, "bf16": 5e14}
    assert gpu("gpu.fp8=1PFLOP/s").compute == {**H800.compute, "fp8": 1e15}
    assert set(faults(H800, "gpu.compute.fp4=1PFLOP/s")) == {"gpu.compute.fp4"}
    stands_in = gpu("gpu.substitutes.fp8=bf16", of=CATALOG.gpu("a100"))
    assert stands_in.peak("fp8") == stands_in.peak("bf16")


def test_an_ambiguous_path_lists_its_meanings() -> None:
    found = faults(H800, "gpu.bandwidth=4.8TB/s")
    assert set(found) == {"gpu.bandwidth"}
    assert "ambiguous" in found["gpu.bandwidth"]
    for meaning in ("gpu.memory.bandwidth", "gpu.scale_up.bandwidth"):
        assert meaning in found["gpu.bandwidth"]
        assert gpu(f"{meaning}=1TB/s") != H800


@pytest.mark.parametrize(
    ("thing", "text", "near"),
    [
        (H800, "gpu.memory.bandwith=1TB/s", "memory.bandwidth"),
        (H800, "gpu.capcity=80GB", "capacity"),
        (CX7, "nic.latncy=1µs", "latency"),
        (DEEPSEEK, "model.topk=6", "top_k"),
        (DEEPSEEK, "model.nothing_like_it=6", "hidden"),
        (LLAMA, "model.top_k=6", "vocab"),  # a dense model has none
        (H800, "gpu.name=x", ""),
        (H800, "gpu.slug=h20", ""),
        (H800, "gpu.assumed.tdp=x", ""),
        (H800, "gpu.sources.tdp=x", ""),
        (DEEPSEEK, "model.layers=5", ""),
        (CATALOG.gpu("l40s"), "gpu.scale_up.bandwidth=1TB/s", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unknown_path_gets_near_ones(thing: Any, text: str, near: str) -> None:
    found = faults(thing, text)
    path = text.partition("=")[0]
    assert set(found) == {path}
    assert "no such figure" in found[path]
    assert near in found[path]


def test_what_is_no_edit_is_refused_at_once() -> None:
    wrong = ["gpu", "gpu=1", "gpu.=1", "gpu.tdp=", "gpu.tdp= ", "=1", "", "gpus.tdp=1W", "rack.nodes=2"]
    with pytest.raises(InputError) as stop:
        parse_edits([*wrong, "gpu.tdp=700W"])
    assert [fault.path for fault in stop.value.faults] == [f"--set {text}" for text in wrong]
    assert "did you mean gpu" in stop.value.faults[7].fix


def test_an_edit_as_written() -> None:
    assert parse_edits(["gpu.memory.bandwidth=4.8 TB/s"]) == [Edit("gpu", "memory.bandwidth", "4.8 TB/s")]
    assert parse_edits(["model.formats.experts=a=b"]) == [Edit("model", "formats.experts", "a=b")]
    assert gpu("gpu.memory.bandwidth = 4.8 TB/s").memory.bandwidth == 4.8e12
    assert parse_edits([]) == []


# --- what a value may be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "gpu.memory.bandwidth=4.8",
        "gpu.memory.bandwidth=4.8 TB",
        "gpu.memory.bandwidth=-1 TB/s",
        "gpu.memory.bandwidth=fast",
        "gpu.tdp=700 V",
        "gpu.compute.fp8=2",
        "gpu.compute.fp8=2 TB/s",
        "gpu.gpus_per_node=8.5",
        "gpu.gpus_per_node=eight",
        "gpu.attention_overlap=four-stage",
        "gpu.capacity_is=guessed",
        "gpu.price=2",
    ],
)
def test_a_value_of_the_wrong_kind(text: str) -> None:
    assert set(faults(H800, text)) == {text.partition("=")[0]}


def test_texts_and_absent_figures() -> None:
    assert gpu("gpu.attention_overlap=three-stage").attention_overlap == "three-stage"
    assert gpu("gpu.price=1.5 USD/h").price == 1.5
    assert gpu("gpu.price=null").price is None
    assert gpu("gpu.price=0.9USD/h", of=CATALOG.gpu("h20")).price == 0.9
    assert model("model.formats.experts=bf16").formats.experts == "bf16"
    assert model("model.tied_embeddings=true", of=LLAMA).tied_embeddings
    assert model("model.max_position=null").max_position is None


# --- the rules of the edited thing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thing", "texts", "named"),
    [
        (DEEPSEEK, ("model.top_k=600",), {"experts.top_k"}),
        (DEEPSEEK, ("model.top_k=0",), {"experts.top_k"}),
        (LLAMA, ("model.kv_heads=5",), {"attention.kv_heads"}),
        (LLAMA, ("model.hidden=0", "model.vocab=0"), {"hidden", "vocab"}),
        (H800, ("gpu.memory.bandwidth=0 TB/s", "gpu.vector_rate=0 op/s"), {"memory.bandwidth", "vector_rate"}),
        (CX7, ("nic.effective_rate=60 GB/s",), {"effective_rate"}),
        (CATALOG.gpu("a100"), ("gpu.substitutes.fp8=fp4",), {"substitutes.fp8"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_every_broken_rule_is_named(thing: Any, texts: tuple[str, ...], named: set[str]) -> None:
    assert set(faults(thing, *texts)) == named


def test_faults_of_several_edits_come_together() -> None:
    found = faults(H800, "gpu.memory.bandwidth=4.8", "gpu.bandwidth=1TB/s", "gpu.nope=1", "gpu.tdp=1 kW")
    assert set(found) == {"gpu.memory.bandwidth", "gpu.bandwidth", "gpu.nope"}


def test_the_rules_hold_for_all_edits_together_in_any_order() -> None:
    slower = ("nic.line_rate=25 GB/s", "nic.effective_rate=20 GB/s")
    for texts in (slower, slower[::-1]):
        assert (nic(*texts).line_rate, nic(*texts).effective_rate) == (25e9, 20e9)
    seven = model("model.heads=7", "model.kv_heads=7", of=LLAMA).attention  # neither divides with the other's old value
    assert isinstance(seven, Gqa)
    assert (seven.heads, seven.kv_heads) == (7, 7)
    more = model("model.top_k=300", "model.experts.count=512").experts
    assert more is not None
    assert (more.top_k, more.count) == (300, 512)


def test_the_last_edit_of_a_figure_wins() -> None:
    assert gpu("gpu.tdp=1 W", "gpu.tdp=2 W").tdp == 2
    assert gpu("gpu.memory.capacity=1 GB", "gpu.capacity=2 GB").memory.capacity == 2e9


def test_edits_of_other_things_are_left_alone() -> None:
    assert gpu("nic.latency=1µs", "model.top_k=6") == H800
    assert nic("gpu.tdp=1 W") == CX7
    assert model("gpu.tdp=1 W") == DEEPSEEK


def test_the_catalogs_own_thing_stays_as_it_was() -> None:
    before = deepcopy(H800)
    gpu("gpu.memory.bandwidth=9TB/s", "gpu.fp8=9PFLOP/s", "gpu.domain=2")
    assert before == H800
    assert CATALOG.gpu("h800") == H800


# --- what rests on an edit says so ----------------------------------------------------------------------------------


def test_an_edited_figure_is_assumed_set_by_hand() -> None:
    changed = gpu("gpu.capacity=141 GB", "gpu.memory.bandwidth=4.8TB/s", "gpu.fp8=1PFLOP/s")
    assert changed.assumed == {
        **H800.assumed,
        "memory.capacity": EDITED,
        "memory.bandwidth": EDITED,
        "compute.fp8": EDITED,
    }
    assert EDITED == "set by hand"
    assert nic("nic.latency=5µs").assumed["latency"] == EDITED


def test_an_edited_model_is_no_checkpoints() -> None:
    assert not DEEPSEEK.edited
    assert model("model.top_k=6").edited
    assert not model("gpu.tdp=1 W").edited
    with pytest.raises(InputError, match="edited by hand"):
        sglang_command(step("model.top_k=6"))
    assert sglang_command(step("gpu.tdp=1 W")).text()


def step(*texts: str) -> Prediction:
    edits = parse_edits(texts)
    spec = edited(DEEPSEEK, "model", edits)
    deployment = Deployment(
        batch=128,
        ep=128,
        context=4096,
        precision=Precision.of(spec),
        acceptance=Acceptance.geometric(0.85, 1, "a test"),
    )
    return Predictor.of(spec, cluster_of(CATALOG, "h800", "cx7", None, edits), CATALOG).predict(deployment)


def costs(found: Prediction) -> dict[str, Cost]:
    return {cost.name: cost for stage in found.groups[1].layer.stages.values() for cost in stage.costs}


def test_what_was_measured_is_extrapolated_on_an_edited_chip() -> None:
    before, after = costs(step()), costs(step("gpu.memory.bandwidth=4.8TB/s"))
    sure = [name for name, cost in before.items() if cost.origin < Origin.EXTRAPOLATED and cost.lane == "compute"]
    assert {"o_proj", "mla_core", "routed_gate_up"} <= set(sure)
    for name in sure:
        assert after[name].origin == Origin.EXTRAPOLATED, name
        assert "edited chip" in after[name].source
    assert after["dispatch"].origin == before["dispatch"].origin
    share = float(after["o_proj"].seconds) / float(before["o_proj"].seconds)
    assert 3.35 / 4.8 < share < 0.9  # part of its time is not memory traffic


def test_what_was_measured_is_extrapolated_on_an_edited_card() -> None:
    before, after = costs(step()), costs(step("nic.line_rate=800 Gb/s"))
    for name in ("dispatch", "combine"):
        assert before[name].origin == Origin.MEASURED  # DeepEP's table has 128 ranks
        assert after[name].origin >= Origin.EXTRAPOLATED
    assert after["o_proj"].origin == before["o_proj"].origin
    wire = [float(found["combine"].parts["network"]) for found in (before, after)]
    assert wire[1] == pytest.approx(wire[0] / 2, rel=0.15)  # the little that stays on NVLink is no faster


def test_an_effective_rate_set_by_hand_is_used() -> None:
    """Even where a measured table exists: 20 GB/s across nodes, and not the table's share of the line, near enough."""
    found = costs(step("nic.effective_rate=20 GB/s"))
    payload = 128 * 8 * 2 * 7168
    expected = payload * (120 / 128 / 20e9 + 7 / 128 / (200e9 * 0.61))
    assert float(found["combine"].parts["network"]) == pytest.approx(expected, rel=0.12)
    assert found["combine"].origin == Origin.ASSUMED


def test_a_model_with_another_top_k() -> None:
    six, eight = costs(step("model.top_k=6")), costs(step())
    assert float(six["dispatch"].bytes_) == pytest.approx(float(eight["dispatch"].bytes_) * 6 / 8)
