"""Schedules as files: names, aliases, and programs that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from moeplan.errors import InputError, UnknownName
from moeplan.specs.deployment import SCHEDULES
from moeplan.specs.schedule import FOLDER, PLAIN, read_schedule, schedule, schedule_names


def test_the_packaged_schedules() -> None:
    assert set(schedule_names()) == {"naive", "two-batch", "two-batch-best", "two-batch-prefill", "single-batch"}
    assert {*SCHEDULES, PLAIN} <= set(schedule_names())
    for name in schedule_names():
        found = schedule(name)
        assert found.name == name
        assert found.source
        assert found.meaning
        assert found.overlaps == (name != "naive")
        for alias in found.aliases:
            assert schedule(alias) is found or schedule(alias) == found


def test_no_alias_means_two_schedules() -> None:
    words = [word for name in schedule_names() for word in (name, *schedule(name).aliases)]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("word", "name"), [("TBO", "two-batch"), ("sbo", "single-batch"), ("hook", "naive"), (" dbo ", "two-batch")]
)
def test_aliases(word: str, name: str) -> None:
    assert schedule(word).name == name


@pytest.mark.parametrize(("word", "near"), [("two-bach", "two-batch"), ("sigle-batch", "single-batch")])
def test_a_slip_gets_the_near_name(word: str, near: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean .*{near}"):
        schedule(word)


def test_a_schedule_that_refines_another_has_its_programs() -> None:
    best, base = schedule("two-batch-best"), schedule("two-batch")
    assert best.refines == "two-batch"
    assert (best.compute, best.network, best.micro_batches) == (base.compute, base.network, 2)


def written(folder: Path, **changes: Any) -> Path:
    content = yaml.safe_load((FOLDER / "naive.yaml").read_text(encoding="utf-8")) | {"name": "own", "aliases": []}
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(content | changes), encoding="utf-8")
    return path


STAGES = ["attention_front", "attention_back", "shared", "routed"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"compute": [{"batch": 1, "run": STAGES[:3]}]}, ["batch 1: runs routed 0 times"]),
        ({"compute": [{"batch": 1, "run": [*STAGES, "shared"]}]}, ["batch 1: runs shared 2 times"]),
        ({"compute": [{"batch": 1, "run": [*STAGES, "routed_up"]}]}, ["runs routed and its halves"]),
        ({"compute": [{"batch": 2, "run": STAGES}]}, [r"compute\[0\].batch: is 2", "batch 1: runs routed 0 times"]),
        ({"compute": [{"batch": 1, "run": [*STAGES, "dispatch"]}]}, ["dispatch does not run on the compute lane"]),
        ({"compute": [{"batch": 1, "run": STAGES, "parts": 0}]}, [r"compute\[0\].parts: is 0"]),
        ({"compute": [{"batch": 1, "run": STAGES, "layer": 2}]}, [r"compute\[0\].layer: is 2"]),
        ({"compute": [{"batch": 1, "run": ["atention_front"]}]}, ["did you mean attention_front"]),
        ({"compute": [{"batch": 1, "run": STAGES, "after": [{"batch": 1, "stage": "routed_down"}]}]}, ["no lane runs"]),
        ({"micro_batches": 0}, ["micro_batches: is 0"]),
        ({"lanes": []}, ["unknown key"]),
        ({"network": None}, ["network"]),
    ],
)
def test_a_bad_file_names_every_fault(changes: dict[str, Any], named: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_schedule(written(tmp_path, **changes))
    for words in named:
        assert caught.match(words)


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    assert read_schedule(written(tmp_path)).micro_batches == 1
