"""explain, sensitivity, compare, plan --front and --rank-by, and reproduce, as a user runs them."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import typed

from moeplan.article.search import walk
from moeplan.cli import main
from moeplan.cli.progress import SearchProgress
from moeplan.explain.answer import RANKINGS
from moeplan.specs.catalog import Catalog

STEP = "deepseek-v3 --gpu h800 --ep 128 --batch 128 --context 4k"
PLAN = "plan deepseek-v3 --gpu h800,h20 --gpus 32..144 --context 5k --min-tps 20"
UNFIT = "deepseek-v3 --gpu h100 --ep 8 --batch 8 --context 4k"
PUBLISHED = Path(__file__).parents[1] / "article" / "published_rows.csv"


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[Any, str, str]:
    return typed.run(capsys, *shlex.split(line))


def no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture
def table(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    def answer(line: str) -> str:
        code, out, err = run(capsys, line)
        assert (code, err) == (0, ""), line
        assert all(text == text.rstrip() for text in out.splitlines())
        return out

    return answer


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> Callable[[str], dict[str, Any]]:
    def answer(line: str) -> dict[str, Any]:
        code, out, err = run(capsys, f"{line} --json")
        assert (code, err) == (0, ""), line
        content = json.loads(out, parse_constant=no_constant)
        assert isinstance(content, dict)
        assert list(content)[:2] == ["schema", "version"]
        return content

    return answer


Table: TypeAlias = Callable[[str], str]
Document: TypeAlias = Callable[[str], dict[str, Any]]


# --- explain --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", ["", " --mtp 2", " --schedule naive", " --correct mla_core=2", " --set model.top_k=6"])
def test_an_explanation_adds_up(more: str, document: Document) -> None:
    found = document(f"explain {STEP}{more}")
    assert found["schema"] == "moeplan.explain/1"
    total = found["prediction"]["metrics"]["step_s"]
    assert sum(rung["seconds"] for rung in found["ladder"]) == pytest.approx(total)
    assert all(rung["seconds"] > -1e-12 and rung["name"] and rung["meaning"] for rung in found["ladder"])
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert sum(item["exposed"] for item in found["operators"]) == pytest.approx(total)
    assert found["prediction"] == {
        key: value for key, value in document(f"predict {STEP}{more}").items() if key in found["prediction"]
    }
    by_resource: dict[str, float] = {}
    for item in found["operators"]:
        key = item["name"] if item["name"] == "MTP drafts" else item["resource"]
        by_resource[key] = by_resource.get(key, 0) + item["exposed"] / total
    assert by_resource == {key: pytest.approx(value) for key, value in found["shares"].items()}


def test_an_explanation_for_people(table: Table, document: Document) -> None:
    out, found = table(f"explain {STEP}"), document(f"explain {STEP}")
    total, limit = found["prediction"]["metrics"]["step_s"], found["ladder"][0]["seconds"]
    assert out.startswith("DeepSeek-V3 on 128 × H800-SXM5-80GB")
    assert f"From the limit, {limit * 1e3:.2f} ms, to the prediction, {total * 1e3:.2f} ms" in out
    reached = 0.0
    for rung in found["ladder"]:
        reached += rung["seconds"]
        line = next(line for line in out.splitlines() if line.startswith(rung["name"]))
        assert f"{rung['seconds'] * 1e3:+.2f}" in line
        assert f"{reached * 1e3:.2f}" in line
    longest = max(found["operators"], key=lambda item: item["exposed"])
    assert re.search(rf"^{longest['name']} +{longest['exposed'] * 1e3:.2f} ", out, re.MULTILINE)
    for name, share in found["shares"].items():
        assert re.search(rf"^{re.escape(name)} +{share:.1%}$", out, re.MULTILINE)


def test_what_does_not_fit_is_said_by_explain_too(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("predict", "explain", "explain --json"):
        name, *flags = command.split()
        code, out, err = run(capsys, shlex.join([name, *UNFIT.split(), *flags]))
        assert code == 1
        assert out
        assert "does not fit" in err


# --- sensitivity ----------------------------------------------------------------------------------------------------


def test_elasticities_as_table_and_as_json(table: Table, document: Document) -> None:
    found = document(f"sensitivity {STEP} --mtp 1")
    assert found["schema"] == "moeplan.sensitivity/1"
    assert found["min_tok_s_per_user"] == found["prediction"]["metrics"]["tok_s_per_user"]
    values = [item["value"] for item in found["elasticities"]]
    assert values == sorted(values, key=lambda value: -abs(value))
    assert min(values) > -1e-3
    assert found["unit"].startswith("% of tok/s per GPU")
    out = table(f"sensitivity {STEP} --mtp 1")
    for item in found["elasticities"]:
        assert re.search(rf"^{re.escape(item['knob'])} +{re.escape(format(item['value'], '+.3f'))} ", out, re.MULTILINE)
    assert f"Promised {found['min_tok_s_per_user']:.2f} tok/s per user" in out


def test_an_elasticity_is_what_one_percent_gives(document: Document) -> None:
    """With the promise held, by the search itself: a chip 10 % wider gives about ten times the elasticity."""
    chosen = "--gpus 128 --mtp 1 --kv bf16 --schedule naive --max-batch 1000 --context 4k --min-tps 25"
    plan = document(f"plan deepseek-v3 --gpu h800 {chosen}")["best"][0]
    wide = document(f"plan deepseek-v3 --gpu h800 {chosen} --set gpu.memory.bandwidth=3.685TB/s")["best"][0]
    batch = plan["deployment"]["batch"]
    line = f"sensitivity deepseek-v3 --gpu h800 --ep 128 --mtp 1 --schedule naive --context 4k --batch {batch}"
    found = {item["knob"]: item["value"] for item in document(f"{line} --min-tps 25")["elasticities"]}
    gain = 10 * (wide["metrics"]["tok_s_per_gpu"] / plan["metrics"]["tok_s_per_gpu"] - 1)
    assert found["memory bandwidth"] == pytest.approx(gain, abs=0.3)


@pytest.mark.parametrize("line", [f"sensitivity {STEP} --min-tps 1000", f"sensitivity {UNFIT}"])
def test_no_elasticities_of_what_cannot_be(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert "fits and keeps" in err


@pytest.mark.parametrize("value", ["0", "-1", "x", "nan", "inf"])
def test_a_wrong_promise(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"sensitivity {STEP} --min-tps={value}")
    assert (code, out) == (2, "")
    assert "--min-tps" in err


# --- compare --------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path, table: Table) -> str:
    table(f"predict {STEP} --save {tmp_path}/a.yaml")
    table(f"predict deepseek-v3 --gpu h20 --ep 32 --batch 64 --context 4k --mtp 1 --save {tmp_path}/b.yaml")
    return f"compare {tmp_path}/a.yaml {tmp_path}/b.yaml"


def test_a_comparison_adds_up(two: str, table: Table, document: Document) -> None:
    found = document(two)
    assert found["schema"] == "moeplan.compare/1"
    assert found["seconds_are"] == "exposed seconds per step"
    first, second = (found[side]["metrics"]["step_s"] for side in ("first", "second"))
    assert sum(row["difference_s"] for row in found["operators"]) == pytest.approx(second - first)
    for row in found["operators"]:
        assert row["difference_s"] == (row["second_s"] or 0) - (row["first_s"] or 0)
    assert next(row for row in found["operators"] if row["operator"] == "MTP drafts")["first_s"] is None
    out = table(two)
    assert f"{(second - first) * 1e3:+,.2f}" in next(x for x in out.splitlines() if x.startswith("step, ms"))
    row = found["operators"][0]
    line = next(x for x in out.splitlines() if x.startswith(row["operator"]))
    assert f"{row['difference_s'] * 1e3:+.3f}" in line
    assert re.search(r"^MTP drafts +- ", out, re.MULTILINE)


def test_a_profile_beside_a_step(two: str, tmp_path: Path, document: Document, table: Table) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text("operator,seconds\nmla_core,0.02\no_proj,0.006\n", encoding="utf-8")
    line = f"compare {two.split()[1]} --profile {profile}"
    found = document(line)
    assert found["seconds_are"] == "busy seconds per step"
    assert found["second"] is None
    assert {row["operator"]: row["second_s"] for row in found["operators"]} == {"mla_core": 0.02, "o_proj": 0.006}
    busy: dict[str, float] = {}
    for group in found["first"]["layers"]:
        for stage in group["stages"]:
            for cost in stage["operators"]:
                seconds = group["count"] * cost["seconds_per_layer"]
                busy[cost["operator"]] = busy.get(cost["operator"], 0) + seconds
    for row in found["operators"]:
        assert row["first_s"] == pytest.approx(busy[row["operator"]])
    assert f"measured, {profile}" in table(line)


def test_what_does_not_fit_is_said_by_compare(
    two: str, tmp_path: Path, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, _ = run(capsys, f"predict {UNFIT} --save {tmp_path}/c.yaml")
    assert code == 1
    code, out, err = run(capsys, f"compare {two.split()[1]} {tmp_path}/c.yaml")
    assert code == 0
    assert "step, ms" in out
    assert err.count("does not fit") == 1
    assert table(two)


# --- edits ----------------------------------------------------------------------------------------------------------


def test_an_edit_reaches_every_command(tmp_path: Path, document: Document) -> None:
    edit = "--set gpu.memory.bandwidth=6.7TB/s"

    def metrics(line: str) -> dict[str, Any]:
        found = document(line)
        part = found.get("prediction", found)
        result: dict[str, Any] = part["metrics"]
        return result

    plain, fast = metrics(f"predict {STEP}"), metrics(f"predict {STEP} {edit}")
    assert fast["step_s"] < 0.95 * plain["step_s"]
    assert metrics(f"explain {STEP} {edit}") == fast
    assert metrics(f"sensitivity {STEP} {edit}") == fast
    document(f"predict {STEP} --save {tmp_path}/a.yaml")
    compared = document(f"compare {tmp_path}/a.yaml {tmp_path}/a.yaml {edit}")
    assert compared["first"]["metrics"] == compared["second"]["metrics"] == fast
    plan = "plan deepseek-v3 --gpu h800 --gpus 128 --context 4k --min-tps 20 --max-batch 200"
    before, after = (document(f"{plan} {more}")["best"][0]["metrics"]["tok_s_per_gpu"] for more in ("", edit))
    assert after > before


def test_what_rests_on_an_edit_says_so(table: Table) -> None:
    assert "on an edited chip" in table(f"predict {STEP} --set gpu.memory.bandwidth=6.7TB/s")
    assert "on an edited chip" not in table(f"predict {STEP}")
    plan = "plan deepseek-v3 --gpu h800 --gpus 128 --context 4k --min-tps 20 --max-batch 200"
    out = table(f"{plan} --set model.top_k=6")
    assert "Launch command" not in out
    assert "no checkpoint has this shape" in out


def test_an_edited_sheet(table: Table, document: Document) -> None:
    gpu = document("gpus h800 --set gpu.capacity=141GB --set gpu.compute.fp8=1PFLOP/s")["gpu"]
    assert (gpu["memory"]["capacity"], gpu["compute"]["fp8"]) == (141e9, 1e15)
    assert {gpu["assumed"][path] for path in ("memory.capacity", "compute.fp8")} == {"set by hand"}
    nic = document("nics cx7 --set nic.line_rate=25GB/s --set nic.effective_rate=20GB/s")["nics"][0]
    assert (nic["line_rate"], nic["effective_rate"]) == (25e9, 20e9)
    plain, fewer = (document(f"models deepseek-v3 {more}")["model"] for more in ("", "--set model.top_k=4"))
    expert = 3 * 7168 * 2048
    assert plain["parameters"]["active"] - fewer["parameters"]["active"] == 58 * 4 * expert
    assert fewer["parameters"]["total"] == plain["parameters"]["total"]
    assert "memory.capacity: set by hand" in table("gpus h800 --set gpu.capacity=141GB")


@pytest.mark.parametrize(
    "line",
    [
        "gpus --set gpu.tdp=1kW",
        "gpus h800 --set nic.latency=1µs",
        "gpus h800 --set gpu.tdp=1",
        "nics cx7 --set nic.effective_rate=1TB/s",
        "models deepseek-v3 --set model.top_k=600",
        "models --set model.top_k=6",
    ],
)
def test_a_wrong_edit_of_a_sheet(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert "1 fault" in err


@pytest.mark.parametrize("command", [f"predict {STEP}", f"explain {STEP}", f"sensitivity {STEP}", PLAN])
def test_a_wrong_edit_is_one_error_in_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"{command} --set model.top_k=600 --set gpu.bandwith=1")
    assert (code, out) == (2, "")
    assert err.startswith("moeplan: options: 2 faults")
    assert "top_k" in err
    assert "bandwith" in err


# --- the front and the ranking --------------------------------------------------------------------------------------


def test_the_front_as_table_and_as_json(table: Table, document: Document) -> None:
    found, out = document(PLAN), table(f"{PLAN} --front")
    assert "Front of" not in table(PLAN)
    sections = out.split("Front of ")[1:]
    assert len(sections) == len(found["best"]) == 2
    for section, row in zip(sections, found["best"], strict=True):
        front = row["front"]
        speeds = [point["tps_per_user"] for point in front]
        rates = [point["tps_per_gpu"] for point in front]
        assert speeds == sorted(speeds)
        assert rates == sorted(rates, reverse=True)
        winner = row["metrics"]
        assert any(point["tps_per_user"] == pytest.approx(winner["tok_s_per_user"]) for point in front)
        assert all(
            point["tps_per_gpu"] <= winner["tok_s_per_gpu"] * (1 + 1e-9)
            for point in front
            if point["tps_per_user"] >= found["question"]["min_tok_s_per_user"]
        )
        assert f": {len(front)} deployments" in section.splitlines()[0]
        lines = section.split("\n\n")[0].splitlines()[2:]
        assert 2 <= len(lines) <= 20
        for line, point in ((lines[0], front[0]), (lines[-1], front[-1])):  # from end to end
            assert line.split()[:2] == [f"{point['tps_per_user']:.1f}", f"{point['tps_per_gpu']:,.0f}"]


@pytest.mark.parametrize("rank_by", list(RANKINGS))
def test_gpus_are_ranked_as_asked(rank_by: str, table: Table, document: Document) -> None:
    line = f"{PLAN} --rank-by {rank_by} --set gpu.price=1USD/h --set gpu.tdp=500W"
    found, out = document(line), table(line)
    key = {"tok/s": None, "tok/s/$": "tok_per_usd", "tok/s/W": "tok_per_joule_tdp"}[rank_by]
    measured = [row["metrics"]["tok_s_per_gpu"] if key is None else row["ranking"][key] for row in found["best"]]
    assert found["question"]["rank_by"] == rank_by
    assert measured[found["winner"]] == max(measured)
    for row in found["best"]:
        rate = row["metrics"]["tok_s_per_gpu"]
        assert row["ranking"]["tok_per_usd"] == pytest.approx(3600 * rate)
        assert row["ranking"]["tok_per_joule_tdp"] == pytest.approx(rate / 500)
        assert row["metrics"]["usd_per_million_output_tokens"] == pytest.approx(1e6 / 3600 / rate)
    order = [line.split()[0] for line in out.splitlines() if re.match(r"H\d+\S* +\d+ ", line)]
    best = sorted(zip(measured, (row["gpu"] for row in found["best"]), strict=True), reverse=True)
    assert order == [name for _, name in best]
    assert (f"ranked by {rank_by}" in out) == (rank_by != "tok/s")


def test_a_gpu_without_price_does_not_win_by_price(document: Document) -> None:
    """The H20's file states no price, the H800's does."""
    found = document(f"{PLAN} --rank-by tok/s/$")
    prices = [row["ranking"]["tok_per_usd"] for row in found["best"]]
    assert prices[1] is None
    assert found["winner"] == 0


def test_an_unknown_ranking(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"{PLAN} --rank-by speed")
    assert (code, out) == (2, "")
    assert "tok/s/$" in err


# --- an interrupted search ------------------------------------------------------------------------------------------


def interrupt_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done = 0

    def progress(_: SearchProgress, tried: int, total: int) -> None:
        nonlocal done
        assert 0 < tried <= total
        done += 1
        if done == calls:
            raise KeyboardInterrupt

    monkeypatch.setattr("moeplan.search.space.PIECE", 2000)
    monkeypatch.setattr(SearchProgress, "__call__", progress)


@pytest.mark.parametrize("calls", [1, 3, 20])
def test_an_interrupt_gives_what_was_found_and_says_so(
    calls: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    interrupt_after(calls, monkeypatch)
    code, out, err = run(capsys, f"{PLAN} --json --save {tmp_path}/p.yaml --chart {tmp_path}/x.html")
    assert code == 130
    assert "interrupted" in err
    content = json.loads(out)
    assert content["complete"] is False
    assert content["best"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.yaml", "x.html"]
    interrupt_after(calls, monkeypatch)
    code, out, _ = run(capsys, PLAN)
    assert code == 130
    assert "interrupted: a part of the space" in out


def test_an_interrupt_at_once_is_only_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def evaluate(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("moeplan.predict.Predictor.evaluate", evaluate)
    code, out, err = run(capsys, PLAN)
    assert (code, out) == (130, "")
    assert err.strip() == "interrupted"


# --- charts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [PLAN, f"predict {STEP}", f"explain {STEP}", f"sensitivity {STEP}"])
def test_every_command_draws_its_answer(line: str, tmp_path: Path, table: Table) -> None:
    plain = table(line)
    assert table(f"{line} --chart {tmp_path}/x.html") == plain
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    titles = re.findall(r'"title": \{"text": "([^"]+)"', page)
    assert (
        titles
        == {
            "plan": ["Throughput against speed per user", "Where the step goes"],
            "predict": ["Where the step goes", "Roofline", "One layer, lane by lane"],
            "explain": ["From the limit to the prediction", "Where the step goes"],
            "sensitivity": ["What one more percent gives"],
        }[line.split()[0]]
    )


@pytest.mark.parametrize("suffix", ["html", "svg", "png"])
def test_a_search_that_found_nothing_is_drawn_too(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "plan llama-3.1-405b --gpu h100 --gpus 1 --context 4k --min-tps 1"
    code, _, err = run(capsys, f"{line} --chart {tmp_path}/x.{suffix}")
    assert (code, err) == (1, "")
    assert (tmp_path / f"x.{suffix}").stat().st_size > 1000


# --- the article ----------------------------------------------------------------------------------------------------


@cache
def published() -> list[dict[str, str]]:
    lines = PUBLISHED.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


REPRODUCE = "reproduce throughput-article"


def test_the_article_as_json(document: Document) -> None:
    """Every published row has the published figures, and the winner of its group the published throughput."""
    found = document(REPRODUCE)
    assert found["schema"] == "moeplan.throughput-article/1"
    assert found["source"]
    assert set(found["switches"].values()) == {None}
    rows = found["rows"]
    assert len(rows) == 13_440
    group = ["revision", "min_tps", "gpu", "nic", "ep", "nonexpert_elem_bytes"]
    names = [*group, "pipeline", "kv_elem_bytes", "mtp_len", "batch_per_gpu"]
    by_key = {tuple(str(row[name]) for name in names): row for row in rows}
    winners = {tuple(str(row[name]) for name in group): row for row in rows if row["winner"]}
    for line in published():
        row, best = by_key[tuple(line[name] for name in names)], winners[tuple(line[name] for name in group)]
        assert row["ux_tps"] == pytest.approx(float(line["ux_tps"]), rel=1e-6)
        assert row["throughput_per_gpu"] == pytest.approx(float(line["throughput_per_gpu"]), rel=1e-6)
        assert best["throughput_per_gpu"] == pytest.approx(float(line["throughput_per_gpu"]), rel=1e-6)
    for row in rows:
        assert row["meets"] == (row["ux_tps"] >= row["min_tps"])
        assert row["meets"] or not row["winner"]


def test_the_article_for_people(table: Table) -> None:
    out = table(REPRODUCE)
    for line in published():
        pattern = rf"^{line['gpu']} +{re.escape(line['nic'])} +{line['ep']} .* ([0-9,.]+)$"
        shown = [float(figure.replace(",", "")) for figure in re.findall(pattern, out, re.MULTILINE)]
        wanted = float(line["throughput_per_gpu"])
        assert any(figure == pytest.approx(wanted, rel=1e-6, abs=6e-4) for figure in shown), line
    assert "13,440 rows walked" in out
    assert "as published" in out
    for title in {f"{line['revision']}, at least {line['min_tps']} tok/s per user" for line in published()}:
        assert title in out


def test_switches_are_named_and_change_the_tables(document: Document) -> None:
    found = document(f"{REPRODUCE} --no-expert-mfu --gemm-mfu --overlap none --chunk 2048 --thread-all-reduce 0.5µs")
    assert found["switches"] == {
        "expert_mfu": False,
        "gemm_mfu": True,
        "overlap": "none",
        "chunk": 2048,
        "thread_all_reduce": pytest.approx(5e-7),
    }
    plain = [row.throughput_per_gpu for row in walk(Catalog.standard())]
    switched = [row["throughput_per_gpu"] for row in found["rows"]]
    assert len(switched) == len(plain)
    assert switched != pytest.approx(plain, rel=1e-6)


def test_switched_tables_do_not_pass_for_published_ones(table: Table) -> None:
    assert "not the published tables" in table(f"{REPRODUCE} --overlap three-stage")


@pytest.mark.parametrize(
    "wrong", ["--overlap four", "--chunk 1", "--thread-all-reduce 5", "--thread-all-reduce fast", "--nope", "extra"]
)
def test_wrong_switches(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"{REPRODUCE} {wrong}")
    assert (code, out) == (2, "")
    assert err.startswith("moeplan: ")


def test_reproduce_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "reproduce")
    assert code in (0, 2)
    assert "throughput-article" in out + err
    code, _, err = run(capsys, "reproduce throughput-artcle")
    assert code == 2
    assert "throughput-artcle" in err


def test_sensitivity_says_where_its_slopes_hold(capsys: pytest.CaptureFixture[str]) -> None:
    step = "sensitivity deepseek-v3 --gpu h800 --ep 64 --batch 32 --context 5k --min-tps 1 --json".split()
    with pytest.raises(SystemExit):
        main(step)
    around = json.loads(capsys.readouterr().out)["around"]
    assert around["batch"] > 100
    assert around["tok_s_per_gpu"] > 1000
