"""The batch article: its formulas, its measurements, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import numpy as np
from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.kinds import Real
from moeplan.routing.coverage import NO_LIMIT, GroupLimit
from moeplan.routing.padding import padded_rows
from moeplan.routing.targets import distinct_targets
from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, read_mapping


def turning_point(ridge: float, weight_bytes: float, active: float) -> float:
    """Tokens at which multiplying takes as long as reading all weights: B* = Ridge · W_total · bpp / (2 · N_active).

    ridge in FLOP per byte, weight_bytes = W_total · bpp, active parameters per token. It takes full coverage, weights
    dealt evenly and no operator but the weights' GEMMs; it is not the best batch to serve (batch article, B*).
    """
    return ridge * weight_bytes / (2.0 * active)


def turning_tile(ridge: float, bytes_per_weight: float) -> float:
    """Rows of a tile at which it turns from memory to arithmetic: BM* = Ridge · bpp / 2 (batch article, BM*).

    A tile of BM rows does 2·BM FLOP per weight, whatever the true rows: below BM* padding hides behind the weights.
    """
    return ridge * bytes_per_weight / 2.0


def tile_waste(rows: Real, tile: int) -> Real:
    """FLOP done over FLOP asked: ⌈M_e / BM⌉ · BM / M_e (batch article, tile waste)."""
    return padded_rows(rows, tile) / rows


def target_ranks(ranks: Real, top_k: int) -> Real:
    """Ranks that a token goes to, each once: C = P · [1 − (1 − 1/P)^k], experts drawn one by one (batch article)."""
    result: Real = ranks * (1.0 - (1.0 - 1.0 / ranks) ** top_k)
    return result


def distinct_target_ranks(ranks: float, top_k: int, experts: int, limit: GroupLimit = NO_LIMIT) -> float:
    """The same for k distinct experts: C = P · [1 − binom(E − E/P, k) / binom(E, k)].

    Under a group limit the k lie in `taken` of `count` groups: of the h groups that a rank has experts of, a are taken
    by the hypergeometric law, and its experts in them are missed. Exact where P divides the groups, or they divide P.
    """
    found = distinct_targets(ranks, experts=experts, top_k=top_k, groups=limit.count, top_groups=limit.taken)
    return float(found)


def statistical_skew(ranks: float, spread: float, experts_per_rank: float) -> float:
    """Load of the fullest rank over the mean: S0 = 1 + √(2 ln P) · CV_e / √e (batch article, EPLB, source 1).

    spread: CV_e, standard deviation over mean of the experts' loads.
    """
    return float(1.0 + np.sqrt(2.0 * np.log(ranks)) * spread / np.sqrt(experts_per_rank))


def sampling_floor(ranks: Real, rows: Real) -> Real:
    """What sampling alone puts on the fullest rank beyond the mean: √(2 ln P) / √rows. Only batch lowers it."""
    result: Real = np.sqrt(2.0 * np.log(ranks)) / np.sqrt(rows)
    return result


def gain_of_balancing(share: Real, gain: Real) -> Real:
    """Speed-up of the step where a share of it gets faster by `gain`: 1 / (f/(S0/S1) + 1 − f) (batch article, EPLB)."""
    return 1.0 / (share / gain + 1.0 - share)


def gain_of_hiding(share: Real) -> Real:
    """At most what hiding a share of the step can gain: 1 / (1 − share) (batch article, DeepEP)."""
    return 1.0 / (1.0 - share)


class Sample(Struct, frozen=True, kw_only=True):
    """One batch of the measurement: seconds per output token with CUDA graphs and without."""

    batch: int
    graph: Annotated[float, "s"]
    tokens_per_second: float | None = None
    eager: Annotated[float | None, "s"] = None


class Accepted(Struct, frozen=True, kw_only=True):
    """Tokens gained per step with drafts, for one kind of prompt; excluded: why no conclusion may rest on it."""

    prompts: str
    least: float
    most: float
    excluded: str = ""

    @property
    def tokens_per_step(self) -> float:
        """The middle of the range; raise InputError for prompts that mislead."""
        if self.excluded:
            raise InputError("acceptance", [Fault(self.prompts, self.excluded, "take natural language")])
        return (self.least + self.most) / 2


class OperatorCount(Struct, frozen=True, kw_only=True):
    """Operators of the measured model, counted as a step's."""

    layers: int
    per_layer: int
    outside: int

    @property
    def total(self) -> int:
        """All operators of a step."""
        return self.layers * self.per_layer + self.outside


