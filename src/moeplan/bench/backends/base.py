"""What every backend has: the libraries it needs, whether they are there, and how it is set up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import Struct, field

from moeplan.bench.family import Shape
from moeplan.bench.kernel import Prepared
from moeplan.bench.libraries import load, present, version
from moeplan.bench.ranks import Alone, Ranks


class Setup(Struct, frozen=True, kw_only=True):
    """Where to run and how. direction: «dispatch» or «combine» of an all-to-all; block_m: a kernel's row tile."""

    device: str = "cuda"
    seed: int = 0
    block_m: int | None = None
    direction: str = "dispatch"
    rdma_only: bool = False
    ranks: Ranks = field(default_factory=Alone)


class Backend:
    """One implementation of one family; a subclass says which, and how to prepare a shape."""

    backend: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    tiles: ClassVar[bool] = False  # takes block_m
    by_name_only: ClassVar[bool] = False  # «auto» passes it over: no engine serves with it
    tolerance: float = 0.01

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        for library in self.libraries:
            load(library)
        self.torch: Any = load("torch")

    @classmethod
    def available(cls) -> bool:
        """Say whether its libraries are installed."""
        return all(present(library) for library in cls.libraries)

    @property
    def name(self) -> str:
        """What the sidecar says: library, version, what it computes."""
        raise NotImplementedError

    @property
    def table(self) -> str:
        """The stem of its table."""
        raise NotImplementedError

    @property
    def tile_rows(self) -> int:
        """Rows of its tile; 1 where that is not known."""
        return 1

    def prepare(self, shape: Shape) -> Prepared:
        """Make the data of a shape."""
        raise NotImplementedError

    def version(self) -> str:
        """The version of the library that computes."""
        return version(self.libraries[-1])

    def generator(self) -> Any:
        """A generator of random numbers, the same for every shape."""
        return self.torch.Generator(device=self.setup.device).manual_seed(self.setup.seed + self.setup.ranks.rank)

    def normal(self, *size: int, generator: Any) -> Any:
        """Standard normal numbers in fp32."""
        return self.torch.randn(*size, device=self.setup.device, generator=generator)

    def error(self, found: Any, reference: Any) -> float:
        """Norm of the difference over the norm of the reference."""
        difference = (found.float() - reference.float()).norm()
        return float(difference / reference.float().norm())


class Ready:
    """A prepared shape made of its functions."""

    def __init__(
        self, run: Callable[[], Any], check: Callable[[], float], before: Callable[[], Any] = lambda: None
    ) -> None:
        self._run, self._check, self._before = run, check, before

    def before(self) -> None:
        """What is not timed."""
        self._before()

    def run(self) -> None:
        """Launch once."""
        self._run()

    def check(self) -> float:
        """Relative error of the last result."""
        return self._check()
