"""What a search costs: CPU time and memory by the size of the space, beside predicting one deployment at a time.

`make bench`, or `python tests/budget/bench_search.py` where moeplan is installed. With two numbers, SIZE and RUNS, it
measures one space in this process and prints JSON; each line of the table is such a process, so that peaks are its own.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time

from msgspec import Struct
from msgspec.structs import asdict

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from moeplan.cli.options import cluster_of
from moeplan.predict import Predictor
from moeplan.search.best import Found, best
from moeplan.search.space import Space
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import SCHEDULES, Acceptance, Deployment, Precision

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
SINGLES = 200
MOST_COUNTS = 1250  # instances of 32 to 10,024 GPUs
MIB = 2**20


class Measured(Struct, frozen=True, kw_only=True):
    """A search: its size, CPU seconds of every run, peak memory of the process in bytes, before and after it."""

    configurations: int
    seconds: list[float]
    start_bytes: int
    peak_bytes: int


def predictor() -> Predictor:
    """DeepSeek-V3 on H800 with ConnectX-7."""
    catalog = Catalog.standard()
    return Predictor.of(catalog.model("deepseek-v3"), cluster_of(catalog, "h800", "cx7", None), catalog)


def space(size: int) -> Space:
    """At least `size` configurations: instance sizes, batches, no draft or one, two cache formats, two schedules.

    An instance size has 6 configurations per batch: two-batch overlap takes every second one only.
    """
    counts = min(MOST_COUNTS, max(1, size // (6 * 512)))
    pairs = -(-size // (12 * counts))
    model = predictor().model
    return Space(
        counts=tuple(range(32, 32 + 8 * counts, 8)),
        batches=tuple(range(1, 2 * pairs + 1)),
        drafts=(0, 1),
        precisions=tuple(Precision.of(model, kv=name) for name in ("bf16", "fp8")),
        schedules=SCHEDULES,
        context=5000.0,
        acceptance=Acceptance.geometric(0.85, 1, "a benchmark"),
    )


def peak() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(size: int, runs: int) -> Measured:
    """Search a space `runs` times in this process, after a small one that loads the tables."""
    target, grid = predictor(), space(size)
    best(target, space(1000), min_tps=20)
    start, seconds = peak(), []
    for _ in range(runs):
        before = time.process_time()
        found = best(target, grid, min_tps=20)
        seconds.append(time.process_time() - before)
        assert isinstance(found, Found)
        assert found.tried == grid.size >= size
    return Measured(configurations=grid.size, seconds=seconds, start_bytes=start, peak_bytes=peak())


def measure_apart(size: int, runs: int) -> Measured:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, str(size), str(runs)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=environment)
    return Measured(**json.loads(done.stdout))


def one_at_a_time() -> float:
    """CPU seconds of predicting one deployment: the mean of SINGLES, drawn from the space of a million."""
    target, grid = predictor(), space(1_000_000)
    draw = random.Random(0)
    asked = [
        Deployment(
            batch=2 * draw.randint(1, len(grid.batches) // 2),
            ep=draw.choice(grid.counts),
            context=grid.context,
            drafts=draw.choice(grid.drafts),
            precision=draw.choice(grid.precisions),
            schedule=draw.choice(grid.schedules),
            acceptance=grid.acceptance,
        )
        for _ in range(SINGLES)
    ]
    target.predict(asked[0])
    before = time.process_time()
    for deployment in asked:
        target.predict(deployment)
    return (time.process_time() - before) / SINGLES


def main(arguments: list[str]) -> None:
    """Measure one space, or print the table."""
    if arguments:
        found = measure(int(arguments[0]), int(arguments[1]))
        print(json.dumps(asdict(found)))
        return
    single = one_at_a_time()
    print("configurations   CPU s  ns each  peak MiB  one at a time, ns each  times slower")
    for size, runs in zip(SIZES, itertools.chain((5, 5, 3), itertools.repeat(1)), strict=False):
        found = measure_apart(size, runs)
        each = min(found.seconds) / found.configurations
        print(
            f"{found.configurations:>14,}  {min(found.seconds):>6.3f}  {each * 1e9:>7,.0f}"
            f"  {found.peak_bytes / MIB:>8,.0f}  {single * 1e9:>22,.0f}  {single / each:>12,.0f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
