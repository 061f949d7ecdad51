"""What a search may cost: a million configurations in a second of CPU, linear growth, memory that does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_search import MIB, measure_apart, space
from test_cpu_budget import NUMPY, NUMPY_SECONDS, cpu_seconds

pytestmark = pytest.mark.budget
MOST_RUNS = 3  # batches of three runs, made only while the budget is not met


def test_a_million_configurations_take_less_than_a_second(tmp_path: Path) -> None:
    """A machine on which numpy's import takes longer gets as many times the second.

    Both are measured in turn, the least of several runs: a busy machine only adds time, and is not busy alike for long.
    """
    seen = []
    for _ in range(MOST_RUNS):
        slower = max(1.0, min(cpu_seconds(*NUMPY, bytecode=tmp_path) for _ in range(5)) / NUMPY_SECONDS)
        found = measure_apart(1_000_000, 3)
        assert found.configurations >= 1_000_000
        seen.append((min(found.seconds), slower))
        if min(found.seconds) < slower:
            return
    pytest.fail(f"(CPU seconds, allowed) {seen}")


def test_the_time_grows_no_faster_than_the_space() -> None:
    ratios = []
    for _ in range(MOST_RUNS):
        small, large = measure_apart(400_000, 3), measure_apart(1_600_000, 3)
        assert large.configurations == pytest.approx(4 * small.configurations, rel=0.01)
        ratios.append(min(large.seconds) / min(small.seconds))
        if ratios[-1] <= 4.6:
            return
    pytest.fail(f"four times the space took {ratios} times the CPU")


def test_ten_million_configurations_fit_in_memory() -> None:
    small, large = measure_apart(1_000_000, 1), measure_apart(10_000_000, 1)
    assert large.configurations >= 10_000_000
    assert large.peak_bytes < 2048 * MIB
    assert large.peak_bytes - large.start_bytes < 1.5 * (small.peak_bytes - small.start_bytes) + 16 * MIB


@pytest.mark.parametrize("size", [1, 999, 10_000, 1_000_000, 10_000_000])
def test_the_spaces_are_as_large_as_asked(size: int) -> None:
    grid = space(size)
    assert size <= grid.size <= max(1.01 * size, size + 12 * len(grid.counts))
    assert max(grid.counts) <= 10_024


def test_the_benchmark_measures_one_space() -> None:
    found = measure_apart(1000, 2)
    assert found.configurations == space(1000).size
    assert len(found.seconds) == 2
    assert 0 < found.start_bytes <= found.peak_bytes
