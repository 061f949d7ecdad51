"""What a measuring run has at hand: the GPU, the processes, the timer, and the kernels of the backend chosen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from moeplan.bench.backends import choose
from moeplan.bench.backends.base import Backend, Setup
from moeplan.bench.cuda_timer import CudaTimer
from moeplan.bench.device import Device, detect
from moeplan.bench.family import Family, Shape
from moeplan.bench.harness import Effort
from moeplan.bench.kernel import Kernel, Timer
from moeplan.bench.ranks import Alone, Launched, Ranks, Together, launched_by_torchrun
from moeplan.bench.rows import SOURCE
from moeplan.errors import Fault, InputError
from moeplan.kernels.table import Sidecar
from moeplan.specs.catalog import Catalog

PRECISION: dict[Family, str] = {
    "gemm_fp8": "fp8",
    "gemm_batched_bf16": "bf16",
    "grouped_gemm_fp8": "fp8",
    "mla_decode_bf16": "bf16",
    "copy": "bytes",
    "dispatch": "fp8",
    "combine": "bf16",
}


class Lab:
    """A device, a timer, ranks, and a backend set up for them."""

    def __init__(self, *, device: Device, timer: Timer, ranks: Ranks, backend: type[Backend], setup: Setup) -> None:
        self.device, self.ranks = device, ranks
        self.timer = timer if ranks.world == 1 else Together(timer, ranks)
        self.backend = backend
        self._setup = setup

    def kernels(self, tiles: Sequence[int], asked: Sequence[int]) -> Iterator[tuple[str, Kernel]]:
        """The kernels to measure and the folder of each in --out: one, or one for each row tile.

        tiles: a preset's, left out where the kernel chooses its own; asked: the user's. Raises InputError when the user
        asks for tiles that the kernel does not take.
        """
        if asked and not self.backend.tiles:
            problem = f"{self.backend.backend} chooses its own tile"
            raise InputError("options", [Fault("--block-m", problem, "leave it out, or say --backend triton")])
        chosen = (asked or tiles) if self.backend.tiles else ()
        if not chosen:
            yield "", self.backend(self._setup)
        for tile in chosen:
            yield f"block_m_{tile}", self.backend(replace(self._setup, block_m=tile))


def open_lab(catalog: Catalog, family: Family, backend: str, setup: Setup) -> Lab:
    """Find the GPU and the backend, join the other processes if torchrun started this one.

    Raises Absent when there is no CUDA GPU or the library is missing.
    """
    device = detect(catalog)
    chosen = choose(family, backend)
    collective = family in ("dispatch", "combine")
    ranks: Ranks = Launched() if collective and launched_by_torchrun() else Alone()
    return Lab(device=device, timer=CudaTimer(), ranks=ranks, backend=chosen, setup=replace(setup, ranks=ranks))


def for_these_ranks(family: Family, shapes: Sequence[Shape], world: int) -> list[Shape]:
    """The shapes that as many processes can measure: all, but of a collective those of its number of ranks.

    Raises InputError when there is none.
    """
    if family not in ("dispatch", "combine"):
        return list(shapes)
    found = [shape for shape in shapes if shape["ep"] == world and world > 1]
    if not found:
        sizes = ", ".join(str(size) for size in sorted({shape["ep"] for shape in shapes}))
        fix = "start one process per GPU: torchrun --nproc-per-node 8 -m moeplan bench all-to-all …"
        raise InputError("ranks", [Fault("ep", f"{world} process(es), shapes for {sizes}", fix)])
    return found


def sidecar(family: Family, gpu: str, kernel: Kernel, lab: Lab, effort: Effort, command: str) -> Sidecar:
    """What stands beside the table."""
    return Sidecar(
        title=f"{kernel.name} on {gpu}, measured here",
        gpu=gpu,
        kernel=kernel.name,
        precision=PRECISION[family],
        source=SOURCE,
        licence="figures are facts",
        date=time.strftime("%Y-%m-%d"),
        note=(
            f"{lab.device.reported}; medians of at least {effort.repetitions} runs and {effort.budget:g} s after "
            f"{effort.warmup} that do not count; {lab.timer.note}"
        ),
        command=command,
        driver=lab.device.driver,
        tile_rows=kernel.tile_rows,
    )
