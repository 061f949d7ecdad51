"""One process or several: who writes, and how several agree on what to do next."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from moeplan.bench.kernel import Prepared, Timer
from moeplan.bench.libraries import load

T = TypeVar("T")


class Ranks(Protocol):
    """The processes that measure together; rank 0 writes and prints."""

    rank: int
    world: int

    def share(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        ...

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over the ranks: a collective ends with its slowest."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class Alone:
    """A single process."""

    rank, world = 0, 1

    def share(self, value: T) -> T:
        """The value."""
        return value

    def largest(self, values: Sequence[float]) -> list[float]:
        """The values."""
        return list(values)

    def close(self) -> None:
        """Nothing to leave."""


class Launched:
    """Processes that torchrun started; `device` is the type of device that their tensors are on."""

    def __init__(self, device: str = "cuda") -> None:
        self.torch: Any = load("torch")
        self.group: Any = load("torch.distributed")
        self.device = device
        if device == "cuda":
            self.torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        self.group.init_process_group("nccl" if device == "cuda" else "gloo")
        self.rank: int = self.group.get_rank()
        self.world: int = self.group.get_world_size()

    def share(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        box = [value]
        self.group.broadcast_object_list(box, src=0)
        return box[0]

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over the ranks."""
        tensor = self.torch.tensor(list(values), dtype=self.torch.float64, device=self.device)
        self.group.all_reduce(tensor, op=self.group.ReduceOp.MAX)
        found: list[float] = tensor.tolist()
        return found

    def close(self) -> None:
        """Leave the group."""
        self.group.destroy_process_group()


def launched_by_torchrun() -> bool:
    """Say whether torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


class Together:
    """A timer for collectives: a run takes as long as on its slowest rank, the budget is rank 0's."""

    def __init__(self, timer: Timer, ranks: Ranks) -> None:
        self._timer, self._ranks = timer, ranks

    @property
    def note(self) -> str:
        """How it measures."""
        return f"{self._timer.note}; the slowest of {self._ranks.world} ranks"

    def now(self) -> float:
        """Rank 0's clock."""
        return self._ranks.share(time.monotonic())

    def times(self, prepared: Prepared, count: int) -> list[float]:
        """Seconds of each run on its slowest rank."""
        return self._ranks.largest(self._timer.times(prepared, count))
