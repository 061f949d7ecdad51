"""Kernel times predicted beside measured: for a CSV, or for the packaged tables with each row left out in turn."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from moeplan.calibrate.tables import SUSPECT
from moeplan.errors import Fault, InputError
from moeplan.kernels.choice import chosen_fit
from moeplan.kernels.correction import AXES, points_of
from moeplan.kernels.measured import KINDS, measured_table
from moeplan.kernels.sources import ALL, KernelSources
from moeplan.kernels.surface import Surface
from moeplan.specs.catalog import Catalog
from moeplan.validate.kernel_rows import COLUMNS, RowReader, kind_of, measured_seconds
from moeplan.validate.not_modelled import NotModelledError
from moeplan.validate.score import Score, score

LEAVE_ONE_OUT_GPUS = ("h800", "h20")


class KernelScores(Struct, frozen=True, kw_only=True):
    """scores by GPU and family; skipped: rows by the reason why nothing stands for them; rows: those scored.

    suspects: those of an all-to-all at less than half the expected speed, which tells of the network, not the kernel.
    """

    title: str
    scores: tuple[Score, ...]
    skipped: dict[str, int]
    rows: tuple[
        tuple[str, str, float, float], ...
    ]  # family, shape, measured, predicted seconds; of tables relative to the measured
    suspects: tuple[tuple[str, str, float, float], ...] = ()


def score_file(
    catalog: Catalog, path: Path, *, trust: str | None = None, least_seconds: float = 0.0, sources: KernelSources = ALL
) -> KernelScores:
    """Score a CSV with the columns of a public collection of gemm, grouped gemm, attention or all-to-all times.

    trust: only rows whose `trust` column says so; least_seconds: only rows that measure as much;
    sources: what may answer, such as fits alone.
    Raises InputError for a file that cannot be read or has other columns.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = list(reader.fieldnames or [])
            rows = [{name: row.get(name) or "" for name in header} for row in reader]  # a short row ends in empty cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(str(path), [Fault(str(path), f"cannot be read: {error}")]) from error
    kind = kind_of(header)
    if kind is None:
        wanted = "; or ".join(f"{name}: {', '.join(columns)}" for name, columns in COLUMNS.items())
        raise InputError(str(path), [Fault("header", "is of no known collection", f"wanted the columns of {wanted}")])
    if not rows:
        raise InputError(str(path), [Fault("rows", "there are none", "give at least one measurement")])
    predictor, skipped = RowReader(catalog, kind, sources), Counter[str]()
    scored: list[tuple[str, str, float, float]] = []
    for row in rows:
        try:
            measured = measured_seconds(kind, row)
        except NotModelledError as error:
            skipped[str(error)] += 1
            continue
        if trust is not None and row.get("trust") != trust:
            skipped[f"trust is not {trust}"] += 1
        elif measured is None:
            skipped["no latency given"] += 1
        elif measured < least_seconds:
            skipped[f"shorter than {least_seconds * 1e6:g} µs"] += 1
        else:
            try:
                predicted = predictor.predict(row)
            except NotModelledError as error:
                skipped[str(error)] += 1
                continue
            family = f"{row['gpu']}, {predicted.family}"
            shape = " ".join(f"{name}={row[name]}" for name in COLUMNS[kind] if name not in ("gpu", "latency_us"))
            scored.append((family, shape, measured, predicted.seconds))
    found = _scores(path.name, scored, dict(skipped))
    return replace(found, suspects=_suspects(scored)) if kind == "all-to-all" else found


def is_wire(path: Path) -> bool:
    """Whether a file has the columns of all-to-alls; one that cannot be read has none."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return kind_of(next(csv.reader(file), [])) == "all-to-all"
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def _suspects(rows: list[tuple[str, str, float, float]]) -> tuple[tuple[str, str, float, float], ...]:
    return tuple(row for row in rows if row[3] / row[2] < SUSPECT)


def score_tables(catalog: Catalog) -> KernelScores:
    """Score the packaged tables: each row predicted from the others of its weight shape, by interpolation alone.

    A row at the end of its curve is then an extrapolation. Rows alone in their shape are skipped.
    """
    scored: list[tuple[str, str, float, float]] = []
    skipped = Counter[str]()
    for gpu in LEAVE_ONE_OUT_GPUS:
        for name in KINDS:
            scored.extend(_left_out(catalog, gpu, name, skipped))
    return _scores("packaged tables, each row left out", scored, dict(skipped))


def _left_out(catalog: Catalog, gpu: str, name: str, skipped: Counter[str]) -> list[tuple[str, str, float, float]]:
    """Errors of interpolation: a row's correction from the others of its surface."""
    table, kind = measured_table(catalog, gpu, name), KINDS[name]
    chosen = chosen_fit(catalog, catalog.gpu(gpu), kind.form, kind.formats)
    if table is None or chosen is None or kind.form not in AXES:
        return []
    result = []
    device = catalog.gpu(gpu)
    for surface, points in points_of(device, table.shape, table.seconds, chosen.fit).items():
        for index, (series, line, speed) in enumerate(points):
            others = [point for place, point in enumerate(points) if place != index]
            if not others:
                skipped["alone in its shape"] += 1
                continue
            value, _origin = Surface.of(others).at(series, line)
            text = f"{', '.join(kind.columns)}: {surface} series={series:g} line={line:g}"
            result.append((f"{gpu}, {name}", text, 1.0, speed / float(value)))
    return result


def _scores(title: str, rows: list[tuple[str, str, float, float]], skipped: dict[str, int]) -> KernelScores:
    errors: dict[str, list[float]] = {}
    for family, _, measured, predicted in sorted(rows, key=lambda row: row[0]):
        errors.setdefault(family, []).append(predicted / measured - 1)
    return KernelScores(title=title, scores=tuple(score(errors)), skipped=skipped, rows=tuple(rows))
