"""A row of measured kernel times, in the columns of public collections -> its family, and the time predicted for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import InputError, UnknownName
from moeplan.kernels.forms.form import Shape
from moeplan.kernels.origin import Origin
from moeplan.kernels.sources import ALL, KernelSources
from moeplan.kernels.wire import asked
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.precision import Format, weight_format
from moeplan.validate.all_to_all_rows import question_of, stated_seconds
from moeplan.validate.dealt_rows import dealt
from moeplan.validate.not_modelled import NotModelledError

Kind = Literal["gemm", "grouped gemm", "attention", "all-to-all"]
Row = Mapping[str, str]

# Columns that tell one collection from another; the first kind whose columns are all there is taken.
COLUMNS: dict[Kind, tuple[str, ...]] = {
    "grouped gemm": ("gpu", "precision", "layout", "num_groups", "m_per_group", "n", "k", "latency_us"),
    "attention": ("gpu", "op", "kv_dtype", "batch", "heads_q", "heads_kv", "head_dim_qk", "s_q", "s_kv", "latency_us"),
    "all-to-all": (
        "library",
        "gpu",
        "nic",
        "op",
        "mode",
        "ep_ranks",
        "tokens_per_rank",
        "hidden",
        "topk",
        "latency_us",
    ),
    "gemm": ("gpu", "precision", "layout", "m", "n", "k", "latency_us"),
}
FUSED_KERNELS = {"CUTLASS": "trtllm-cutlass", "TRTLLM-Gen": "vllm-trtllm-gen"}
LARGEST = 1e9  # of a column; beyond is a slip
MASKED_TILE, CONTIGUOUS_TILE = 64, 128  # rows of DeepGEMM's smallest tile


class Predicted(Struct, frozen=True, kw_only=True):
    """family of the row, seconds as predicted for its shape on its GPU, how sure that is and what says so."""

    family: str
    seconds: float
    origin: Origin
    source: str


def kind_of(header: list[str]) -> Kind | None:
    """Tell the collection by its columns."""
    return next((kind for kind, columns in COLUMNS.items() if set(columns) <= set(header)), None)


def measured_seconds(kind: Kind, row: Row) -> float | None:
    """What a row measured, None where it says nothing; raise NotModelledError for a bandwidth of unknown bytes."""
    if kind == "all-to-all":
        return stated_seconds(row, question_of(row))
    try:
        value = float(row["latency_us"]) * 1e-6
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


class RowReader(Struct, frozen=True):
    """Predicts rows of one kind from a catalog's tables."""

    catalog: Catalog
    kind: Kind
    sources: KernelSources = ALL

    def predict(self, row: Row) -> Predicted:
        """Predict one row; raise NotModelledError with the reason where nothing stands for it."""
        predict = {
            "gemm": self._gemm,
            "grouped gemm": self._grouped,
            "attention": self._attention,
            "all-to-all": self._all_to_all,
        }[self.kind]
        try:
            return predict(row)
        except InputError as error:
            raise NotModelledError(error.faults[0].problem) from error

    def _machine(self, gpu: str, nic: str = "cx7") -> Machine:
        try:
            return _machine(self.catalog, gpu, nic, self.sources)
        except UnknownName as error:
            raise NotModelledError(f"GPU {gpu!r} is not in the catalog") from error

    def _timed(
        self,
        family: str,
        row: Row,
        form: str,
        formats: dict[str, str],
        shape: Shape,
        *,
        facts: dict[str, float] | None = None,
        engine: str = "",
    ) -> Predicted:
        """A benchmark runs one kernel over and over: what fits stays in the last cache."""
        kernels = replace(self._machine(row["gpu"]).kernels, cold=False)
        timed = kernels.timed(form, formats, shape, facts=facts, engine=engine)
        if timed is None:
            raise NotModelledError(f"no kernel of {form} {'-'.join(formats.values())}")
        return Predicted(family=family, seconds=float(timed.seconds), origin=timed.origin, source=timed.source)

    def _gemm(self, row: Row) -> Predicted:
        weights = _weights(row["precision"])
        copies = re.search(r"b=(\d+)", row["layout"])
        m, n, k = _numbers(row, "m", "n", "k")
        shape = {"m": m, "n": n, "k": k}
        if copies:
            (shape["copies"],) = _numbers({"b": copies[1]}, "b")
        form, name = ("batched_gemm", "batched") if copies else ("gemm", "dense")
        engine = "torch-bmm" if copies and row["gpu"].lower() in ("h800", "h20") else ""
        family = f"{name} gemm {weights.computes_in}"
        return self._timed(family, row, form, {"weights": weights.name}, shape, engine=engine)

    def _grouped(self, row: Row) -> Predicted:
        layout, weights = row["layout"], _weights(row["precision"])
        if layout == "fused MoE module":
            return self._fused(row, weights)
        if layout not in ("masked", "contiguous"):
            raise NotModelledError(f"grouped layout {layout or 'not given'}")
        groups, m, n, k = _numbers(row, "num_groups", "m_per_group", "n", "k")
        shape = {"groups": groups, "m": m, "n": n, "k": k}
        if "InferSim" in row.get("software", ""):
            chance, mean, whole = dealt(m, CONTIGUOUS_TILE if layout == "contiguous" else MASKED_TILE)
            if layout == "contiguous":
                shape |= {"groups": groups * chance, "m": whole}
            else:
                active = groups * chance
                shape |= {"groups": active, "m": mean, "idle": groups - active, "blocks": active * whole / MASKED_TILE}
        family = f"grouped gemm {layout} {weights.computes_in}"
        formats = {"weights": weights.name}
        return self._timed(family, row, "grouped_gemm", formats, shape, engine=f"deepgemm-{layout}")

    def _fused(self, row: Row, weights: Format) -> Predicted:
        """A whole layer of DeepSeek-R1's experts, sliced over the ranks, every expert as likely."""
        said = re.match(r"DeepSeek-R1 MoE, TP(\d+), num_tokens=(\d+)", row.get("config", ""))
        engine = next((name for word, name in FUSED_KERNELS.items() if word in row.get("software", "")), None)
        if said is None or engine is None:
            raise NotModelledError(f"fused MoE of {row.get('software') or 'an unknown engine'} or of an unstated shape")
        model = self.catalog.model("deepseek-v3")
        assert model.experts is not None, "DeepSeek-V3 has experts"
        tp, tokens = float(said[1]), float(said[2])
        experts, top_k = float(model.experts.count), float(model.experts.top_k)
        shape: Shape = {
            "tokens": tokens,
            "hidden": float(model.hidden),
            "inter": float(model.experts.width),
            "top_k": top_k,
            "experts": experts,
            "tp": tp,
            "ep": 1.0,
            "gated": 2.0,
            "rows": tokens * top_k,
            "active": experts * (1.0 - (1.0 - top_k / experts) ** tokens),
        }
        return self._timed(f"fused MoE {weights.name}", row, "moe", {"weights": weights.name}, shape, engine=engine)

    def _attention(self, row: Row) -> Predicted:
        op = row["op"].lower()
        if "sparse" in op or "indexer" in op or not ("decode" in op or "prefill" in op):
            raise NotModelledError(f"{row['op'].split(':')[0]}")
        batch, heads, s_kv = _numbers(row, "batch", "heads_q", "s_kv")
        (q_len,) = _numbers(row, "s_q") if row["s_q"] else (1.0,)
        shape = {"batch": batch, "heads": heads, "q_len": q_len, "context": s_kv}
        formats = {"core": "bf16", "cache": "fp8" if "fp8" in row["kv_dtype"] else "bf16"}
        stage = "prefill" if "prefill" in op else "decode"
        if "mla" in op and stage == "decode":
            return self._timed("MLA decode", row, "mla_decode", formats, shape)
        if "non-causal" in op:
            raise NotModelledError("prefill that is not causal")
        kv_heads, head_dim = _numbers(row, "heads_kv", "head_dim_qk")
        if "mla" in op:
            expanded = "trtllm" if "mha form" in op else ""  # SGLang's on Hopper stays absorbed
            return self._timed("MLA prefill", row, "mla_prefill", formats, shape, engine=expanded)
        if row.get("head_dim_v") not in ("", None, row["head_dim_qk"]):
            raise NotModelledError("keys and values of different widths")
        if kv_heads > heads:
            raise NotModelledError("fewer query heads than cached ones")
        shape |= {"kv_heads": kv_heads, "head_dim": head_dim}
        facts = {"head_dim": head_dim, "group": heads / kv_heads}
        engine = "flashinfer" if "InferSim" in row.get("software", "") and stage == "decode" else ""
        return self._timed(f"GQA {stage}", row, f"gqa_{stage}", formats, shape, facts=facts, engine=engine)

    def _all_to_all(self, row: Row) -> Predicted:
        question = question_of(row)
        kernels = replace(self._machine(question.gpu, question.nic).kernels, cold=False)
        nic = self.catalog.nic(question.nic)
        shape = {
            **question.shape,
            "combine": float(question.direction == "combine"),
            "nic_rate": nic.line_rate * question.nics_per_gpu,
            "nic_latency": nic.latency,
        }
        timed = asked(
            kernels, question.form, question.wire, shape, backend=question.backend, direction=question.direction
        )
        assert timed is not None, "no article's figures are asked"
        family = f"{question.backend} {question.mode} {question.direction}"
        return Predicted(family=family, seconds=float(timed.seconds), origin=timed.origin, source=timed.source)


def _numbers(row: Row, *names: str) -> tuple[float, ...]:
    values = []
    for name in names:
        try:
            value = float(row[name])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and 0 < value <= LARGEST):
            raise NotModelledError(f"no {name} given" if not row[name] else f"{name} is {row[name]}")
        values.append(value)
    return tuple(values)


def _weights(precision: str) -> Format:
    text = precision.lower()
    if "fp8" in text:
        return weight_format("fp8_block")
    if "bf16" in text:
        return weight_format("bf16")
    if text == "nvfp4":
        return weight_format("nvfp4")
    raise NotModelledError(f"precision {precision or 'not given'}")


@lru_cache(maxsize=64)
def _machine(catalog: Catalog, gpu: str, nic: str, sources: KernelSources) -> Machine:
    device = catalog.gpu(gpu)
    card = catalog.nic(nic)
    cluster = Cluster(gpu=device, nic=card, gpus_per_node=device.gpus_per_node, nics_per_node=device.gpus_per_node)
    return Machine.of(cluster, catalog, sources)
