"""DeepSeek's decode profile, operator by operator: predicted beside measured."""

from __future__ import annotations

import csv
from functools import partial
from typing import Annotated, Literal

from msgspec import Struct

from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Acceptance, Deployment, Precision, ScheduleName
from moeplan.specs.loading import build, read_mapping

Kind = Literal["kernel", "issue to receive"]
PROFILE = "dsv3_h800_decode_profile"


class Setup(Struct, frozen=True, kw_only=True):
    """What was measured, and the totals that the sources state."""

    title: str
    model: str
    gpu: str
    nic: str
    ep: int
    batch: int
    context: int
    mtp: int
    schedule: ScheduleName
    layer_seconds: Annotated[float, "s"]
    step_seconds: Annotated[float, "s"]
    acceptance: float
    tok_s_per_gpu: float
    source: str


class Compared(Struct, frozen=True, kw_only=True):
    """One figure, measured and predicted, in the same unit; share of the measured layer where it is an operator."""

    name: str
    measured: float
    predicted: float
    share: float | None = None
    kind: Kind = "kernel"

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1


class ProfileComparison(Struct, frozen=True, kw_only=True):
    """operators: seconds per micro-batch; totals by name; peers: (tool, setup, tok/s/GPU, how)."""

    setup: Setup
    operators: tuple[Compared, ...]
    layer: Compared
    step: Compared
    throughput: Compared  # beside the derived figure
    throughput_of_step: Compared  # beside the same tokens over the measured step
    peers: tuple[tuple[str, str, float, str], ...]


def compare_profile(catalog: Catalog) -> ProfileComparison:
    """Predict the profile's step and set it beside the published figures."""
    path = catalog.data_file("observations", f"{PROFILE}.yaml")
    setup = build(Setup, read_mapping(path), str(path))
    step = _predict(catalog, setup)
    moe = next(group for group in step.groups if group.group.ffn == "moe")
    seconds = {cost.name: float(cost.seconds) for stage in moe.layer.stages.values() for cost in stage.costs}
    copies = moe.timeline.micro_batches
    operators = tuple(
        Compared(
            name=row["operator"],
            measured=float(row["seconds_per_micro_batch"]),
            predicted=seconds[row["predicted_as"]],
            share=copies * float(row["seconds_per_micro_batch"]) / setup.layer_seconds,
            kind="kernel" if row["kind"] == "kernel" else "issue to receive",
        )
        for row in _rows(catalog, PROFILE)
    )
    total = partial(Compared, share=None)
    return ProfileComparison(
        setup=setup,
        operators=operators,
        layer=total(name="layer", measured=setup.layer_seconds, predicted=float(moe.timeline.seconds)),
        step=total(name="step", measured=setup.step_seconds, predicted=float(step.seconds)),
        throughput=total(name="tok/s/GPU", measured=setup.tok_s_per_gpu, predicted=float(step.tps_per_gpu)),
        throughput_of_step=total(
            name="tok/s/GPU of the step",
            measured=setup.batch * float(step.tokens_per_step) / setup.step_seconds,
            predicted=float(step.tps_per_gpu),
        ),
        peers=tuple(
            (row["tool"], row["setup"], float(row["tok_s_per_gpu"]), row["how"])
            for row in _rows(catalog, "dsv3_h800_decode_peers")
        ),
    )


def _predict(catalog: Catalog, setup: Setup) -> Prediction:
    gpu, model = catalog.gpu(setup.gpu), catalog.model(setup.model)
    nodes = {"gpus_per_node": gpu.gpus_per_node, "nics_per_node": gpu.gpus_per_node}
    cluster = Cluster(gpu=gpu, nic=catalog.nic(setup.nic), **nodes)
    deployment = Deployment(
        batch=setup.batch,
        ep=setup.ep,
        context=setup.context,
        drafts=setup.mtp,
        schedule=setup.schedule,
        load="even",  # «an absolutely balanced MoE routing strategy» (deepseek-ai/profile-data, README)
        precision=Precision.of(model),
        acceptance=Acceptance.geometric(setup.acceptance, setup.mtp, setup.source),
    )
    return Predictor.of(model, cluster, catalog).predict(deployment)


def _rows(catalog: Catalog, name: str) -> list[dict[str, str]]:
    with catalog.data_file("observations", f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
