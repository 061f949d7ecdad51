"""The Triton source; imported by triton_grouped when it is run, since it needs Triton to be imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from moeplan.bench.libraries import load

triton: Any = load("triton")
tl: Any = load("triton.language")
if TYPE_CHECKING:
    constexpr: TypeAlias = Any
else:
    constexpr = tl.constexpr


def _grouped_gemm(  # type: ignore[no-untyped-def]  # Triton takes an annotation for one of its own
    a, a_scale, b, b_scale, out, m, n, k, block_m: constexpr, block: constexpr
):
    """(groups, m, k) by (groups, n, k) → (groups, m, n); one program per tile of block_m × block."""
    group = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * block_m + tl.arange(0, block_m)
    columns = tl.program_id(0) * block + tl.arange(0, block)
    inner = tl.arange(0, block)
    parts = k // block
    left = a + group * m * k + rows[:, None] * k + inner[None, :]
    right = b + group * n * k + columns[None, :] * k + inner[:, None]
    left_scale = a_scale + (group * m + rows) * parts
    right_scale = b_scale + (group * tl.cdiv(n, block) + tl.program_id(0)) * parts
    total = tl.zeros((block_m, block), dtype=tl.float32)
    for part in range(parts):
        x = tl.load(left + part * block, mask=rows[:, None] < m, other=0.0)
        y = tl.load(right + part * block, mask=columns[None, :] < n, other=0.0)
        scale = tl.load(left_scale + part, mask=rows < m, other=0.0) * tl.load(right_scale + part)
        total += tl.dot(x, y) * scale[:, None]
    place = out + group * m * n + rows[:, None] * n + columns[None, :]
    tl.store(place, total.to(tl.bfloat16), mask=(rows[:, None] < m) & (columns[None, :] < n))


grouped_gemm: Any = triton.jit(_grouped_gemm)
