"""What users asked of other tools about communication, and the right answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.cli import main
from moeplan.cli.options import cluster_of
from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.origin import Origin
from moeplan.kernels.wire import Fabric, all_to_all
from moeplan.ops.collective import all_gather, all_reduce
from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.predict import Predictor
from moeplan.routing.targets import distinct_targets
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision
from moeplan.specs.exchange import Direction
from moeplan.specs.model import ModelSpec

CATALOG = Catalog.standard()
MODEL = CATALOG.model("deepseek-v3")
assert MODEL.experts is not None
FREE = replace(MODEL, experts=replace(MODEL.experts, n_group=1, topk_group=1))  # a router without groups
HEADER = (
    "library,version,gpu,nic,op,mode,ep_ranks,tokens_per_rank,hidden,topk,experts,precision,latency_us,bw_gb_per_s,"
    "bw_kind,sm_count"
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def exchanges(
    gpu: str, *, ep: int, exchange: str = "deepep-low-latency", nics: int | None = None, model: ModelSpec = MODEL
) -> dict[str, Cost]:
    """Dispatch and combine of a sparse layer, 128 requests per rank."""
    deployment = Deployment(
        batch=128,
        ep=ep,
        context=4096,
        exchange=exchange,
        precision=Precision.of(model),
        acceptance=Acceptance.geometric(0.85, 1, "assumed"),
    )
    step = Predictor.of(model, cluster_of(CATALOG, gpu, "cx7", nics), CATALOG).predict(deployment)
    costs = [cost for stage in step.groups[-1].layer.stages.values() for cost in stage.costs]
    return {cost.name: cost for cost in costs if cost.name in ("dispatch", "combine")}


def test_51_a_gpu_has_its_share_of_the_nodes_cards() -> None:
    """deepseek-ai/DeepEP #183, #336, #60, #155: half the bandwidth with four cards of 50 GB/s for eight GPUs.

    EP16 of H20, all over RDMA, took 873 µs; 22.27 MB at 4·50/8 GB/s are 891. The kernel's fit, carried over from H800
    and H100, starts later: 956, within 10 %.
    """
    library, fabric = (
        KernelLibrary.of(CATALOG.gpu("h20"), CATALOG),
        Fabric.of(cluster_of(CATALOG, "h20", "cx7", 4)),
    )
    assert fabric.nic_rate == 25e9
    alone = Fabric(per_node=1.0, nic_rate=fabric.nic_rate, nic_latency=fabric.nic_latency)
    kinds: tuple[tuple[Direction, str], ...] = (("dispatch", "fp8_block"), ("combine", "bf16"))
    found = [
        all_to_all(
            library,
            alone,
            mode="low-latency",
            direction=direction,
            wire=wire,
            tokens=128.0,
            hidden=7168.0,
            top_k=8.0,
            experts=256.0,
            ep=16.0,
            backend="deepep-rdma",
        )
        for direction, wire in kinds
    ]
    both = sum(float(one.timed.seconds) for one in found if one is not None)
    payload = sum(float(one.traffic.payload + one.traffic.stays) for one in found if one is not None)
    assert payload / 25e9 == pytest.approx(891e-6, rel=2e-3)
    assert both == pytest.approx(873e-6, rel=0.1)


def test_51_a_step_sees_the_nodes_cards() -> None:
    """deepseek-ai/DeepEP #183, #60: a step over two nodes with four cards waits up to twice as long as with eight."""
    for name in ("dispatch", "combine"):
        four, eight = (float(exchanges("h20", ep=16, nics=nics)[name].seconds) for nics in (4, 8))
        assert 1.7 < four / eight < 2.0
        inside = [float(exchanges("h20", ep=8, nics=nics)[name].seconds) for nics in (4, 8)]
        assert inside[0] == inside[1]


def test_52_a_links_rate_is_one_way_and_counted_once() -> None:
    """deepseek-ai/DeepSeek-V3 #479; aliyun/SimAI #60: 160, 200 or 400 GB/s? One way, 200; messages reach 0.7 to 0.9.

    The bus rate of nccl-tests: of an all-gather (n − 1)/n · bytes / time, which no link's one-way rate lets it pass.
    """
    for name, rate in (("h800", 200e9), ("h100", 450e9), ("h200", 450e9)):
        link = CATALOG.gpu(name).scale_up
        assert link is not None
        assert link.bandwidth == rate
        machine = Machine.of(cluster_of(CATALOG, name, "cx7", None), CATALOG)
        gathered = all_gather("gather", machine, bytes_=2.0**30, ranks=8)
        assert 0.7 < 7 / 8 * 2**30 / float(gathered.seconds) / rate < 0.9
        # A sum reduced inside the switch sends each byte once: its bus rate, which counts two, may pass the link's.
        summed = all_reduce("sum", machine, bytes_=2.0**30, ranks=8)
        assert 2**30 / float(summed.seconds) < 0.9 * rate


