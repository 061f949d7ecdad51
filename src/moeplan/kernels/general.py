"""Figures that hold for a family of kernels where no table of the shape exists: floors, shares, gaps."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from msgspec import Struct

from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, read_mapping


class GeneralFigures(Struct, frozen=True, kw_only=True, eq=False):
    """Read from data/kernels/general.yaml; seconds and shares of a rate."""

    elementwise_floor: Annotated[float, "s"]
    elementwise_share: float
    elementwise_source: str
    launch_gap: Annotated[float, "s"]
    launch_gap_source: str
    gqa_floor: Annotated[float, "s"]
    gqa_memory_share: float
    gqa_compute_share: float
    gqa_source: str
    all_to_all_latency: Annotated[float, "s"]
    nvlink_share_dispatch: float
    nvlink_share_combine: float
    all_to_all_source: str
    scale_up_sm_share: float
    scale_up_sm_share_source: str
    all_reduce_one_shot: Annotated[float, "s"]
    all_reduce_one_shot_share: float
    all_reduce_two_shot: Annotated[float, "s"]
    all_reduce_two_shot_share: float
    all_reduce_source: str
    step_overhead: Annotated[float, "s"]
    step_overhead_source: str
    serial_overhead: Annotated[float, "s"]
    serial_overhead_source: str


@lru_cache(maxsize=8)
def general_figures(catalog: Catalog) -> GeneralFigures:
    """Read the figures of the data folder."""
    path = catalog.data_file("kernels", "general.yaml")
    return build(GeneralFigures, read_mapping(path), str(path))
