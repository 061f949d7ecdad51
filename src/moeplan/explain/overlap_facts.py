"""What was measured about overlap and about one node's all-to-all, beside the prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.explain.batch_article import OneNode, batch_article, distinct_target_ranks
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.ops.machine import Machine
from moeplan.predict import Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import LOW_LATENCY
from moeplan.specs.exchange import Direction, exchange
from moeplan.validate.steps import predict_row, published

SPLIT, WHOLE = "two-batch", "no overlap"  # ends of the names of a pair's rows
CARDS = ("h800", "h100", "h20", "h200")  # the batch article does not say which; all that its DeepEP runs on
BATCHES = (1, 8, 16, 32, 64, 128)
BOTH: tuple[Direction, ...] = ("dispatch", "combine")


class OverlapPair(Struct, frozen=True, kw_only=True):
    """Throughput with two-batch overlap over that without, at a batch per GPU."""

    batch: int
    measured: float
    predicted: float

    @property
    def agrees(self) -> bool:
        """Whether both say that it pays, or both that it does not."""
        return (self.measured > 1.0) == (self.predicted > 1.0)


class OneNodeTimes(Struct, frozen=True, kw_only=True):
    """One direction on one card, seconds at every batch of 1 … 128; published: the range, its batch not stated."""

    gpu: str
    direction: Direction
    seconds: tuple[float, ...]
    published: tuple[float, float]

    def at(self, batch: int) -> float:
        """Seconds at a batch of 1 to 128."""
        return self.seconds[batch - 1]

    @property
    def inside(self) -> tuple[int, int] | None:
        """The batches between which it lies in the published range; None where it never does."""
        low, high = self.published
        found = [batch for batch, seconds in enumerate(self.seconds, 1) if low <= seconds <= high]
        return (found[0], found[-1]) if found else None


class OverlapFacts(Struct, frozen=True, kw_only=True):
    """turns: the first even batch at which the split is predicted to pay. targets: ranks that a token goes to."""

    setup: str
    pairs: tuple[OverlapPair, ...]
    turns: int | None
    one_node: OneNode
    targets: float
    times: tuple[OneNodeTimes, ...]


def overlap_facts(catalog: Catalog) -> OverlapFacts:
    """Pairs of data/observations/decode_steps.csv, and what the batch article measured inside one node."""
    rows = {row["name"]: row for row in published(catalog) if not row["left_out"]}
    stems = [name.removesuffix(f", {SPLIT}") for name in rows if name.endswith(f"requests, {SPLIT}")]
    pairs = []
    for stem in (stem for stem in stems if f"{stem}, {WHOLE}" in rows):
        split, whole = rows[f"{stem}, {SPLIT}"], rows[f"{stem}, {WHOLE}"]
        steps = [predict_row(catalog, row) for row in (split, whole)]
        pairs.append(
            OverlapPair(
                batch=int(split["batch"]),
                measured=float(split["value"]) / float(whole["value"]),
                predicted=float(steps[0].tps_per_gpu) / float(steps[1].tps_per_gpu),
            )
        )
    node = batch_article(catalog).one_node
    return OverlapFacts(
        setup="DeepSeek-V3 on 72 H100, EP72, contexts of 2,000 (SGLang, May 2025)",
        pairs=tuple(sorted(pairs, key=lambda pair: pair.batch)),
        turns=_turns(catalog, rows[f"{stems[0]}, {SPLIT}"], max(pair.batch for pair in pairs)),
        one_node=node,
        targets=distinct_target_ranks(node.ranks, node.top_k, node.experts),
        times=tuple(_times(catalog, node, gpu, direction) for gpu in CARDS for direction in BOTH),
    )


def _turns(catalog: Catalog, row: dict[str, str], most: int) -> int | None:
    """The first even batch from which the split pays, of one row's deployment."""
    step = predict_row(catalog, row)
    target = Predictor.of(catalog.model(row["model"]), step.cluster, catalog)
    batches = np.arange(2.0, most + 2.0, 2.0)
    split, whole = (
        target.evaluate(replace(step.deployment, batch=batches, schedule=name)).seconds for name in (SPLIT, "naive")
    )
    pays: Sequence[bool] = np.less(split, whole).tolist()
    return int(batches[pays.index(True)]) if any(pays) else None


def _times(catalog: Catalog, node: OneNode, name: str, direction: Direction) -> OneNodeTimes:
    gpu = catalog.gpu(name)
    cluster = Cluster(gpu=gpu, nic=catalog.nic("cx7"), gpus_per_node=gpu.gpus_per_node, nics_per_node=gpu.gpus_per_node)
    cost = all_to_all(
        direction,
        Machine.of(cluster, catalog),
        exchange(LOW_LATENCY),
        tokens=np.arange(1.0, BATCHES[-1] + 1.0),
        hidden=node.hidden,
        top_k=node.top_k,
        experts=node.experts,
        ep=node.ranks,
        precision="fp8",
    )
    low, high = node.dispatch if direction == "dispatch" else node.combine
    return OneNodeTimes(
        gpu=gpu.name, direction=direction, seconds=tuple(np.asarray(cost.seconds).tolist()), published=(low, high)
    )
