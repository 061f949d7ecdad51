"""`--load` and `--redundant` of predict and plan, and `balance --worth` by the step model, as a user types them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from typed import document, run

LOADS = str(files("moeplan.data") / "observations" / "expert_load_dsv3_decode.csv")
PREDICT = ("predict", "deepseek-v3", "--gpu", "h100", "--gpus", "72", "--context", "2k", "--batch", "128")
PLAN = ("plan", "deepseek-v3", "--gpu", "h200", "--gpus", "16,32", "--context", "2k", "--min-tps", "20")
NARROW = ("--layout", "dep", "--kv", "fp8", "--mtp", "0", "--max-batch", "256")


def test_every_prediction_states_its_routing(capsys: pytest.CaptureFixture[str]) -> None:
    """Dummy weights and forced balance mislead in both directions (sglang PR 25571 and others): say which it is."""
    plain = document(capsys, *PREDICT)
    assert plain["deployment"]["routing"] == "uniform, fullest rank of the sample"
    assert "balancing" not in plain
    skewed = document(capsys, *PREDICT, "--load", "zipf:0.8")
    assert skewed["deployment"]["routing"] == "zipf:0.8, seed 0; experts in order"
    _, out, _ = run(capsys, *PREDICT, "--load", "zipf:0.8")
    assert "Routing: zipf:0.8, seed 0; experts in order" in out
    asked = ("explain", *PREDICT[1:], "--load", "zipf:0.8")
    assert "loads zipf:0.8, seed 0; experts in order" in " ".join(run(capsys, *asked)[1].split())


def test_balancing_recorded_loads(capsys: pytest.CaptureFixture[str]) -> None:
    order = document(capsys, *PREDICT, "--load", LOADS)
    balanced = document(capsys, *PREDICT, "--load", LOADS, "--redundant", "auto")
    assert balanced["deployment"]["redundant"] >= 32
    assert balanced["metrics"]["step_s"] < 0.7 * order["metrics"]["step_s"]
    assert order["balancing"]["gain"] == pytest.approx(order["metrics"]["step_s"] / order["balancing"]["balanced_s"])
    assert order["experts"]["rows_fullest_rank"] > 2 * balanced["experts"]["rows_fullest_rank"]
    _, out, _ = run(capsys, *PREDICT, "--load", LOADS, "--redundant", "32")
    assert "Balancing: experts in order" in out
    assert "× by the step" in out


def test_a_plan_says_what_balancing_is_worth_and_starts_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "plan.yaml"
    found = document(capsys, *PLAN, *NARROW, "--load", LOADS, "--redundant", "auto", "--save", str(saved))
    best = found["best"][0]
    assert best["launch"]["flags"]["--enable-eplb"] is True
    assert any("--init-expert-location" in note for note in best["launch"]["notes"])
    choices = {other["choice"]: other for other in found["alternatives"]}
    assert choices["experts in order"]["tok_s_per_gpu"] < 0.8 * best["metrics"]["tok_s_per_gpu"]
    assert any("expert slot" in name for name in choices)
    again = document(capsys, "predict", str(saved))
    assert again["metrics"]["step_s"] == pytest.approx(best["metrics"]["step_s"], rel=1e-9)
    assert again["deployment"]["routing"] == best["deployment"]["routing"]
    order = document(capsys, *PLAN, *NARROW, "--load", LOADS)
    assert "--enable-eplb" not in order["best"][0]["launch"]["flags"]


def test_a_saved_winner_keeps_the_slots_that_fill_its_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """128 experts on 24 GPUs: even loads want the 16 slots that fill the ranks and no more, not none at all."""
    saved = tmp_path / "plan.yaml"
    asked = ("qwen3-30b-a3b-fp8", "--gpu", "h100", "--gpus", "24", "--context", "4k", "--min-tps", "20")
    narrow = ("--layout", "dep", "--max-batch", "16", "--load", "uniform", "--redundant", "auto")
    (best,) = document(capsys, "plan", *asked, *narrow, "--save", str(saved))["best"]
    assert best["deployment"]["redundant"] == 16
    again = document(capsys, "predict", str(saved))
    assert again["deployment"]["redundant"] == 16
    assert again["metrics"]["step_s"] == pytest.approx(best["metrics"]["step_s"], rel=1e-9)


def test_what_the_routing_is_where_no_rank_can_be_fuller(capsys: pytest.CaptureFixture[str]) -> None:
    one = ("predict", "qwen3-30b-a3b", "--gpu", "h100", "--gpus", "4", "--context", "1k", "--batch", "8")
    assert document(capsys, *one, "--layout", "tp")["deployment"]["routing"] == "uniform, every rank holds all experts"
    dense = ("predict", "llama-3.1-8b", "--gpu", "h200", "--gpus", "1", "--context", "1k", "--batch", "8")
    assert document(capsys, *dense)["deployment"]["routing"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--redundant", "auto"), "--redundant: auto goes by the loads, and there are none"),
        (("--load", "zpif:1"), "--load: 'zpif:1' is neither a law nor a file — did you mean zipf?"),
        (("--load", "loads.csv"), "--load: 'loads.csv' is neither a law nor a file"),
        (("--load", "zipf:nan"), "cannot read 'zipf:nan'"),
        (("--load", "zipf:1", "--redundant", "33"), "289 slots do not divide over 72 ranks"),
        (("--redundant", "many"), "--redundant"),
    ],
)
def test_what_is_wrong_with_a_load(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    code, out, err = run(capsys, *PREDICT, *words)
    assert code == 2
    assert not out
    assert said in err


def test_loads_of_another_model_and_of_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    path.write_text("e0,e1,e2,e3\n1,2,3,4\n")
    assert "is of 4 experts, DeepSeek-V3 has 256" in run(capsys, *PREDICT, "--load", str(path))[2]
    dense = ("predict", "llama-3.1-70b", "--gpu", "h200", "--gpus", "1", "--context", "1k", "--batch", "8")
    code, _, err = run(capsys, *dense, "--load", "zipf:1")
    assert code == 2
    assert "has no experts" in err


def test_a_number_of_slots_that_suits_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *PLAN, *NARROW, "--redundant", "5")
    assert code == 2
    assert "261 slots divide over none of 16, 32 GPUs" in err
    code, _, err = run(capsys, *PLAN, *NARROW, "--redundant", "8192")
    assert code == 2
    assert "--redundant: is 8192 beyond 256 experts of EP32 — give at most 7936" in err


def test_worth_by_the_step_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("balance", LOADS, "--ranks", "72", "--model", "deepseek-v3", "--gpu", "h100", "--worth")
    found = document(capsys, *words, "--context", "2k")["steps"]
    gains = [one["gain"] for one in found["gains"]]
    assert gains == sorted(gains)
    assert 1.8 < gains[-1] < 2.54  # the batch article's; digitised loads are a lower bound
    assert found["worth_having"] == 32
    assert found["served"][0]["kv_bytes"] > found["served"][1]["kv_bytes"]
    _, out, _ = run(capsys, *words, "--context", "2k", "--min-tps", "20")
    assert "What redundant experts leave to serve" in out
    assert document(capsys, *words)["steps"] is None


def test_a_context_needs_a_model_a_gpu_and_worth(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "balance", LOADS, "--ranks", "72", "--context", "2k", "--min-tps", "fast")
    assert code == 2
    for said in ("--context: says nothing without --model and --gpu", "--worth", "--min-tps: is 'fast'"):
        assert said in err


def test_a_winner_whose_size_needs_redundant_slots_runs_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """256 experts do not divide over 24 GPUs: the winner with the fewest slots has 8 redundant ones, not none."""
    saved = str(tmp_path / "plan.yaml")
    plan = ("plan", "deepseek-v3", "--gpu", "h200", "--gpus", "24", "--context", "2k", "--min-tps", "20", *NARROW)
    found = document(capsys, *plan, "--load", "zipf:0.8", "--redundant", "auto", "--save", saved)
    step = document(capsys, "predict", saved)
    assert step["experts"]["redundant"] % 24 == 8
    assert step["metrics"] == found["best"][0]["metrics"]


def test_every_fault_of_load_and_redundant_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *PREDICT, "--load", "zpif:1", "--redundant", "AUTO", "--mtp", "99")
    assert code == 2
    assert "options: 3 faults" in err
    assert "did you mean zipf" in err
    assert "give a whole number from 0, or auto" in err
    assert "'' is neither a law nor a file" in run(capsys, *PREDICT, "--load", "")[2]


def test_layers_with_too_few_experts_are_one_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    heat = ",".join(["1"] * 4 + ["0"] * 252)
    path.write_text(",".join(f"e{place}" for place in range(256)) + f"\n{heat}\n{heat}\n{heat}\n")
    code, _, err = run(capsys, *PREDICT, "--load", str(path))
    assert code == 2
    assert "1 fault\n" in err
    assert "only 4 weights are above zero; 2 layers more such" in err


def test_figures_of_a_law_may_have_a_sign_and_an_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the law's name takes - for _."""
    small, plain = (document(capsys, *PREDICT, "--load", law) for law in ("zipf:1e-1", "zipf:0.1"))
    assert small["metrics"] == plain["metrics"]
    assert "exponent -1" in run(capsys, *PREDICT, "--load", "zipf:-1")[2]


