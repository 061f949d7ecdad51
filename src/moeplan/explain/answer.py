"""The answer of a plan over several GPUs and NICs, and how they are ranked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from moeplan.explain.alternatives import Alternative
from moeplan.explain.attention_cut import CutGain
from moeplan.explain.shortfall import Shortfall
from moeplan.predict import Prediction
from moeplan.search.best import Found
from moeplan.search.pareto import FrontPoint


def per_dollar(step: Prediction) -> float | None:
    """Output tokens per dollar, where the GPU's file states a price."""
    price = step.cluster.gpu.price
    return None if not price else float(step.tps_per_gpu) * 3600 / price


def per_watt(step: Prediction) -> float | None:
    """Output tokens per joule of the GPU's TDP, where its file states one."""
    tdp = step.cluster.gpu.tdp
    return None if not tdp else float(step.tps_per_gpu) / tdp


RANKINGS: Final[dict[str, Callable[[Prediction], float | None]]] = {
    "tok/s": lambda step: float(step.tps_per_gpu),
    "tok/s/$": per_dollar,
    "tok/s/W": per_watt,
}


class Result(Struct, frozen=True, kw_only=True):
    """What was found for one cluster; asked: the options that name it; complete: False after an interrupt.

    left_out: what was asked for and is not tried, or not at every size: all-to-alls, layouts, attention TP sizes; why.
    """

    gpu: str
    nic: str
    asked: Mapping[str, str]
    found: Found | None
    front: tuple[FrontPoint, ...]
    tried: int
    missing: Shortfall | None
    unsupported: str | None  # why this GPU cannot run the model at all
    complete: bool
    left_out: tuple[str, ...] = ()

    @property
    def cluster(self) -> str | None:
        """The name of the cluster, where it was asked for by name."""
        return self.asked.get("cluster")

    @property
    def label(self) -> str:
        """What was searched: GPU and NIC, and the cluster's name."""
        return f"{self.gpu} with {self.nic}" + (f" ({self.cluster})" if self.cluster else "")


class Answer(Struct, frozen=True, kw_only=True):
    """All results; rank_by is a key of RANKINGS.

    alternatives: what each choice of the winner is worth; None where the space is too large to ask, or nothing won.
    compared: False when an interrupt left them out. cut: what cutting the winner's attention elsewhere would give.
    """

    results: tuple[Result, ...]
    rank_by: str
    alternatives: tuple[Alternative, ...] | None = None
    compared: bool = True
    cut: CutGain | None = None

    @property
    def ranked(self) -> list[Result]:
        """The feasible results, the best first; those without the figure that ranks come last."""
        measure = RANKINGS[self.rank_by]

        def key(result: Result) -> float:
            assert result.found is not None
            value = measure(result.found.prediction)
            return float("inf") if value is None else -value

        return sorted((result for result in self.results if result.found is not None), key=key)

    @property
    def winner(self) -> Result | None:
        """The best of all."""
        return self.ranked[0] if self.ranked else None

    @property
    def complete(self) -> bool:
        """Whether everything asked for was searched."""
        return self.compared and all(result.complete for result in self.results)
