"""How many ranks, or nodes, one token's experts lie on: what an all-to-all that sends each token once has to send."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from moeplan.kinds import Array, Real


def distinct_targets(places: Real, *, experts: Real, top_k: Real, groups: Real = 1.0, top_groups: Real = 1.0) -> Array:
    """Of P places with E/P experts each those that k different experts lie in: P·[1 − C(E − E/P, k) / C(E, k)].

    Exact for even routing; a token's own place counts. Under a limit the k lie in top_groups of `groups` groups: of the
    h groups that a place has experts of, a are taken by the hypergeometric law, and its experts in them are missed.
    Exact where the places divide the groups, or the groups them. Scalars or arrays that broadcast together.
    """
    values = np.broadcast_arrays(
        *(np.asarray(each, dtype=float) for each in (places, experts, top_k, groups, top_groups))
    )
    keys, where = np.unique(np.stack([each.ravel() for each in values], axis=-1), axis=0, return_inverse=True)
    found = np.array([_one(*key) for key in keys.tolist()])
    return found[np.ravel(where)].reshape(values[0].shape)


@lru_cache(maxsize=65536)
def _one(places: float, experts: float, top_k: float, groups: float, top_groups: float) -> float:
    count, allowed = round(groups), round(top_groups)
    held = max(round(groups / places), 1)
    pool, own = allowed * experts / count, experts / places / held
    idle = 0.0
    for taken in range(min(held, allowed) + 1):
        if count - held < allowed - taken:
            continue
        ways = math.comb(held, taken) * math.comb(count - held, allowed - taken) / math.comb(count, allowed)
        missed = math.prod(max(pool - taken * own - drawn, 0.0) / (pool - drawn) for drawn in range(round(top_k)))
        idle += ways * missed
    return places * (1.0 - idle)
