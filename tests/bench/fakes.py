"""A timer that gives what it is told and a kernel on the CPU: the harness without a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

import numpy as np
from msgspec import Struct, field

from moeplan.bench.backends.base import Backend, Ready, Setup
from moeplan.bench.device import Device
from moeplan.bench.family import Shape
from moeplan.bench.kernel import Prepared
from moeplan.bench.lab import Lab
from moeplan.bench.ranks import Alone
from moeplan.kernels.table import Sidecar
from moeplan.specs.loading import build


class FakeTimer(Struct):
    """Runs the kernel and returns scripted seconds; a batch takes `pace` seconds of its clock."""

    seconds: Iterator[float] = field(default_factory=lambda: repeat(10e-6))
    pace: float = 1.0
    note: str = "a fake timer"
    batches: list[int] = field(default_factory=list)
    clock: float = 0.0
    hook: Callable[[FakeTimer], None] = lambda _: None

    def now(self) -> float:
        return self.clock

    def times(self, prepared: Prepared, count: int) -> list[float]:
        self.batches.append(count)
        self.hook(self)
        for _ in range(count):
            prepared.before()
            prepared.run()
        self.clock += self.pace
        return [next(self.seconds) for _ in range(count)]


class NumpyGrouped(Backend):
    """(groups, m, k) by (groups, n, k) on the CPU, in fp32."""

    backend = "numpy"
    libraries = ()
    tolerance = 1e-3
    wrong: tuple[Shape, ...] = ()
    breaks: tuple[Shape, ...] = ()
    prepared: list[Shape]
    runs = 0

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.prepared = []

    @property
    def name(self) -> str:
        tile = f", block_m {self.setup.block_m}" if self.setup.block_m else ""
        return f"numpy {np.__version__} einsum{tile}"

    @property
    def table(self) -> str:
        return "grouped_gemm_fp8"

    def prepare(self, shape: Shape) -> Prepared:
        self.prepared.append(shape)
        if shape in self.breaks:
            raise RuntimeError("CUDA error: out of memory\nand a long story")
        random = np.random.default_rng(self.setup.seed)
        # a tenth of the width: what is computed is no matter here
        a = random.standard_normal((shape["groups"], shape["m"], 8), dtype=np.float32)
        b = random.standard_normal((shape["groups"], 16, 8), dtype=np.float32)
        out = np.zeros((shape["groups"], shape["m"], 16), dtype=np.float32)

        def run() -> None:
            self.runs += 1
            np.einsum("gmk,gnk->gmn", a, b, out=out)

        def check() -> float:
            reference = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
            reference = reference * 2 if shape in self.wrong else reference
            return float(np.linalg.norm(out - reference) / np.linalg.norm(reference))

        return Ready(run, check)


def fake_lab(timer: FakeTimer, backend: type[Backend] = NumpyGrouped, slug: str | None = "h800") -> Lab:
    device = Device(reported="NVIDIA H800", driver="driver 570.86", slug=slug)
    return Lab(device=device, timer=timer, ranks=Alone(), backend=backend, setup=Setup(device="cpu"))


def shape(groups: int, m: int, n: int = 4096, k: int = 7168) -> Shape:
    return {"groups": groups, "m": m, "n": n, "k": k}


def sidecar(**changes: str) -> Sidecar:
    content = {
        "title": "numpy on H800, measured here",
        "gpu": "H800-SXM5-80GB",
        "kernel": "numpy",
        "precision": "fp8",
        "source": "moeplan bench",
        "licence": "figures are facts",
        "date": "2026-01-31",
        "driver": "driver 570.86",
    }
    return build(Sidecar, content | changes, "test")


def medians(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
