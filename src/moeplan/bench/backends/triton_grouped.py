"""A plain Triton grouped product whose row tile can be chosen: the batch article's sweep of BM."""

from __future__ import annotations

from moeplan.bench.backends import fp8
from moeplan.bench.backends.base import Backend, Ready
from moeplan.bench.backends.grouped_data import GroupedData
from moeplan.bench.family import Shape
from moeplan.bench.libraries import load


class TritonGrouped(Backend):
    """`groups` products of m rows each over tiles of block_m × 128; not the kernel of any engine."""

    backend = "triton"
    libraries = ("torch", "triton")
    tiles = True
    by_name_only = True

    @property
    def block_m(self) -> int:
        """Rows of a tile; Triton multiplies no fewer than 16."""
        return self.setup.block_m or 64

    @property
    def name(self) -> str:
        """Version, formats, tile."""
        return f"moeplan's Triton {self.version()} grouped fp8 gemm, 1x128 and 128x128 scales, block_m {self.block_m}"

    @property
    def table(self) -> str:
        """The family's own."""
        return "grouped_gemm_fp8"

    @property
    def tile_rows(self) -> int:
        """The tile that was asked for."""
        return self.block_m

    def prepare(self, shape: Shape) -> Ready:
        """Quantise random operands; every group has exactly m rows."""
        kernel = load("moeplan.bench.backends.triton_kernel").grouped_gemm
        data = GroupedData(self, shape, room=shape["m"])
        tiles = (-(-data.n // fp8.BLOCK), -(-data.m // self.block_m), data.groups)

        def run() -> None:
            operands = (data.a, data.a_scale, data.b, data.b_scale, data.out)
            kernel[tiles](*operands, data.m, data.n, data.k, block_m=self.block_m, block=fp8.BLOCK, num_stages=4)

        return Ready(run, data.check)
