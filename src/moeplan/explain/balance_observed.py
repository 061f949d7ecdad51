"""Published balance and gains beside what the packaged loads give under the same sizes."""

from __future__ import annotations

import csv

from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import Fault, InputError
from moeplan.explain.batch_article import gain_of_balancing
from moeplan.explain.placement_gain import gains_by_batch
from moeplan.kinds import Array
from moeplan.predict import Predictor
from moeplan.routing.eplb import balanced_map
from moeplan.routing.expert_loads import ExpertLoads
from moeplan.routing.expert_map import in_order
from moeplan.routing.load_files import read_loads
from moeplan.routing.loaded_ranks import LoadedRanks
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import NO_DRAFTS, Deployment, Precision
from moeplan.specs.loading import build, read_mapping

GAIN, INVERSE = "gain of the step", "mean over max of ranks"
BY_STEP = f"{GAIN}, by the step model"
GPU, NIC, BATCH, CONTEXT = "h100", "cx7", 256, 2000  # of the published gain in decode: prompts of 2,000 tokens
SHARE = 0.85  # of SGLang's decode step (batch article)


class LoadsSource(Struct, frozen=True, kw_only=True):
    """The packaged loads: what they are, and what is wrong with them."""

    title: str
    model: str
    caveat: str
    source: str


class Observed(Struct, frozen=True, kw_only=True):
    """A published figure and ours on the packaged loads, or why there is none."""

    model: str
    setup: str
    ranks: int
    redundant: int
    balanced: bool
    statistic: str
    published: float
    predicted: float | None
    note: str
    source: str


def packaged_loads(catalog: Catalog) -> tuple[LoadsSource, Array]:
    """Loads of 58 layers × 256 experts of DeepSeek-V3 in decode: (layers, experts)."""
    path = catalog.data_file("observations", "expert_load_dsv3_decode.yaml")
    return build(LoadsSource, read_mapping(path), str(path)), read_loads([path.with_suffix(".csv")]).total


def observed_gains(catalog: Catalog) -> list[Observed]:
    """Every published figure; predicted where it is of DeepSeek-V3 or R1, whose decode loads are packaged.

    Raises InputError for a broken file.
    """
    _, loads = packaged_loads(catalog)
    path = catalog.data_file("observations", "balance_gains.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for number, row in enumerate(rows):
        try:
            ranks, redundant, balanced = int(row["ranks"]), int(row["redundant"]), row["balanced"] == "yes"
            published = float(row["value"])
        except (KeyError, ValueError) as error:
            raise InputError(str(path), [Fault(f"row {number + 2}", f"cannot be read: {error}")]) from error
        predicted, note = None, "its loads are not published"
        if row["model"] in ("deepseek-v3", "deepseek-r1"):
            predicted, note = _predicted(loads, row["statistic"], ranks, redundant, balanced=balanced)
            note = (
                "decode loads for another traffic"
                if "prefill" in row["setup"] or "R1" in row["model"].upper()
                else note
            )
        found.append(
            Observed(
                model=row["model"],
                setup=row["setup"],
                ranks=ranks,
                redundant=redundant,
                balanced=balanced,
                statistic=row["statistic"],
                published=published,
                predicted=predicted,
                note=note,
                source=f"{row['trust']}, {row['source']}",
            )
        )
        if row["statistic"] == GAIN and "decode" in row["setup"] and predicted is not None:
            gain = _gain_by_step(catalog, loads, ranks, redundant)
            note = f"{BATCH} requests of {CONTEXT:,} tokens per rank; loads clip, so a lower bound"
            found.append(replace(found[-1], statistic=BY_STEP, predicted=gain, note=note))
    return found


def _gain_by_step(catalog: Catalog, loads: Array, ranks: int, redundant: int) -> float:
    """Both placements of the packaged loads through the step model, as LMSYS ran it."""
    model, gpu = catalog.model("deepseek-v3"), catalog.gpu(GPU)
    assert model.experts is not None, "DeepSeek-V3 has experts"
    sizes = {"gpus_per_node": gpu.gpus_per_node, "nics_per_node": gpu.gpus_per_node}
    cluster = Cluster(gpu=gpu, nic=catalog.nic(NIC), **sizes)
    record = ExpertLoads(windows=loads[None], layers=tuple(range(len(loads))), source="packaged")
    order = LoadedRanks.of(record, top_k=model.experts.top_k)
    deployment = Deployment(
        batch=BATCH,
        ep=ranks,
        context=CONTEXT,
        redundant=redundant,
        precision=Precision.of(model),
        acceptance=NO_DRAFTS,
    )
    predictor = Predictor.of(model, cluster, catalog)
    after = order.placed(balanced=True)
    (found,) = gains_by_batch(predictor, deployment, batches=(BATCH,), before=order, after=after)
    return found.gain


def _predicted(loads: Array, statistic: str, ranks: int, redundant: int, *, balanced: bool) -> tuple[float, str]:
    layers, experts = loads.shape
    slots = experts + redundant
    before = in_order(layers=layers, experts=experts, slots=slots, ranks=ranks).max_over_mean(loads)
    if not balanced:
        return float((1 / before if statistic == INVERSE else before).mean()), "loads of the same source"
    after = balanced_map(loads, slots=slots, ranks=ranks).max_over_mean(loads)
    if statistic == GAIN:
        share = f"share {SHARE:g} assumed; loads clip, so a lower bound"
        return float(gain_of_balancing(SHARE, before.mean() / after.mean())), share
    return float((1 / after if statistic == INVERSE else after).mean()), "planned on the loads that it serves"
