"""The batch of one rank, and what the grouped GEMM makes of it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from moeplan.engines.rules.flags.launched import LaunchedLayout
from moeplan.errors import Fault, InputError
from moeplan.kinds import Real
from moeplan.routing.slots import Slots, deal

RUNNING_FLAG = {"sglang": "--max-running-requests", "vllm": "--max-num-seqs", "trtllm": "max_batch_size"}


class RankBatch(Struct, frozen=True, kw_only=True, eq=False):
    """One decode step as a rank sees it, in the letters of the grouped-GEMM article.

    batch: B, requests of the fullest attention-DP rank; tokens: T_node = B · Q; data_ranks: D, the attention ranks
    whose tokens meet in one EP group; slots: the expert slots of the group, slots.per_full_rank is E_node;
    rows_per_slot: E[m] = B · Q · D · K / slots, of the whole expert where moe_tp cuts it. queued: requests of
    the instance that wait.
    """

    batch: Real
    q_len: int
    tokens: Real
    data_ranks: float
    group_tokens: Real
    slots: Slots
    rows_per_slot: Real
    queued: Real = 0.0


def rank_batch(
    layout: LaunchedLayout,
    *,
    experts: int,
    top_k: int,
    per_rank: Real | None = None,
    concurrency: Real | None = None,
) -> RankBatch:
    """B per attention-DP rank from requests `per_rank`, or from the `concurrency` of the whole server.

    Concurrency is shared evenly by all ranks of all replicas, and by pp micro-batches where there are stages; the
    fullest rank takes the rounded-up share, and no more than its --max-running-requests, --max-num-seqs or
    max_batch_size: the rest waits (queued). per_rank is what one rank runs in one step.
    Raises InputError when not exactly one is given, when it is below 1, when per_rank is above what the server lets
    one rank run, and when a rank has no expert.
    """
    if (per_rank is None) == (concurrency is None):
        fix = "give requests per rank, or the concurrency of the whole server"
        raise InputError("batch", [Fault("batch", "is not given" if per_rank is None else "is given twice", fix)])
    given = per_rank if per_rank is not None else concurrency
    assert given is not None
    if not np.all(np.isfinite(given) & np.greater_equal(given, 1)):
        raise InputError("batch", [Fault("batch", f"is {given}", "give at least 1 request")])
    most = layout.max_running_per_rank
    queued: Real = 0.0 * given
    if per_rank is not None:
        batch = per_rank
        if most is not None and np.any(np.greater(batch, most)):
            over = np.ravel(batch)[np.ravel(np.greater(batch, most))]
            fix = f"raise {RUNNING_FLAG.get(layout.engine, 'its limit')}, or give at most {most}"
            problem = f"is {', '.join(f'{one:g}' for one in over)} per rank, the server runs at most {most}"
            raise InputError("batch", [Fault("batch", problem, fix)])
    else:
        assert concurrency is not None
        running = concurrency if most is None else np.minimum(concurrency, most * layout.ranks)
        queued = concurrency - running
        batch = np.ceil(running / (layout.ranks * layout.pp))
    ranks = layout.dp / layout.moe_dp
    slots = deal(experts, layout.ep, layout.redundant)
    tokens = batch * layout.q_len
    return RankBatch(
        batch=batch,
        q_len=layout.q_len,
        tokens=tokens,
        data_ranks=ranks,
        group_tokens=tokens * ranks,
        slots=slots,
        rows_per_slot=tokens * ranks * (top_k / slots.total),
        queued=queued,
    )
