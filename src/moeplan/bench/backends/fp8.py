"""FP8 with scales, and back: what the kernels multiply and what their results are held against.

Scales are powers of two, which every architecture takes; what quantising loses is in the reference, too.
"""

from __future__ import annotations

from typing import Any

LARGEST = 448.0  # of e4m3
BLOCK = 128


def quantise(torch: Any, x: Any, rows: int) -> tuple[Any, Any]:
    """(m, k) fp32 → (m, k) e4m3 and (⌈m/rows⌉, k/128) fp32 scales, one per block of rows × 128."""
    m, k = x.shape
    if k % BLOCK:
        raise ValueError(f"k = {k} is no multiple of {BLOCK}")
    blocks = -(-m // rows)
    padded = torch.zeros(blocks * rows, k, dtype=x.dtype, device=x.device)
    padded[:m] = x
    view = padded.view(blocks, rows, k // BLOCK, BLOCK)
    scale = _power_of_two(torch, view.abs().amax(dim=(1, 3)))
    narrow = (view / scale[:, None, :, None]).to(torch.float8_e4m3fn).view(blocks * rows, k)
    return narrow[:m].contiguous(), scale


def widen(narrow: Any, scale: Any, rows: int) -> Any:
    """What quantise() kept, in fp32."""
    wide = scale.repeat_interleave(rows, 0)[: narrow.shape[0]].repeat_interleave(BLOCK, 1)
    return narrow.float() * wide


def quantise_rows(torch: Any, x: Any) -> tuple[Any, Any]:
    """(…, m, k) fp32 → e4m3 and (…, m) fp32 scales, one per row."""
    scale = _power_of_two(torch, x.abs().amax(dim=-1))
    return (x / scale[..., None]).to(torch.float8_e4m3fn), scale


def _power_of_two(torch: Any, largest: Any) -> Any:
    return torch.exp2(torch.ceil(torch.log2(largest.clamp(min=1e-4) / LARGEST)))