def test_a_point_of_the_front_is_a_deployment_to_predict(capsys: pytest.CaptureFixture[str]) -> None:
    """Slots and attention ranks stand in it, and the search over arrays and one step of numbers agree."""
    load = ("--load", "zipf:0.8", "--redundant")
    plan = (*PLAN, *NARROW, "--tp", "1,2", *load, "auto")
    front = document(capsys, *plan)["best"][0]["front"]
    assert {point["tp"] for point in front} == {1, 2}
    for point in front[:: max(len(front) // 5, 1)]:
        asked = {"gpus": "count", "batch": "batch", "tp": "tp", "schedule": "schedule", "kv": "kv", "mtp": "drafts"}
        words = [word for name, key in asked.items() for word in (f"--{name}", str(point[key]))]
        step = document(capsys, "predict", *PLAN[1:4], "--context", "2k", *words, *load, str(point["redundant"]))
        assert step["metrics"]["tok_s_per_gpu"] == pytest.approx(point["tps_per_gpu"], rel=1e-9)
    _, out, _ = run(capsys, *plan, "--front")
    assert any(line.split()[-2:] == ["schedule", "redundant"] for line in out.splitlines())


def test_a_placement_is_answered_where_nothing_can_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight H100 do not hold DeepSeek-V3: the placement and its worth by the formula stand, the steps say so."""
    words = ("balance", LOADS, "--ranks", "8", "--model", "deepseek-v3", "--gpu", "h100", "--worth", "--context", "2k")
    found = document(capsys, *words)
    assert found["steps"]["worth_having"] is None
    assert found["steps"]["gains"] == []
    assert len(found["max_over_mean"]) == 58
    assert "With no number of slots does a batch fit" in run(capsys, *words)[1]


def test_experts_that_all_ranks_hold_are_placed_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("predict", "deepseek-v3", "--gpu", "h200", "--gpus", "8", "--context", "2k", "--batch", "16")
    found = document(capsys, *words, "--layout", "tp", "--load", "zipf:1", "--redundant", "auto")
    assert found["deployment"]["routing"] == "zipf:1, seed 0; every rank holds all experts"
    assert "balancing" not in found
