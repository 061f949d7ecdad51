"""Published decode steps, predicted beside measured: whole steps, as far as a deployment of ours expresses them."""

from __future__ import annotations

import csv

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import Fault, InputError
from moeplan.predict import Prediction, Predictor, dispatchable
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Acceptance, Deployment, Precision

TABLE = "decode_steps"
TIMES = ("layer_s", "step_s")
LARGEST = 1024  # batch tried where a row states none
WHOLE = ("gpus", "tp", "moe_tp", "context", "drafts", "batch", "redundant")
NUMBERS = (*WHOLE, "tokens_per_step", "imbalance", "promise", "value")
MAY_LACK = ("batch", "redundant", "promise")
COLUMNS = (
    *("name", "model", "gpu", "nic", *NUMBERS, "exchange", "schedule", "load", "experts", "linear", "kv", "core"),
    *("metric", "trust", "group", "host", "left_out", "note", "source"),
)


class StepRow(Struct, frozen=True, kw_only=True):
    """One published figure: measured and predicted in the unit of `metric`, tok/s/GPU, tok/s/user or seconds.

    batch: of a DP rank, predicted for the row's or, where it states none, the best at its promise. weak: what of the
    setup was not stated, or is not modelled.
    """

    name: str
    group: str
    metric: str
    measured: float
    predicted: float
    batch: int
    trust: str
    weak: str
    source: str

    @property
    def error(self) -> float:
        """Predicted speed over measured, less one: above zero is too fast, also where the figure is a time."""
        ratio = self.predicted / self.measured
        return (1.0 / ratio if self.metric in TIMES else ratio) - 1.0


class StepScores(Struct, frozen=True, kw_only=True):
    """Every row, and those groups' medians of the size of the error."""

    rows: tuple[StepRow, ...]
    left_out: tuple[tuple[str, str], ...]  # name, why

    def median(self, group: str | None = None) -> float:
        """Median of |error|, of one group or of all rows."""
        chosen = [abs(row.error) for row in self.rows if group in (None, row.group)]
        return float(np.median(chosen))

    def count(self, group: str | None = None) -> int:
        """Rows of one group or of all."""
        return sum(group in (None, row.group) for row in self.rows)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups in the table's order."""
        return tuple(dict.fromkeys(row.group for row in self.rows))


def compare_steps(catalog: Catalog) -> StepScores:
    """Predict every row of data/observations/decode_steps.csv.

    Raises InputError naming every row that no deployment expresses.
    """
    rows, faults = [], []
    for row in published(catalog):
        if row["left_out"]:
            continue
        try:
            rows.append(_compare(catalog, row))
        except InputError as error:
            faults += [Fault(f"{row['name']}: {fault.path}", fault.problem, fault.fix) for fault in error.faults]
    if faults:
        raise InputError(TABLE, faults)
    left_out = tuple((row["name"], row["left_out"]) for row in published(catalog) if row["left_out"])
    return StepScores(rows=tuple(rows), left_out=left_out)


def published(catalog: Catalog) -> list[dict[str, str]]:
    """The rows as they lie in the table."""
    path = catalog.data_file("observations", f"{TABLE}.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    faults = [Fault(str(path), "holds no row", "give at least one step")] if not rows else []
    lacks = [name for name in COLUMNS if rows and rows[0].get(name) is None]
    if lacks:
        faults = [Fault(str(path), f"lacks {', '.join(lacks)}", "give the columns of the packaged table")]
    faults += [
        Fault(f"row {number}", f"{name} is {row[name]!r}", "give a number as the packaged table does")
        for number, row in enumerate(rows if not lacks else (), 2)
        for name in NUMBERS
        if not row["left_out"] and not _is_number(name, row[name])
    ]
    if faults:
        raise InputError(str(path), faults)
    return rows


def _is_number(name: str, text: str | None) -> bool:
    """Whether a cell holds what its column wants."""
    if not text:
        return name in MAY_LACK
    try:
        value = float(int(text) if name in WHOLE else float(text))
    except ValueError:
        return False
    return bool(np.isfinite(value)) and (value > 0 or (value == 0 and name in ("drafts", "redundant")))


def predict_row(catalog: Catalog, row: dict[str, str]) -> Prediction:
    """The step of one row; raise InputError where no deployment expresses it."""
    gpu, model = catalog.gpu(row["gpu"]), catalog.model(row["model"])
    cluster = Cluster(
        gpu=gpu, nic=catalog.nic(row["nic"]), gpus_per_node=gpu.gpus_per_node, nics_per_node=gpu.gpus_per_node
    )
    drafts, gained = int(row["drafts"]), float(row["tokens_per_step"])
    deployment = Deployment(
        batch=int(row["batch"] or 1),
        ep=int(row["gpus"]) // int(row["moe_tp"]),
        tp=int(row["tp"]),
        moe_tp=int(row["moe_tp"]),
        exchange=row["exchange"],
        context=int(row["context"]),
        drafts=drafts,
        schedule=row["schedule"] if row["batch"] else "naive",
        redundant=int(row["redundant"]) if row["redundant"] else None,
        load="even" if row["load"] == "even" else "sampled",
        imbalance=float(row["imbalance"]),
        host="serial" if row["host"] == "serial" else "overlapped",
        precision=Precision.of(
            model,
            experts=row["experts"] or None,
            linear=row["linear"] or None,
            core=row["core"],
            kv=row["kv"],
        ),
        acceptance=Acceptance(rates=((gained - 1) / drafts,) * drafts if drafts else (), source="published"),
    )
    predictor = Predictor.of(model, cluster, catalog)
    if not row["batch"]:
        predictor.predict(deployment)  # its rules, before the arrays
        deployment = _best_at(predictor, replace(deployment, schedule=row["schedule"]), float(row["promise"]))
    return predictor.predict(deployment)


def _best_at(predictor: Predictor, deployment: Deployment, promise: float) -> Deployment:
    """The batch of most throughput that keeps the promised tok/s per user, fits, and that the all-to-all takes."""
    batches = np.arange(2, LARGEST + 1, 2, dtype=float)
    step = predictor.evaluate(replace(deployment, batch=batches))
    allowed = np.logical_and(step.fits, np.greater_equal(step.tps_per_user, promise))
    allowed = np.logical_and(allowed, dispatchable(step))
    if not np.any(allowed):
        fix = f"the fastest keeps {float(np.max(step.tps_per_user)):.1f} tok/s per user"
        raise InputError("promise", [Fault("promise", f"no batch keeps {promise:g} tok/s per user", fix)])
    best = int(np.argmax(np.where(allowed, step.tps_per_gpu, -np.inf)))
    return replace(deployment, batch=int(batches[best]))


def _compare(catalog: Catalog, row: dict[str, str]) -> StepRow:
    return row_of(row, predict_row(catalog, row))


def row_of(row: dict[str, str], step: Prediction) -> StepRow:
    """A row of the table beside its prediction."""
    return StepRow(
        name=row["name"],
        group=row["group"],
        metric=row["metric"],
        measured=float(row["value"]),
        predicted=_figure(step, row["metric"]),
        batch=int(step.deployment.batch),
        trust=row["trust"],
        weak=row["note"],
        source=row["source"],
    )


def _figure(step: Prediction, metric: str) -> float:
    if metric == "layer_s":
        return float(next(group for group in step.groups if group.group.ffn == "moe").timeline.seconds)
    figures = {"step_s": step.seconds, "tok_s_per_gpu": step.tps_per_gpu, "tok_s_per_user": step.tps_per_user}
    return float(figures[metric])