class PrintedShape(Struct, frozen=True, kw_only=True):
    """A row of the article's table; built_in: the model here; sparsity: what the article prints."""

    model: str
    sparsity: float
    built_in: str | None = None
    experts: int | None = None
    top_k: int | None = None
    width: int | None = None


class OneNode(Struct, frozen=True, kw_only=True):
    """Low-latency kernels inside a node; ranges low to high, neither batch nor card stated.

    targets: ranks that a token goes to; hidden_share: of the communication, hidden by the receive hook.
    """

    ranks: int
    experts: int
    top_k: int
    hidden: int
    targets: tuple[float, ...]
    dispatch: Annotated[tuple[float, ...], "s"]
    combine: Annotated[tuple[float, ...], "s"]
    hidden_share: tuple[float, ...]


class BatchArticle(Struct, frozen=True, kw_only=True):
    """data/article/batch_article.yaml."""

    source: str
    setup: str
    cards: int
    weights: Annotated[float, "B"]
    bandwidth: Annotated[float, "B/s"]
    peak_bandwidth: Annotated[float, "B/s"]
    peak: Annotated[float, "FLOP/s"]
    effective_peak: Annotated[float, "FLOP/s"]
    experts: int
    top_k: int
    samples: tuple[Sample, ...]
    drafts: int
    drafted: tuple[Sample, ...]
    accepted: tuple[Accepted, ...]
    operators: OperatorCount
    one_node: OneNode
    shapes: tuple[PrintedShape, ...]

    @property
    def tpot(self) -> dict[int, float]:
        """Seconds per output token by batch, with CUDA graphs and no drafts."""
        return {sample.batch: sample.graph for sample in self.samples}

    @property
    def full_weight_floor(self) -> float:
        """Seconds to read all weights once, dealt over the cards: 397 GB / 8 / 3.33 TB/s.

        A floor only at full coverage: small batches read the experts they hit and no more, and are faster than it.
        """
        return self.weights / self.cards / self.bandwidth

    @property
    def eager_step(self) -> float:
        """The mean eager step: flat over the batch, so the host's launches and not the kernels take it."""
        eager = [sample.eager for sample in self.samples if sample.eager is not None]
        return sum(eager) / len(eager)

    @property
    def host_launch(self) -> float:
        """Host seconds per operator of an eager step: the flat step over the operators counted.

        One operator of a step stands for several launches of an unfused engine and the Python around them, which is
        why it is far above the 5 to 10 µs of a bare CUDA launch. Fitted to one model on one host.
        """
        return self.eager_step / self.operators.total

    def over_floor(self, batch: int) -> float:
        """A step over the full-weight floor; the rest may not be split by subtraction.

        Reading, multiplying and communicating overlap and none runs at its peak: the difference is not «overhead».
        """
        return self.tpot[batch] / self.full_weight_floor

    def drafted_step(self, batch: int) -> float:
        """A step that verifies the drafts over one without, by what natural language accepts."""
        tpot = {sample.batch: sample.graph for sample in self.drafted}[batch]
        natural = next(item for item in self.accepted if not item.excluded)
        return tpot * natural.tokens_per_step / self.tpot[batch]


class WithinLimit(Struct, frozen=True, kw_only=True):
    """What a list of sampled batches says about a limit on TPOT: the largest that meets it, the least that does not.

    The largest batch that meets it lies between the two: samples do not find it. None: no sample does.
    """

    meets: int | None
    misses: int | None


def within(tpot: Mapping[int, float], limit: float) -> WithinLimit:
    """Read a limit on seconds per output token off measured ones by batch; at the limit itself counts as met."""
    met = [batch for batch, seconds in tpot.items() if seconds <= limit]
    missed = [batch for batch, seconds in tpot.items() if seconds > limit]
    return WithinLimit(meets=max(met, default=None), misses=min(missed, default=None))


@lru_cache(maxsize=4)
def batch_article(catalog: Catalog) -> BatchArticle:
    """Read the article's data file."""
    path = catalog.data_file("article", "batch_article.yaml")
    return build(BatchArticle, read_mapping(path), str(path))
