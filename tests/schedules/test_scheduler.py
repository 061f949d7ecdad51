"""The list scheduler against the segments that a search uses, and against programs worked by hand."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_layers import NAMES, layer, sparse
from msgspec.structs import replace

from moeplan.errors import InputError
from moeplan.kinds import Real
from moeplan.schedules.graph import unroll
from moeplan.schedules.intervals import intervals
from moeplan.schedules.scheduler import simulate
from moeplan.schedules.segments import period
from moeplan.schedules.timeline import stage_times, timeline
from moeplan.specs.schedule import After, Run, Schedule, TaskStage, schedule, schedule_names

TIMES = st.tuples(*(st.floats(0.1, 1e3) for _ in NAMES))
SHARES = st.sampled_from([0.0, 0.15, 0.765, 1.0])


def end_of_compute(found: Schedule, layers: int, seconds: Mapping[TaskStage, Real], share: float) -> float:
    """When the compute lane is through with so many layers."""
    graph = unroll(found, layers)
    spans = simulate(graph, seconds, {"dispatch": share, "combine": share})
    return max(float(span.end) for span in spans if span.task.lane == "compute")


@settings(max_examples=150, deadline=None)
@given(TIMES, SHARES, st.sampled_from(schedule_names()))
def test_a_layer_is_what_one_layer_more_takes(times: tuple[float, ...], share: float, name: str) -> None:
    """The sum over segments equals the last difference of an unrolled program."""
    found = schedule(name)
    stages = sparse(*times, share=share)
    seconds, _ = stage_times(stages, found)
    one_more = end_of_compute(found, 6, seconds, share) - end_of_compute(found, 5, seconds, share)
    assert float(timeline(stages, name).seconds) == pytest.approx(one_more, rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(TIMES, SHARES, st.sampled_from(schedule_names()))
def test_no_lane_runs_two_tasks_and_none_starts_early(times: tuple[float, ...], share: float, name: str) -> None:
    found = schedule(name)
    seconds, shares = stage_times(sparse(*times, share=share), found)
    graph = unroll(found, 3)
    spans = simulate(graph, seconds, shares)
    for lane in ("compute", "network"):
        row = [span for span in spans if span.task.lane == lane]
        assert all(float(one.end) <= float(two.start) + 1e-9 for one, two in pairwise(row))
    for index, span in enumerate(spans):
        assert all(float(spans[before].end) <= float(span.start) + 1e-9 for before in graph.ancestors[index])
        alone = float(seconds[span.task.stage]) / span.task.parts
        assert float(span.end - span.start) >= alone - 1e-9
        if span.task.lane == "network":
            assert float(span.end - span.start) == pytest.approx(alone)


@settings(max_examples=100, deadline=None)
@given(TIMES, SHARES, st.sampled_from(schedule_names()))
def test_work_is_done_at_the_rate_that_the_network_leaves(times: tuple[float, ...], share: float, name: str) -> None:
    """Of a compute task's span, all but s of what it shares with network tasks is its own time."""
    seconds, shares = stage_times(sparse(*times, share=share), schedule(name))
    spans = simulate(unroll(schedule(name), 3), seconds, shares)
    wires = [span for span in spans if span.task.lane == "network"]
    for span in spans:
        if span.task.lane == "compute":
            shared = sum(
                max(0.0, min(float(span.end), float(wire.end)) - max(float(span.start), float(wire.start)))
                for wire in wires
            )
            done = float(span.end - span.start) - share * shared
            assert done == pytest.approx(float(seconds[span.task.stage]) / span.task.parts, abs=1e-6)


def test_the_segments_of_two_batch_overlap() -> None:
    """Three stretches, each twice a layer."""
    found = period(schedule("two-batch")).segments
    assert [segment.count for segment in found] == [2, 2, 2]
    assert [segment.pair for segment in found] == [True, False, True]
    assert [dict(segment.network) for segment in found] == [{"dispatch": 1.0}, {}, {"combine": 1.0}]


@pytest.mark.parametrize("name", schedule_names())
def test_every_schedule_meets_once_a_layer(name: str) -> None:
    assert period(schedule(name)).segments


def test_lanes_that_never_meet_are_unrolled() -> None:
    """Two-batch overlap that does not wait for a combine before the shared expert: never slower, never below a lane."""
    base = schedule("two-batch")
    free = replace(base, name="free", compute=tuple(replace(run, after=()) for run in base.compute))
    times = dict(zip(NAMES, (10.0, 20.0, 30.0, 8.0, 40.0, 50.0), strict=True))
    seconds, _ = stage_times(layer(**times), free)
    waits = period(free).exposed(seconds, {})
    time = 2 * (10 + 20 + 8 + 40) + sum(float(value) for value in waits.values())
    assert time == pytest.approx(end_of_compute(free, 8, seconds, 0.0) - end_of_compute(free, 7, seconds, 0.0))
    assert 2 * 80 <= time <= float(timeline(layer(**times), "two-batch").seconds)


def test_programs_that_wait_for_each_other_are_refused() -> None:
    base = schedule("naive")
    front = Run(batch=1, run=("attention_front",), after=(After(batch=1, stage="combine"),))
    rest = Run(batch=1, run=("attention_back", "shared", "routed"))
    with pytest.raises(InputError, match="attention_front of batch 1: never starts"):
        unroll(replace(base, name="knot", compute=(front, rest)), 2)


@pytest.mark.parametrize("name", schedule_names())
@pytest.mark.parametrize("share", [0.0, 0.765])
def test_the_intervals_of_a_layer_last_as_long_as_it(name: str, share: float) -> None:
    stages = sparse(10.0, 20.0, 30.0, 8.0, 40.0, 50.0, share=share)
    shown = intervals(stages, name)
    assert min(item.start for item in shown) == 0
    assert max(item.end for item in shown) == pytest.approx(float(timeline(stages, name).seconds))
    assert len({(item.micro_batch, item.stage, item.part) for item in shown}) == len(shown)
    batches = schedule(name).micro_batches
    for stage in ("attention_front", "dispatch"):
        assert sum(item.stage == stage for item in shown) == batches
    slowed = sum(item.end - item.start - item.alone for item in shown if item.lane == "compute")
    assert (slowed > 1) == (share > 0)


def test_stages_that_a_layer_lacks_are_left_out() -> None:
    shown = intervals(layer(attention_front=10.0, attention_back=20.0, routed=40.0), "two-batch")
    assert {item.stage for item in shown} == {"attention_front", "attention_back", "routed"}
    assert max(item.end for item in shown) == pytest.approx(140)


def test_arrays_run_in_the_same_order() -> None:
    found = schedule("two-batch-prefill")
    times: dict[TaskStage, Real] = {name: np.array([10.0, 20.0]) for name in NAMES if name != "dense"}
    spans = simulate(unroll(found, 2), times, {"dispatch": 0.5})
    one = simulate(unroll(found, 2), dict.fromkeys(times, 20.0), {"dispatch": 0.5})
    assert [np.asarray(span.end)[1] for span in spans] == pytest.approx([float(span.end) for span in one])
