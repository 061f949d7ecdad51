"""The balancer that everybody uses, as a yardstick: the heuristic of DeepSeek's EPLB, written anew from its README.

github.com/deepseek-ai/EPLB: replicas one by one to the expert with the most load per replica; replicas packed heaviest
first onto the emptiest rank with room. The hierarchical variant packs groups of experts onto nodes first, then treats
every node alone.
"""

from __future__ import annotations

import numpy as np

from moeplan.kinds import Array
from moeplan.routing.expert_map import ExpertMap, Whole
from moeplan.routing.packing import packed
from moeplan.routing.replicas import replicas


def published_eplb(loads: Array, *, slots: int, ranks: int, nodes: int = 1, groups: int = 1) -> ExpertMap:
    """Place (layers, experts) loads in `slots` slots of `ranks` ranks; nodes above 1 is the hierarchical variant.

    Sizes must divide: experts by groups, groups by nodes, ranks by nodes, slots by ranks.
    """
    layers, experts = loads.shape
    held = on_nodes(loads, packed_groups(loads, nodes=nodes, groups=groups), groups=groups)
    local = np.take_along_axis(loads, held.reshape(layers, experts), axis=1).reshape(layers * nodes, -1)
    counts = replicas(local, slots=slots // nodes, most=slots)
    pack = packed(local, counts, ranks=ranks // nodes, apart=False)
    expert = np.take_along_axis(held.reshape(layers * nodes, -1), pack.expert.reshape(layers * nodes, -1), axis=1)
    return ExpertMap(expert=expert.reshape(layers, slots), experts=experts, ranks=ranks)


def packed_groups(loads: Array, *, nodes: int, groups: int) -> Whole:
    """Groups of experts by node, heaviest first to the emptiest node with room: (layers, nodes, groups of a node)."""
    layers = len(loads)
    if nodes == 1:
        return np.broadcast_to(np.arange(groups), (layers, 1, groups))
    of_group = loads.reshape(layers, groups, -1).sum(axis=2)
    return packed(of_group, np.ones((layers, groups), dtype=np.int64), ranks=nodes, apart=False).expert


def on_nodes(loads: Array, group: Whole, *, groups: int) -> Whole:
    """Experts of every node, from its groups: (layers, nodes, experts of a node)."""
    layers, experts = loads.shape
    size = experts // groups
    inside = group[:, :, :, None] * size + np.arange(size)
    result: Whole = inside.reshape(layers, group.shape[1], -1)
    return result