SLOW = """\
DeepEP,V1,H200,CX7 400Gb/s,combine,normal,16,4096,7168,8,256,bf16,,44.37,RDMA bottleneck,24
DeepEP,V1,H200,CX7 400Gb/s,dispatch,normal,16,4096,7168,8,256,fp8,,38.19,RDMA bottleneck,24
DeepEP,V1,H200,CX7 400Gb/s,combine,normal,32,4096,7168,8,256,bf16,,12.53,RDMA bottleneck,24
DeepEP,V1,H200,CX7 400Gb/s,dispatch,normal,32,4096,7168,8,256,fp8,,13.15,RDMA bottleneck,24
"""


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """Two nodes of H200 as they should be, and four at a fifth of that."""
    (tmp_path / "mine.csv").write_text(f"{HEADER}\n{SLOW}")
    return str(tmp_path / "mine.csv")


def test_53_a_network_at_a_fifth_of_its_speed_is_flagged(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    """deepseek-ai/DeepEP #493, #387, #303: 44 GB/s between two nodes of H200, 12.5 between four."""
    code, out, _ = run(capsys, "validate", "kernels", rows, "--json")
    assert code == 0
    suspects = json.loads(out)["suspects"]
    assert [(row["family"], "ep_ranks=32" in row["row"]) for row in suspects] == [
        ("H200, deepep normal combine", True),
        ("H200, deepep normal dispatch", True),
    ]
    for row, published in zip(suspects, (12.53e9, 13.15e9), strict=True):
        expected = published * row["measured_s"] / row["predicted_s"]
        assert 43e9 < expected < 62e9  # DeepEP's README: 43 to 58 GB/s
    code, out, _ = run(capsys, "validate", "kernels", rows)
    assert "a fault of the network sooner than an efficiency" in out


def test_53_a_slow_network_is_no_new_efficiency(rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """deepseek-ai/DeepEP #493: calibrating names every row at less than half its speed at once, and fits nothing."""
    code, out, err = run(capsys, "calibrate", "kernels", rows, "--data", str(tmp_path))
    assert (code, out) == (2, "")
    assert len(re.findall(r"2[12]% of the speed expected of H200, deepep normal", err)) == 2
    assert "NIC mapping" in err
    assert "--set nic.effective_rate" in err
    assert not (tmp_path / "kernels").exists()


def test_53_a_slow_network_by_hand_is_an_assumption(capsys: pytest.CaptureFixture[str]) -> None:
    """deepseek-ai/DeepEP #493: who insists on 12.5 GB/s writes it down, and the answer says that it is assumed."""
    question = "predict deepseek-v3 --gpu h200 --gpus 32 --batch 128 --context 4k --json".split()
    found = []
    for edits in ([], ["--set", "nic.effective_rate=12.5GB/s"]):
        code, out, err = run(capsys, *question, *edits)
        assert code == 0, err
        layers = json.loads(out)["layers"][-1]["stages"]
        found.append({op["operator"]: op for stage in layers for op in stage["operators"]})
    for name in ("dispatch", "combine"):
        assert found[1][name]["seconds"] > 2 * found[0][name]["seconds"]
        assert found[1][name]["origin"] == "assumed"
        assert found[0][name]["origin"] != "assumed"


@pytest.mark.parametrize(("ranks", "places"), [(4, 3.61), (8, 5.30), (16, 6.52), (32, 7.27), (64, 7.68)])
def test_55_a_normal_kernel_sends_a_token_once_per_rank(ranks: int, places: float) -> None:
    """deepspeedai/DeepSpeed PR 8213: what sending once per rank saves; 1.23 times at 16 ranks, low latency nothing."""
    assert float(distinct_targets(ranks, experts=256, top_k=8)) == pytest.approx(places, abs=0.01)
    for exchange, copies in (("deepep-normal", places), ("deepep-low-latency", 8.0)):
        for cost in exchanges("h100", ep=ranks, exchange=exchange, model=FREE).values():
            assert float(cost.terms["copies of a token"][0]) == pytest.approx(copies, abs=0.01)
    if ranks == 16:
        assert 8 / places == pytest.approx(1.23, abs=0.005)
    near = exchanges("h100", ep=ranks, exchange="deepep-normal")["dispatch"]
    assert float(near.terms["copies of a token"][0]) < places  # DeepSeek's router stays in 4 of 8 groups


def test_55_the_formula_holds_on_an_axis_of_ranks() -> None:
    """deepspeedai/DeepSpeed PR 8213: with replacement it would be 6.45 and 7.18 of 16 and 32 ranks."""
    found = distinct_targets(np.array([16.0, 32.0]), experts=256, top_k=8)
    assert np.all(np.abs(found - np.array([6.45, 7.18])) > 0.05)


def test_56_a_newer_gpu_sends_no_faster_unless_a_row_says_so() -> None:
    """deepseek-ai/DeepEP #576: B200 below H100 in the low-latency exchange of two nodes with 256 experts."""
    new, old = exchanges("b200", ep=16), exchanges("h100", ep=16)
    for name in ("dispatch", "combine"):
        assert float(new[name].seconds) >= 0.97 * float(old[name].seconds)
        assert new[name].origin >= Origin.EXTRAPOLATED
        assert "no row of several nodes" in new[name].source
