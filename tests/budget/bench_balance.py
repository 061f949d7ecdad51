"""CPU time and quality of the balancer beside the EPLB module of the SGLang wheel, in one run on one thread.

    python tests/budget/bench_balance.py [--sglang WHEEL_OR_FOLDER]

Needs torch, and SGLang's wheel (`pip download --no-deps sglang==0.5.10.post1`) or a folder it was unpacked to; without
them it says so and times ours alone. The module is run as it is; nothing of it is part of moeplan.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from moeplan.kinds import Array
from moeplan.routing.eplb import balanced_map
from moeplan.routing.expert_map import ExpertMap
from moeplan.routing.load_files import read_loads
from moeplan.routing.load_laws import law_loads

MODULE = "sglang/srt/eplb/eplb_algorithms/deepseek.py"
SIZES = [(288, ranks) for ranks in (32, 36, 48, 72, 96, 144, 288)] + [(320, ranks) for ranks in (64, 160, 320)]
LAWS = ("recorded", "uniform", "zipf:0.5", "zipf:1", "zipf:1.5", "lognormal:1", "hot:1:100")
LAYERS, EXPERTS, RUNS = 58, 256, 3


def recorded() -> Array:
    """The packaged loads: 58 layers, 256 experts."""
    return read_loads([Path(str(files("moeplan.data") / "observations" / "expert_load_dsv3_decode.csv"))]).total


def loads_of(law: str) -> Array:
    return recorded() if law == "recorded" else law_loads(law, layers=LAYERS, experts=EXPERTS).total


def cpu_seconds(run: Callable[[], Any], runs: int = RUNS) -> tuple[float, Any]:
    """The least user and system time of several runs, and the last result."""
    least, result = float("inf"), None
    for _ in range(runs):
        start = time.process_time()
        result = run()
        least = min(least, time.process_time() - start)
    return least, result


def sglang_module(where: str | None) -> tuple[Any, Any] | str:
    """torch and the module, or why there is none."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return "torch is not installed"
    if where is None:
        return "no --sglang WHEEL_OR_FOLDER given"
    path = Path(where)
    if path.suffix == ".whl":
        folder = tempfile.mkdtemp()
        with zipfile.ZipFile(path) as archive:
            archive.extract(MODULE, folder)
        path = Path(folder)
    spec = importlib.util.spec_from_file_location("published_eplb_module", path / MODULE)
    if spec is None or spec.loader is None or not (path / MODULE).is_file():
        return f"{where} holds no {MODULE}"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.set_num_threads(1)
    return torch, module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sglang", help="the wheel, or a folder with sglang/srt/eplb")
    found = sglang_module(parser.parse_args().sglang)
    if isinstance(found, str):
        print(f"SGLang's module is left out: {found}.", file=sys.stderr)
    print(
        "loads        slots/ranks     ours: mean   worst      ms   SGLang: mean   worst      ms   faster  layers worse"
    )
    for law in LAWS:
        loads = loads_of(law)
        for slots, ranks in SIZES:
            seconds, placed = cpu_seconds(lambda: balanced_map(loads, slots=slots, ranks=ranks))  # noqa: B023 - run at once
            ours = placed.max_over_mean(loads)
            line = f"{law:12} {slots:>5}/{ranks:<5} {ours.mean():12.4f} {ours.max():8.4f} {seconds * 1e3:7.0f}"
            if not isinstance(found, str):
                torch, module = found
                weight = torch.tensor(loads)
                theirs_s, result = cpu_seconds(
                    lambda: module.rebalance_experts(weight, slots, 1, 1, ranks, False),  # noqa: B023 - run at once
                    runs=1 if law != "recorded" else RUNS,
                )
                other = ExpertMap(expert=result[0].numpy(), experts=EXPERTS, ranks=ranks).max_over_mean(loads)
                worse = int((ours > other * (1 + 1e-6)).sum())
                line += f" {other.mean():14.4f} {other.max():8.4f} {theirs_s * 1e3:7.0f}"
                line += f" {theirs_s / seconds:7.0f}× {worse:7}"
            print(line)
    print("\nlayers      ms   ms per layer   (lognormal:1, 288 slots on 72 ranks)")
    for layers in (58, 250, 1000):
        loads = law_loads("lognormal:1", layers=layers, experts=EXPERTS).total
        seconds, _ = cpu_seconds(lambda: balanced_map(loads, slots=288, ranks=72), runs=1)  # noqa: B023 - run at once
        print(f"{layers:6} {seconds * 1e3:7.0f} {seconds / layers * 1e3:14.2f}")


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
