"""CPU time of the command line, and what importing it must not load."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

HELP = ("-m", "moeplan", "--help")
PREDICT = ("-m", "moeplan", *"predict deepseek-v3 --gpu h800 --ep 128 --batch 128 --context 5k".split())
NUMPY = ("-c", "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; import numpy")
# Importing numpy takes less on an idle machine; a slower or busier one gets as many times the budget.
NUMPY_SECONDS = 0.100
FEWEST_RUNS, MOST_RUNS = 5, 25


def cpu_seconds(*arguments: str, bytecode: Path) -> float:
    """User and system time of one Python process and its children, its bytecode kept as in an installed package."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=60, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.budget
@pytest.mark.parametrize(("arguments", "budget"), [(HELP, 0.100), (PREDICT, 0.300)], ids=["help", "predict"])
def test_cpu_budget(arguments: tuple[str, ...], budget: float, tmp_path: Path) -> None:
    """The least of at least five runs; more are made only while it is above the budget."""
    least, machine = float("inf"), float("inf")
    for number in range(MOST_RUNS):
        least = min(least, cpu_seconds(*arguments, bytecode=tmp_path))
        machine = min(machine, cpu_seconds(*NUMPY, bytecode=tmp_path))
        allowed = budget * max(1.0, machine / NUMPY_SECONDS)
        if number + 1 >= FEWEST_RUNS and least < allowed:
            return
    pytest.fail(f"{least * 1e3:.0f} ms of CPU, {allowed * 1e3:.0f} ms allowed")


@pytest.mark.parametrize("module", ["moeplan", "moeplan.cli"])
def test_importing_loads_no_heavy_library(module: str) -> None:
    heavy = ("numpy", "pandas", "scipy", "torch", "rich", "starlette", "yaml", "matplotlib")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_a_prediction_loads_only_what_it_needs() -> None:
    heavy = ("pandas", "scipy", "torch", "starlette", "matplotlib", "rich")
    code = (
        "import sys\nfrom moeplan.cli import main\n"
        f"try:\n    main({[*PREDICT[2:], '--json']})\n"
        f"except SystemExit:\n    print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "[]\n"
