"""A row of measured kernel times, in the columns of public collections -> its family, and the time predicted for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from moeplan.errors import InputError, UnknownName
from moeplan.kernels.forms.form import Shape
from moeplan.kernels.origin import Origin
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.precision import Format, weight_format
from moeplan.validate.dealt_rows import dealt

Kind = Literal["gemm", "grouped gemm", "attention", "all-to-all"]
Row = Mapping[str, str]

# Columns that tell one collection from another; the first kind whose columns are all there is taken.
COLUMNS: dict[Kind, tuple[str, ...]] = {
    "grouped gemm": ("gpu", "precision", "layout", "num_groups", "m_per_group", "n", "k", "latency_us"),
    "attention": ("gpu", "op", "kv_dtype", "batch", "heads_q", "heads_kv", "head_dim_qk", "s_q", "s_kv", "latency_us"),
    "all-to-all": ("gpu", "nic", "op", "mode", "ep_ranks", "tokens_per_rank", "hidden", "topk", "latency_us"),
    "gemm": ("gpu", "precision", "layout", "m", "n", "k", "latency_us"),
}
FUSED_KERNELS = {"CUTLASS": "trtllm-cutlass", "TRTLLM-Gen": "vllm-trtllm-gen"}
LARGEST = 1e9  # of a column; beyond is a slip
MASKED_TILE, CONTIGUOUS_TILE = 64, 128  # rows of DeepGEMM's smallest tile


class NotModelledError(Exception):
    """The row measures something that no operator here stands for; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """family of the row, seconds as predicted for its shape on its GPU, how sure that is and what says so."""

    family: str
    seconds: float
    origin: Origin
    source: str


def kind_of(header: list[str]) -> Kind | None:
    """Tell the collection by its columns."""
    return next((kind for kind, columns in COLUMNS.items() if set(columns) <= set(header)), None)


@dataclass(frozen=True, slots=True)
class RowReader:
    """Predicts rows of one kind from a catalog's tables."""

    catalog: Catalog
    kind: Kind

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

    def _machine(self, row: Row) -> Machine:
        nic = _nic(row.get("nic", ""))
        try:
            return _machine(self.catalog, row["gpu"], nic)
        except UnknownName as error:
            raise NotModelledError(f"GPU {row['gpu']!r} is not in the catalog") from error

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
        kernels = replace(self._machine(row).kernels, cold=False)
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
        if not row["mode"].startswith("low_latency") or row["op"] not in ("dispatch", "combine"):
            raise NotModelledError(f"{row['op']} in mode {row['mode']}")
        if row.get("library") != "DeepEP":
            raise NotModelledError(f"library {row.get('library') or 'not given'}")
        tokens, hidden, top_k, ep = _numbers(row, "tokens_per_rank", "hidden", "topk", "ep_ranks")
        if "pure" in f"{row.get('version', '')} {row['mode']}".lower():
            raise NotModelledError("low latency with all traffic over RDMA, inside the node too")
        cost = all_to_all(
            "dispatch" if row["op"] == "dispatch" else "combine",
            self._machine(row),
            tokens=tokens,
            hidden=int(hidden),
            top_k=int(top_k),
            ep=ep,
            dispatch="fp8" if "fp8" in row.get("precision", "") else "bf16",
        )
        family = f"DeepEP low-latency {row['op']}"
        return Predicted(family=family, seconds=float(cost.seconds), origin=cost.origin, source=cost.source)


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


def _nic(text: str) -> str:
    return "efa-p5en" if "EFA" in text else "cx7"


@lru_cache(maxsize=64)
def _machine(catalog: Catalog, gpu: str, nic: str) -> Machine:
    device = catalog.gpu(gpu)
    card = catalog.nic(nic)
    cluster = Cluster(gpu=device, nic=card, gpus_per_node=device.gpus_per_node, nics_per_node=device.gpus_per_node)
    return Machine.of(cluster, catalog)
