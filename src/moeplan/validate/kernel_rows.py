"""A row of measured kernel times, in the columns of public collections -> its family, and the time predicted for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from moeplan.errors import InputError, UnknownName
from moeplan.ops.attention import gqa_decode, mla_decode
from moeplan.ops.cost import Cost
from moeplan.ops.dispatch_combine import all_to_all
from moeplan.ops.gemm import gemm
from moeplan.ops.grouped_gemm import grouped_gemm
from moeplan.ops.machine import Machine
from moeplan.routing.slots import ExpertLoad
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.model import Gqa, Mla
from moeplan.specs.precision import Format, weight_format

Kind = Literal["gemm", "grouped gemm", "attention", "all-to-all"]
Row = Mapping[str, str]

# Columns that tell one collection from another; the first kind whose columns are all there is taken.
COLUMNS: dict[Kind, tuple[str, ...]] = {
    "grouped gemm": ("gpu", "precision", "layout", "num_groups", "m_per_group", "n", "k", "latency_us"),
    "attention": ("gpu", "op", "kv_dtype", "batch", "heads_q", "heads_kv", "head_dim_qk", "s_q", "s_kv", "latency_us"),
    "all-to-all": ("gpu", "nic", "op", "mode", "ep_ranks", "tokens_per_rank", "hidden", "topk", "latency_us"),
    "gemm": ("gpu", "precision", "layout", "m", "n", "k", "latency_us"),
}
MLA_DIMS = (576, 512)


class NotModelledError(Exception):
    """The row measures something that no operator here stands for; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """family of the row; cost as predicted for its shape on its GPU."""

    family: str
    cost: Cost


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

    def _gemm(self, row: Row) -> Predicted:
        weights = _weights(row["precision"])
        copies = re.search(r"b=(\d+)", row["layout"])
        m, n, k = _numbers(row, "m", "n", "k")
        machine = self._machine(row)
        count = int(copies[1]) if copies else 1
        cost = gemm("gemm", machine, m=m, n=int(n), k=int(k), weights=weights, copies=count)
        name = "batched" if copies else "dense"
        return Predicted(family=f"{name} gemm {weights.computes_in}", cost=cost)

    def _grouped(self, row: Row) -> Predicted:
        if row["layout"] not in ("masked", "contiguous"):
            raise NotModelledError(f"grouped layout {row['layout'] or 'not given'}")
        weights = _weights(row["precision"])
        groups, m, n, k = _numbers(row, "num_groups", "m_per_group", "n", "k")
        load = ExpertLoad(rows=groups * m, slots=groups, active=groups, mean_rows_per_slot=m)
        down = row.get("op", "") == "down"
        machine = self._machine(row)
        cost = grouped_gemm("grouped", machine, load=load, n=int(n), k=int(k), weights=weights, down=down, exact=True)
        return Predicted(family=f"grouped gemm {row['layout']} {weights.computes_in}", cost=cost)

    def _attention(self, row: Row) -> Predicted:
        op = row["op"].lower()
        if "sparse" in op or "indexer" in op or "prefill" in op or "extend" in op or "decode" not in op:
            raise NotModelledError(f"{row['op'].split(':')[0]}")
        batch, heads, s_kv = _numbers(row, "batch", "heads_q", "s_kv")
        q_len = float(row["s_q"] or 1)
        cache = weight_format("fp8" if "fp8" in row["kv_dtype"] else "bf16")
        machine = self._machine(row)
        core = weight_format("bf16")
        if "mla" in op:
            latent = Mla(heads=int(heads), kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
            shape = {"batch": batch, "q_len": q_len, "context": s_kv}
            return Predicted(
                family="MLA decode", cost=mla_decode("mla", machine, latent, core=core, cache=cache, **shape)
            )
        kv_heads, head_dim = _numbers(row, "heads_kv", "head_dim_qk")
        grouped = Gqa(heads=int(heads), kv_heads=int(kv_heads), head_dim=int(head_dim))
        cost = gqa_decode("gqa", machine, grouped, batch=batch, q_len=q_len, context=s_kv, core=core, cache=cache)
        return Predicted(family="GQA decode", cost=cost)

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
        return Predicted(family=f"DeepEP low-latency {row['op']}", cost=cost)


def _numbers(row: Row, *names: str) -> tuple[float, ...]:
    values = []
    for name in names:
        try:
            value = float(row[name])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise NotModelledError(f"no {name} given")
        values.append(value)
    return tuple(values)


def _weights(precision: str) -> Format:
    text = precision.lower()
    if "fp8" in text:
        return weight_format("fp8_block")
    if "bf16" in text:
        return weight_format("bf16")
    raise NotModelledError(f"precision {precision or 'not given'}")


def _nic(text: str) -> str:
    return "efa-p5en" if "EFA" in text else "cx7"


@lru_cache(maxsize=64)
def _machine(catalog: Catalog, gpu: str, nic: str) -> Machine:
    device = catalog.gpu(gpu)
    card = catalog.nic(nic)
    cluster = Cluster(gpu=device, nic=card, gpus_per_node=device.gpus_per_node, nics_per_node=device.gpus_per_node)
    return Machine.of(cluster, catalog)
