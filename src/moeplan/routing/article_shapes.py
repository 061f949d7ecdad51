"""Grouped-GEMM shapes as the grouped-GEMM article estimates them: its equations 1 to 7."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from moeplan.kinds import Real


class ArticleShapes(Struct, frozen=True, kw_only=True, eq=False):
    """What the article says of one rank in one step; scalars or arrays."""

    tokens_per_rank: Real  # eq. 1
    rows_per_rank: Real  # eq. 2
    largest_rows: Real  # eq. 3: for the skew α
    groups: Real  # eq. 4: an upper bound, which the article takes as the estimate
    rows_per_expert: Real  # eq. 5
    rows_rounded_up: Real  # eq. 7, for any E and K


def article_shapes(batch: Real, *, q_len: Real, ep: Real, experts: int, top_k: int, skew: Real = 1.0) -> ArticleShapes:
    """Equations 1 to 7 for `batch` requests per rank, B held fixed when ep (D) moves.

    T_node = B·Q (1), rows = B·Q·K (2), m_max ≤ α·B·Q·K/E_node (3), num_groups ≤ min(E/D, B·Q·K) (4),
    E[m] = B·Q·K·D/E (5); ⌈·⌉ of it (7).
    """
    tokens = batch * q_len
    rows = tokens * top_k
    per_expert = rows * ep / experts
    rounded: Real = np.ceil(per_expert - 1e-9)
    return ArticleShapes(
        tokens_per_rank=tokens,
        rows_per_rank=rows,
        largest_rows=skew * per_expert,
        groups=np.minimum(experts / ep, rows),
        rows_per_expert=per_expert,
        rows_rounded_up=rounded,
    )


def special_case(batch: Real, *, q_len: Real, ep: Real) -> tuple[Real, Real]:
    """num_groups = 8·min(32/D, B·Q) (eq. 6) and m = ⌈B·Q·D/32⌉ (eq. 7), for 256 experts and top-8 only."""
    return 8 * np.minimum(32 / ep, batch * q_len), np.ceil(batch * q_len * ep / 32)
