"""PyTorch's kernels on the CPU, where PyTorch is installed: results right, wrong ones noticed. No time is taken."""

from __future__ import annotations

import pytest

from moeplan.bench.backends import fp8
from moeplan.bench.backends.base import Backend, Setup
from moeplan.bench.backends.torch_bmm import TorchBmm
from moeplan.bench.backends.torch_copy import TorchCopy
from moeplan.bench.backends.torch_gemm import TorchScaledMm
from moeplan.bench.backends.torch_mla import TorchMla
from moeplan.bench.family import Shape

torch = pytest.importorskip("torch")

CASES: list[tuple[type[Backend], Shape]] = [
    (TorchScaledMm, {"m": 8, "n": 192, "k": 256}),
    (TorchBmm, {"copies": 3, "m": 8, "n": 128, "k": 512}),
    (TorchMla, {"batch": 2, "heads": 16, "q_len": 1, "context": 100}),
    (TorchMla, {"batch": 2, "heads": 16, "q_len": 2, "context": 100}),
    (TorchCopy, {"bytes": 1000}),
]


@pytest.mark.parametrize(("backend", "shape"), CASES)
def test_results_are_right(backend: type[Backend], shape: Shape) -> None:
    kernel = backend(Setup(device="cpu"))
    prepared = kernel.prepare(shape)
    prepared.before()
    prepared.run()
    assert prepared.check() <= kernel.tolerance
    assert kernel.name.startswith("torch ")


def test_quantising_loses_little_and_pads_no_block() -> None:
    x = torch.randn(200, 256)
    for rows in (1, 128):
        narrow, scale = fp8.quantise(torch, x, rows)
        assert narrow.shape == x.shape
        assert scale.shape == (-(-200 // rows), 2)
        assert torch.equal(torch.log2(scale).round().exp2(), scale)
        wide = fp8.widen(narrow, scale, rows)
        assert float((wide - x).norm() / x.norm()) < 0.04
    with pytest.raises(ValueError, match="no multiple"):
        fp8.quantise(torch, torch.randn(4, 100), 1)
