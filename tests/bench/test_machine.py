"""What stands between the harness and a device: detection, the timer's order of events, ranks, choice of backend."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest
from fakes import FakeTimer, NumpyGrouped

from moeplan.bench import backends, libraries
from moeplan.bench.backends.base import Ready, Setup
from moeplan.bench.cuda_timer import CudaTimer
from moeplan.bench.device import detect, gpu_name, known_as, named_or_found
from moeplan.bench.family import COLUMNS, COMMANDS, Shape
from moeplan.bench.harness import Effort, Measured, measure
from moeplan.bench.lab import for_these_ranks
from moeplan.bench.libraries import Absent
from moeplan.bench.presets import preset
from moeplan.bench.ranks import Alone, Together
from moeplan.bench.view import View
from moeplan.errors import InputError
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
T = TypeVar("T")


class StubTorch(ModuleType):
    """As much of torch as the timer and the detection call; keeps the order of the calls."""

    def __init__(self, gpu: str | None) -> None:
        super().__init__("torch")
        self.__spec__ = ModuleSpec("torch", None)
        self.__version__ = "2.9.0"
        self.calls: list[str] = []
        self.version = SimpleNamespace(cuda="12.9")
        self.float32 = "float32"
        self.sizes: list[int] = []
        note = self.calls.append
        self.cuda = SimpleNamespace(
            is_available=lambda: gpu is not None,
            get_device_name=lambda: gpu,
            get_device_properties=lambda _: SimpleNamespace(L2_cache_size=100 << 20),
            Event=lambda enable_timing: StubEvent(note, enable_timing),
            _sleep=lambda _: note("sleep"),
            synchronize=lambda: note("synchronize"),
        )

    def ones(self, size: int, **_: Any) -> Any:
        self.sizes.append(size)
        return SimpleNamespace(sum=lambda: self.calls.append("flush"))


class StubEvent:
    """Every interval takes 0.25 ms."""

    def __init__(self, note: Any, enable_timing: bool) -> None:
        assert enable_timing
        self._note = note

    def record(self) -> None:
        self._note("record")

    def elapsed_time(self, _: StubEvent) -> float:
        return 0.25


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> StubTorch:
    stub = StubTorch("NVIDIA H800")
    monkeypatch.setitem(sys.modules, "torch", stub)
    return stub


def test_the_cache_is_cold_and_only_the_run_is_timed(torch: StubTorch) -> None:
    timer = CudaTimer()
    assert torch.sizes == [400 << 20 >> 2]  # four times the cache, in fp32
    torch.calls.clear()
    prepared = Ready(lambda: torch.calls.append("run"), lambda: 0.0, lambda: torch.calls.append("before"))
    assert timer.times(prepared, 2) == [0.25e-3, 0.25e-3]
    once = ["flush", "sleep", "before", "record", "run", "record"]
    assert torch.calls == [*once, *once, "synchronize"]
    assert "400 MiB" in timer.note
    assert "2.5e+02 µs" in timer.note


def test_the_gpu_is_known_by_what_cuda_calls_it(torch: StubTorch) -> None:
    found = detect(CATALOG)
    assert (found.slug, found.reported) == ("h800", "NVIDIA H800")
    assert found.driver.endswith("CUDA 12.9, torch 2.9.0")
    assert named_or_found(CATALOG, None) == "h800"
    assert torch.calls == []


@pytest.mark.parametrize(
    ("reported", "slug"),
    [("NVIDIA H20", "h20"), ("NVIDIA H20-3e", "h20-141"), ("nvidia h200", "h200"), ("NVIDIA H100 80GB HBM3", "h100")],
)
def test_names_are_compared_whole(reported: str, slug: str) -> None:
    assert known_as(CATALOG, reported) == slug
    assert known_as(CATALOG, reported + " PCIe Special") is None


def test_every_known_device_is_in_the_catalog() -> None:
    from moeplan.specs.loading import read_mapping

    table = read_mapping(CATALOG.data_file("bench", "devices.yaml"))
    assert set(table) <= set(CATALOG.names("gpus"))


def test_no_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", StubTorch(None))
    with pytest.raises(Absent) as caught:
        detect(CATALOG)
    assert "\n" not in str(caught.value)
    assert "torch sees no CUDA GPU" in str(caught.value)
    with pytest.raises(InputError, match="no GPU is found here"):
        named_or_found(CATALOG, None)
    assert gpu_name(CATALOG, "H800-SXM", None) == "h800"


def test_a_library_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "deep_gemm.py").write_text("raise OSError('libcudart.so.12: cannot open\\nmore')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Absent, match=r"deep_gemm: cannot be imported: libcudart\.so\.12: cannot open") as caught:
        libraries.load("deep_gemm")
    assert "\n" not in str(caught.value)


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    from moeplan.bench.backends import base

    monkeypatch.setattr(base, "present", lambda name: name in names)


def test_auto_takes_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "torch", "triton")
    assert backends.choose("grouped_gemm_fp8", "auto").backend == "torch"
    assert backends.choose("grouped_gemm_fp8", "triton").backend == "triton"
    installed(monkeypatch, "torch", "deep_gemm")
    assert backends.choose("grouped_gemm_fp8", "auto").backend == "deep_gemm"
    assert backends.choose("gemm_fp8", "auto").backend == "deep_gemm"


def test_auto_passes_over_what_no_engine_serves_with(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "torch")
    with pytest.raises(Absent, match="flash_mla or flashinfer"):
        backends.choose("mla_decode_bf16", "auto")
    assert backends.choose("mla_decode_bf16", "torch").backend == "torch"


def test_a_backend_that_is_not_installed_or_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "torch")
    with pytest.raises(Absent, match="deep_gemm is not installed — install it, say --backend torch"):
        backends.choose("gemm_fp8", "deep_gemm")
    with pytest.raises(InputError, match="did you mean deep_gemm"):
        backends.choose("gemm_fp8", "deepgemm")
    with pytest.raises(InputError, match="one of auto, torch"):
        backends.choose("copy", "xyz")


def test_every_family_has_backends() -> None:
    assert set(backends.BACKENDS) == set(COLUMNS) == {item for items in COMMANDS.values() for item in items}


class Two(Alone):
    """Rank 0 of two, the other one slower by half."""

    world = 2

    def share(self, value: T) -> T:
        return value

    def largest(self, values: Sequence[float]) -> list[float]:
        return [1.5 * value for value in values]


def test_a_collective_takes_as_long_as_on_its_slowest_rank() -> None:
    timer = Together(FakeTimer(), Two())
    found = measure(NumpyGrouped(Setup(device="cpu")), {"groups": 1, "m": 1}, timer, Effort(budget=0.0))
    assert isinstance(found, Measured)
    assert found.seconds == pytest.approx(15e-6)
    assert "the slowest of 2 ranks" in timer.note


def test_a_collective_runs_the_rows_of_its_ranks() -> None:
    shapes = preset(CATALOG, "deepseek-dispatch", ("dispatch",)).shapes()
    assert {item["ep"] for item in for_these_ranks("dispatch", shapes, 8)} == {8}
    assert for_these_ranks("copy", [{"bytes": 1}], 1) == [{"bytes": 1}]
    for world in (1, 7):
        with pytest.raises(InputError, match="torchrun"):
            for_these_ranks("dispatch", shapes, world)


class Stream:
    """A stream that keeps what is written."""

    def __init__(self, *, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def __call__(self, text: str, /, *, end: str = "\n") -> None:
        self.text += text + end


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_has_the_time_left(terminal: bool) -> None:
    from moeplan.bench.expected import expected
    from moeplan.bench.harness import Refused
    from moeplan.bench.session import Outcome
    from moeplan.ops.machine import Machine
    from moeplan.specs.cluster import Cluster

    gpu = CATALOG.gpu("h800")
    machine = Machine.of(Cluster(gpu=gpu, nic=CATALOG.nic("cx7"), gpus_per_node=8, nics_per_node=8), CATALOG)
    shapes: list[Shape] = [{"bytes": 1 << power} for power in range(3)]
    ticks = iter([0.0, 0.0, 12.0, 24.0])
    out, err = Stream(terminal=terminal), Stream(terminal=terminal)
    view = View("copy", shapes, out=out, err=err, clock=lambda: next(ticks))
    session: Any = SimpleNamespace(rows=SimpleNamespace(path="x.csv"), written=0)
    view.opens(session, "a kernel", shapes)
    for item in shapes:
        cost = expected("copy", item, machine)
        view.before(item, cost)
        view.after(Outcome(shape=item, predicted=cost, result=Refused("no")))
    view.closes()
    assert "2 of 3: bytes 2; 24 s left" in err.text
    assert "3 of 3: bytes 4; 12 s left" in err.text
    assert ("\x1b8\x1b[K" in err.text) is terminal
    assert "\x1b" not in out.text
    assert "3 refused" in out.text
