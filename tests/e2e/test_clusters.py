"""Named clusters: listed, asked about instead of GPU and NIC, bounded by their size, kept in saved questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typed import run

STEP = ("--batch", "64", "--context", "4k")


def test_clusters_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(run(capsys, "clusters", "--json")[1])["clusters"]
    unit = next(cluster for cluster in listed if cluster["name"] == "deepseek-decode-2025")
    assert (unit["gpu"], unit["nodes"], unit["gpus_per_node"]) == ("h800", 18, 8)
    assert all(cluster["sources"] for cluster in listed)
    assert "nics_per_node: 4" in run(capsys, "clusters", "h20-cx7x4")[1]


def test_a_cluster_is_its_gpu_and_nics(capsys: pytest.CaptureFixture[str]) -> None:
    named = run(capsys, "predict", "deepseek-v3", "--cluster", "h20-cx7x4", "--ep", "32", *STEP, "--json")[1]
    spelled = ("--gpu", "h20", "--nic", "cx7", "--nics-per-node", "4", "--ep", "32")
    assert run(capsys, "predict", "deepseek-v3", *spelled, *STEP, "--json")[1] == named


def test_a_cluster_of_fixed_size_bounds_the_search(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = tmp_path / "clusters" / "mine.yaml"
    own.parent.mkdir()
    own.write_text(
        yaml.safe_dump(
            {"name": "mine", "gpu": "h800", "nic": "cx7", "gpus_per_node": 8, "nics_per_node": 8, "nodes": 4}
        )
    )
    plan = ("plan", "deepseek-v3", "--cluster", "mine", "--data", str(tmp_path), "--context", "4k", "--min-tps", "20")
    saved = tmp_path / "question.yaml"
    code, out, _ = run(capsys, *plan, "--max-batch", "64", "--save", str(saved), "--json")
    answer = json.loads(out)
    winner = answer["best"][answer["winner"]]
    assert code == 0
    assert winner["deployment"]["ep"] <= 32
    assert yaml.safe_load(saved.read_text())["winner"]["cluster"] == "mine"
    again = json.loads(run(capsys, "predict", str(saved), "--data", str(tmp_path), "--json")[1])
    assert again["metrics"] == winner["metrics"]
    code, _, err = run(capsys, *plan, "--gpus", "40..80")
    assert code == 2
    assert "the cluster has 32" in err
    code, _, err = run(
        capsys, "predict", "deepseek-v3", "--cluster", "mine", "--data", str(tmp_path), "--ep", "40", *STEP
    )
    assert code == 2
    assert "the cluster has 32" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cluster", "h20-cx7", "--gpu", "h20", "--nic", "cx7"), "2 faults"),
        (("--cluster", "h20-cx7,h800-cx7"), "names several"),
        (("--cluster", "h20_cx8"), "h20-cx7"),
        ((), "--gpu"),
    ],
)
def test_what_names_no_cluster(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str) -> None:
    code, out, err = run(capsys, "predict", "deepseek-v3", *options, "--ep", "32", *STEP)
    assert (code, out) == (2, "")
    assert said in err


def test_a_cluster_that_may_grow_needs_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "plan", "deepseek-v3", "--cluster", "h800-cx7", "--context", "4k", "--min-tps", "20")
    assert code == 2
    assert "--gpus" in err


def test_two_clusters_of_one_gpu_are_told_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chart, saved = tmp_path / "chart.html", tmp_path / "both.yaml"
    plan = "plan deepseek-v3 --cluster h20-cx7,h20-cx7x4 --gpus 32 --context 4k --min-tps 10 --max-batch 32".split()
    code, out, _ = run(capsys, *plan, "--chart", str(chart), "--save", str(saved))
    assert code == 0
    assert {"h20-cx7", "h20-cx7x4"} <= set(out.split())
    answer = json.loads(run(capsys, *plan, "--json")[1])
    assert [best["cluster"] for best in answer["best"]] == ["h20-cx7", "h20-cx7x4"]
    assert all(f'"GPU": "{name}"' in chart.read_text() for name in ("h20-cx7", "h20-cx7x4"))


def test_what_is_typed_puts_out_what_was_saved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "step.yaml"
    run(capsys, "predict", "deepseek-v3", "--cluster", "h20-cx7", "--ep", "32", *STEP, "--save", str(saved))
    code, out, err = run(capsys, "predict", str(saved), "--gpu", "h800", "--json")
    assert (code, json.loads(out)["gpu"]) == (0, "H800-SXM5-80GB"), err
    run(capsys, "predict", "deepseek-v3", "--gpu", "h800", "--ep", "32", *STEP, "--save", str(saved))
    code, out, err = run(capsys, "predict", str(saved), "--cluster", "h20-cx7x4", "--json")
    assert (code, json.loads(out)["gpu"]) == (0, "H20-96GB"), err


def test_a_cluster_file_that_names_what_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = tmp_path / "clusters" / "mine.yaml"
    own.parent.mkdir()
    own.write_text("name: mine\ngpu: h801\nnic: cx77\ngpus_per_node: 8\nnics_per_node: 8\n")
    code, _, err = run(
        capsys, "predict", "deepseek-v3", "--cluster", "mine", "--data", str(tmp_path), "--ep", "32", *STEP
    )
    assert code == 2
    assert all(word in err for word in ("mine.yaml", "h801", "cx77", "2 faults"))


def test_a_switch_with_few_uplinks_slows_the_step_and_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As --set, or as a cluster's file; without the nodes of a switch a ratio means nothing."""
    asked = ("predict", "deepseek-v3", "--ep", "64", *STEP, "--json")
    h800 = ("--gpu", "h800", "--nic", "cx7")
    edits = ("--set", "cluster.leaf_nodes=2", "--set", "cluster.oversubscription=3")
    plain, shared = (json.loads(run(capsys, *asked, *h800, *more)[1]) for more in ((), edits))
    assert shared["metrics"]["step_s"] > 1.1 * plain["metrics"]["step_s"]
    assert "uplinks of a switch 3:1" in json.dumps(shared, ensure_ascii=False)
    own = tmp_path / "clusters" / "mine.yaml"
    own.parent.mkdir()
    facts = {"name": "mine", "gpu": "h800", "nic": "cx7", "gpus_per_node": 8, "nics_per_node": 8}
    own.write_text(yaml.safe_dump({**facts, "leaf_nodes": 2, "oversubscription": 3}))
    written = json.loads(run(capsys, *asked, "--cluster", "mine", "--data", str(tmp_path))[1])
    assert written["metrics"] == shared["metrics"]
    code, _, err = run(capsys, *asked, *h800, *edits[2:])
    assert code == 2
    assert "give leaf_nodes" in err
    assert "one of leaf_nodes" in run(capsys, *asked, *h800, "--set", "cluster.spines=4")[2]


def test_what_bringing_a_cache_costs(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "predict", "deepseek-v3", "--cluster", "h20-cx7", "--ep", "32", *STEP, "--json")[1])
    halved = json.loads(
        run(capsys, "predict", "deepseek-v3", "--cluster", "h20-cx7x4", "--ep", "32", *STEP, "--json")[1]
    )
    first, second = found["kv_hand_over"], halved["kv_hand_over"]
    assert first["bytes"] == second["bytes"] == 4000 * 61 * 576 * 2
    assert second["seconds"] == pytest.approx(2 * first["seconds"], rel=0.1)
    assert "KV hand-over" in run(capsys, "predict", "deepseek-v3", "--gpu", "h20", "--ep", "32", *STEP)[1]
