"""The MFU figures that the throughput article publishes, against its formulas worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from moeplan.kernels.article import ArticleFigures
from moeplan.kernels.library import KernelLibrary
from moeplan.kernels.origin import Origin
from moeplan.kernels.sources import ARTICLE
from moeplan.kinds import Real
from moeplan.specs.catalog import Catalog
from moeplan.specs.precision import weight_format

CATALOG = Catalog.standard()
FIGURES: ArticleFigures = KernelLibrary.of(CATALOG.gpu("h800"), CATALOG, ARTICLE).article
DEEP = 289 / 1979  # «at least 15 %» for deep k


@pytest.mark.parametrize(
    ("m", "n", "k", "mfu"),
    [
        # k is the smallest: 50 TFLOP/s up to 64, +50 per doubling to 1024, then 260, of A100's 312
        (128, 512, 32, 50 / 312),
        (128, 512, 64, 50 / 312),
        (256, 512, 128, 100 / 312),
        (4096, 4096, 256, 150 / 312),
        (4096, 4096, 512, 200 / 312),
        (4096, 4096, 512 * math.sqrt(2), 225 / 312),
        (4096, 4096, 1023.999999, 250 / 312),
        (4096, 4096, 1024, 260 / 312),
        (8192, 8192, 4096, 260 / 312),
        # otherwise min(m, n): 30 up to 256, +200/3 per doubling to 2048, then 260
        (128, 7168, 512, 30 / 312),
        (256, 7168, 4096, 30 / 312),
        (512, 7168, 4096, (30 + 200 / 3) / 312),
        (1024, 7168, 4096, (30 + 400 / 3) / 312),
        (2047.999999, 7168, 4096, 230 / 312),
        (2048, 7168, 4096, 260 / 312),
        (7168, 512, 4096, (30 + 200 / 3) / 312),  # m and n are alike
        (128, 512, 128, 30 / 312),  # k equal to the smaller of m and n is not below it
        # the author's patch: k > 4096, the larger of m and n from 1536, the smaller from 64
        (128, 7168, 16384, DEEP),
        (64, 7168, 16384, DEEP),
        (63, 7168, 16384, 30 / 312),
        (64, 1536, 4097, DEEP),
        (64, 1535, 4097, 30 / 312),
        (64, 1536, 4096, 30 / 312),
        (512, 7168, 16384, (30 + 200 / 3) / 312),  # above the floor already
    ],
)
def test_gemm_curve(m: float, n: float, k: float, mfu: float) -> None:
    found = FIGURES.gemm(m=m, n=n, k=k)
    assert found.compute == pytest.approx(mfu, rel=1e-6)
    assert found.memory == 1.0
    assert found.origin is Origin.ASSUMED
    assert "throughput article" in found.source


@pytest.mark.parametrize(
    ("rows", "gate_up", "down"),
    [
        (1, 287, 295),
        (63, 287, 295),
        (64, 287, 295),
        (127.9, 287, 295),
        (128, 533, 510),
        (255, 533, 510),
        (256, 932, 815),
        (511, 932, 815),
        (512, 1040, 916),
        (1023, 1040, 916),
        (1024, 1233, 925),
        (1e6, 1233, 925),
    ],
)
def test_grouped_steps(rows: float, gate_up: float, down: float) -> None:
    assert FIGURES.grouped_gemm(rows=rows, down=False).compute == pytest.approx(gate_up / 1979)
    assert FIGURES.grouped_gemm(rows=rows, down=True).compute == pytest.approx(down / 1979)


@pytest.mark.parametrize(
    ("heads_times_q", "rate"),
    [(128, 510), (256, 550), (128 * math.sqrt(2), 530), (64, 510), (16, 510), (512, 550)],
)
def test_flash_mla_factor(heads_times_q: float, rate: float) -> None:
    assert FIGURES.mla(heads_times_q=heads_times_q, h20=False).compute == pytest.approx(rate / 989)
    assert FIGURES.mla(heads_times_q=heads_times_q, h20=True).compute == pytest.approx(125 / 148)


def test_arrays_are_the_matching_scalars() -> None:
    m, rows = np.array([[1.0], [64.0], [500.0], [5000.0]]), np.array([1.0, 64.0, 200.0, 2000.0])
    n, k = np.array([256.0, 7168.0, 512.0, 8192.0]), np.array([32.0, 16384.0, 4096.0, 700.0])
    grid = np.asarray(FIGURES.gemm(m=m, n=n, k=k).compute)
    for i, j in np.ndindex(4, 4):
        one = FIGURES.gemm(m=float(m[i, 0]), n=float(n[j]), k=float(k[j])).compute
        assert grid[i, j] == pytest.approx(one, rel=1e-12)

    def each(function: object, values: np.ndarray) -> list[Real]:
        assert callable(function)
        return [function(float(value)) for value in values]

    steps = FIGURES.grouped_gemm(rows=rows, down=False).compute
    assert steps == pytest.approx(each(lambda r: FIGURES.grouped_gemm(rows=r, down=False).compute, rows))
    for h20 in (False, True):
        factors = FIGURES.mla(heads_times_q=rows, h20=h20).compute
        assert factors == pytest.approx(each(lambda r, h20=h20: FIGURES.mla(heads_times_q=r, h20=h20).compute, rows))


def test_the_h20_factor_belongs_to_weak_arithmetic() -> None:
    """H20: 148 TFLOP/s beside 4 TB/s; H800: 989 beside 3.35."""
    bf16 = weight_format("bf16")
    for name, mfu in (("h20", 125 / 148), ("h800", 510 / 989), ("a100", 510 / 989), ("b200", 510 / 989)):
        library = KernelLibrary.of(CATALOG.gpu(name), CATALOG, ARTICLE)
        found = library.mla(batch=32, q_len=1, context=5000, heads=128, core=bf16, cache=bf16)
        assert found.compute == pytest.approx(mfu), name


def test_the_library_hands_out_the_articles_figures_when_asked() -> None:
    library = KernelLibrary.of(CATALOG.gpu("h800"), CATALOG, ARTICLE)
    fp8 = weight_format("fp8_block")
    assert library.gemm(m=128, n=7168, k=16384, weights=fp8).compute == pytest.approx(DEEP)
    up = library.grouped_gemm(rows_per_group=300, groups=2, n=4096, k=7168, weights=fp8, down=False)
    down = library.grouped_gemm(rows_per_group=300, groups=2, n=7168, k=2048, weights=fp8, down=True)
    assert up.compute == pytest.approx(932 / 1979)
    assert down.compute == pytest.approx(815 / 1979)
    assert up.origin is Origin.ASSUMED
