"""What balancing may cost: 58 layers of 256 experts in a fraction of a second of CPU, linear in the layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_balance import cpu_seconds, recorded
from test_cpu_budget import NUMPY, NUMPY_SECONDS
from test_cpu_budget import cpu_seconds as process_seconds

from moeplan.routing.eplb import balanced_map
from moeplan.routing.load_laws import law_loads

pytestmark = pytest.mark.budget
MOST_RUNS = 3
# SGLang's module took 2.6 s of CPU for the same layers where this budget was set, 20 times what ours takes.
BUDGET = 0.26


def test_a_model_is_balanced_in_a_quarter_of_a_second(tmp_path: Path) -> None:
    seen = []
    for _ in range(MOST_RUNS):
        slower = max(1.0, min(process_seconds(*NUMPY, bytecode=tmp_path) for _ in range(5)) / NUMPY_SECONDS)
        seconds, placed = cpu_seconds(lambda: balanced_map(recorded(), slots=288, ranks=72))
        assert placed.layers == 58
        seen.append((seconds, BUDGET * slower))
        if seconds < BUDGET * slower:
            return
    pytest.fail(f"(CPU seconds, allowed) {seen}")


def test_the_time_grows_no_faster_than_the_layers() -> None:
    ratios = []
    for _ in range(MOST_RUNS):
        some, many = (law_loads("lognormal:1", layers=layers, experts=256).total for layers in (64, 256))
        few = cpu_seconds(lambda: balanced_map(some, slots=288, ranks=72))[0]  # noqa: B023 - run at once
        ratios.append(cpu_seconds(lambda: balanced_map(many, slots=288, ranks=72), runs=1)[0] / few)  # noqa: B023
        if ratios[-1] <= 5.0:
            return
    pytest.fail(f"four times the layers took {ratios} times the CPU")
