"""Figures that hold for a family of kernels where no table of the shape exists: floors, shares, gaps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, quantity, read_mapping


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GeneralFigures:
    """Read from data/kernels/general.yaml; seconds and shares of a rate."""

    elementwise_floor: float = quantity("s")
    elementwise_share: float
    elementwise_source: str
    launch_gap: float = quantity("s")
    launch_gap_source: str
    gqa_floor: float = quantity("s")
    gqa_memory_share: float
    gqa_compute_share: float
    gqa_source: str
    all_to_all_latency: float = quantity("s")
    nvlink_share_dispatch: float
    nvlink_share_combine: float
    all_to_all_source: str
    scale_up_sm_share: float
    scale_up_sm_share_source: str
    all_reduce_one_shot: float = quantity("s")
    all_reduce_one_shot_share: float
    all_reduce_two_shot: float = quantity("s")
    all_reduce_two_shot_share: float
    all_reduce_source: str
    step_overhead: float = quantity("s")
    step_overhead_source: str
    serial_overhead: float = quantity("s")
    serial_overhead_source: str


@lru_cache(maxsize=8)
def general_figures(catalog: Catalog) -> GeneralFigures:
    """Read the figures of the data folder."""
    path = catalog.data_file("kernels", "general.yaml")
    return build(GeneralFigures, read_mapping(path), str(path))
