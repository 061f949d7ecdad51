"""Published decode steps: errors held by a baseline, the sign of two-batch overlap, every row with its source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeplan.cli import main
from moeplan.errors import InputError
from moeplan.specs.catalog import Catalog
from moeplan.validate.steps import StepScores, compare_steps, published

CATALOG = Catalog.standard()
# Median of |error| by who measured, as of the last change to the model; a change may not make them worse by a point.
BASELINE = {
    "DeepSeek in-house": 0.060,
    "SGLang, 72 H100": 0.108,
    "SGLang, 96 H200": 0.204,
    "SGLang MTP, 16 H200": 0.270,
    "SGLang, GB200": 0.144,
    "TensorRT-LLM, least latency": 0.053,
    "CloudMatrix384": 0.061,
}


@pytest.fixture(scope="module")
def scores() -> StepScores:
    return compare_steps(CATALOG)


def test_no_group_gets_worse(scores: StepScores) -> None:
    assert set(scores.groups) == set(BASELINE)
    for group, held in BASELINE.items():
        assert scores.median(group) < held + 0.01, group
    assert scores.median() < 0.108


def test_deepseeks_layer_is_within_eight_percent(scores: StepScores) -> None:
    layer = next(row for row in scores.rows if row.metric == "layer_s")
    assert abs(layer.error) < 0.08
    assert layer.error > 0
    assert layer.predicted < layer.measured  # too fast is an error above zero, of times as well


def test_two_batch_overlap_pays_from_between_64_and_128_requests(scores: StepScores) -> None:
    """SGLang's blog of May 2025: gains at 256 and 128 requests per GPU, losses at 64, 32, 8 and 2."""
    speed = {row.name: row.predicted for row in scores.rows if row.group == "SGLang, 72 H100"}
    for batch, gains in ((256, True), (128, True), (64, False), (32, False), (8, False), (2, False)):
        overlapped, plain = (speed[f"EP72, {batch} requests, {how}"] for how in ("two-batch", "no overlap"))
        assert (overlapped > plain) == gains, batch


def test_the_same_step_is_published_twice_as_kernels_age(scores: StepScores) -> None:
    """GB200, the same layout, batch and precision: 20 % more three months later; the prediction is of late kernels."""
    june, later = (row for row in scores.rows if row.name.startswith("GB200") and row.measured < 10_000)
    assert later.measured / june.measured == pytest.approx(1.198, abs=0.001)
    assert later.batch == june.batch == 768
    assert 0 < later.error < june.error


def test_speculation_of_that_month_ran_without_overlapped_scheduling() -> None:
    """As the source's table says; without drafts it has both."""
    hosts = {row["name"]: row["host"] for row in published(CATALOG) if row["group"] == "SGLang MTP, 16 H200"}
    assert [host for name, host in hosts.items() if "0 drafts" not in name] == ["serial"] * 2
    assert sorted(host for name, host in hosts.items() if "0 drafts" in name) == ["overlapped", "serial"]


def test_a_supernodes_batches_are_throughput_times_time(scores: StepScores) -> None:
    """CloudMatrix384's TPOTs: 46.8, 47.4, 49.4, 24.6 and 14.9 ms, so the batch is of a package of two dies."""
    rows = [row for row in scores.rows if row.group == "CloudMatrix384"]
    for row, tpot in zip(rows, (46.8, 47.4, 49.4, 24.6, 14.9), strict=True):
        assert row.measured * tpot / 1e3 == pytest.approx(row.batch, rel=0.005)


def test_balance_is_worth_what_it_was(scores: StepScores) -> None:
    """From a balancedness of 0.78 to 0.905 SGLang gained 14 %."""
    speed = {row.name: row for row in scores.rows}
    low, high = (speed[f"EP72, 256 requests, balancedness {share}"] for share in ("0.78", "0.905"))
    assert high.measured / low.measured == pytest.approx(1.144, abs=0.001)
    assert high.predicted / low.predicted == pytest.approx(1.144, abs=0.05)


def test_every_row_has_a_source_and_a_reason_where_it_is_left_out() -> None:
    rows = published(CATALOG)
    assert all(row["source"] for row in rows)
    assert len({row["name"] for row in rows}) == len(rows)
    assert all(row["value"] or row["left_out"] for row in rows)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["validate", "steps"], ["validate", "steps", "--json"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    text, document = capsys.readouterr().out.split("\n{", 1)
    answer = json.loads("{" + document)
    assert f"{answer['median']['all']:.1%}" in text
    assert "Left out: " in text
    assert len(answer["rows"]) > 30


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (",1850,", ",abc,", "row 2: value is 'abc'"),
        (",144,1,1,", ",144,1,0,", "row 2: moe_tp is '0'"),
        (",4989,0,", ",4989,0.5,", "row 2: drafts is '0.5'"),
        ("value,trust", "vaule,trust", "lacks value"),
    ],
)
def test_a_table_of_ones_own_with_a_slip_is_named(old: str, new: str, words: str, tmp_path: Path) -> None:
    text = CATALOG.data_file("observations", "decode_steps.csv").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "observations").mkdir()
    (tmp_path / "observations" / "decode_steps.csv").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=words):
        published(Catalog.standard(tmp_path))
