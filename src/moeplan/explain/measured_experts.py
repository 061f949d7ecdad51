"""Measured expert layers under expert parallelism, for drawing beside curves and for holding claims against."""

from __future__ import annotations

import csv

from msgspec import Struct

from moeplan.errors import InputError
from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, read_mapping

NAME = "wide_ep_experts"


class MeasuredExperts(Struct, frozen=True, kw_only=True):
    """One rank's expert layer: both products, activation and quantisation; batch: tokens per rank of the EP group."""

    gpu: str
    ep: int
    batch: float
    seconds: float


class ExpertsSource(Struct, frozen=True, kw_only=True):
    """What was measured, for which model, and where it was read."""

    title: str
    model: str
    source: str


def measured_experts(catalog: Catalog) -> tuple[ExpertsSource, tuple[MeasuredExperts, ...]]:
    """Read the packaged measurements; raise InputError."""
    path = catalog.data_file("observations", f"{NAME}.yaml")
    source = build(ExpertsSource, read_mapping(path), str(path))
    try:
        with path.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
            rows = tuple(
                MeasuredExperts(
                    gpu=row["gpu"],
                    ep=int(row["ep"]),
                    batch=int(row["tokens"]) / int(row["ep"]),
                    seconds=float(row["seconds"]),
                )
                for row in csv.DictReader(file)
            )
    except (OSError, KeyError, ValueError) as error:
        raise InputError(str(path.with_suffix(".csv")), []) from error
    return source, rows
