"""Two-batch overlap and one node's all-to-all, beside what was measured; the command that prints them.

SGLang, May 2025 (LMSYS, large-scale EP): gains at 256 and 128 requests per GPU, losses at 64, 32, 8 and 2. Batch
article: EP4, 256 experts, top-8, hidden 7168: targets 3.44 to 3.61, dispatch 32 to 50 µs, combine 30 to 76 µs.
"""

from __future__ import annotations

import json

import pytest

from moeplan.cli import main
from moeplan.explain.overlap_facts import OverlapFacts, overlap_facts
from moeplan.specs.catalog import Catalog


@pytest.fixture(scope="module")
def facts() -> OverlapFacts:
    return overlap_facts(Catalog.standard())


def test_the_sign_is_right_at_every_batch(facts: OverlapFacts) -> None:
    assert {pair.batch: pair.predicted > 1 for pair in facts.pairs} == {
        2: False,
        8: False,
        32: False,
        64: False,
        128: True,
        256: True,
    }
    assert all(pair.agrees for pair in facts.pairs)
    assert all(abs(pair.predicted / pair.measured - 1) < 0.155 for pair in facts.pairs)
    assert facts.turns is not None
    assert 64 < facts.turns <= 128


def test_one_nodes_targets(facts: OverlapFacts) -> None:
    low, high = facts.one_node.targets
    assert low < facts.targets == pytest.approx(high, abs=0.005)


def test_one_nodes_times_meet_the_ranges_at_some_batch(facts: OverlapFacts) -> None:
    """On every card but H200, whose dispatch stays below its range up to 128 requests."""
    assert all(len(times.seconds) == 128 for times in facts.times)
    assert all(list(times.seconds) == sorted(times.seconds) for times in facts.times)
    never = {(times.gpu.split("-")[0], times.direction) for times in facts.times if times.inside is None}
    assert never == {("H200", "dispatch")}
    h200 = next(times for times in facts.times if times.gpu.startswith("H200") and times.direction == "dispatch")
    assert 0.9 * h200.published[0] < h200.at(128) < h200.published[0]
    h800 = [times for times in facts.times if times.gpu.startswith("H800")]
    for times in h800:  # the whole range is crossed
        assert times.at(1) < times.published[0] < times.published[1] < times.at(128)
        first, last = times.inside or (0, 0)
        assert times.at(first) >= times.published[0] > times.at(first - 1)
        assert times.at(last) <= times.published[1] < times.at(last + 1)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["validate", "overlap"], ["validate", "overlap", "--json"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    text, document = capsys.readouterr().out.split("\n{", 1)
    answer = json.loads("{" + document)
    assert f"from {answer['turns_at']} requests per GPU on" in text
    assert "between 64 and 128" in text
    assert "dispatch 32 to 50 µs, combine 30 to 76 µs" in " ".join(text.split())
    assert answer["one_node"]["measured"]["dispatch"] == [pytest.approx(32e-6), pytest.approx(50e-6)]
    assert len(answer["one_node"]["predicted"][0]["seconds"]) == 128
