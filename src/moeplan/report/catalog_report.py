"""The catalog for people: GPUs and models with their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeplan.report.tables import Console, table
from moeplan.specs.cluster import Nic
from moeplan.specs.cluster_file import ClusterFile
from moeplan.specs.gpu import Gpu
from moeplan.specs.model import Mla, ModelSpec
from moeplan.specs.parameters import kv_bytes_per_token, parameters, weight_bytes
from moeplan.units import gib


def print_gpus(out: Console, gpus: Sequence[tuple[str, Gpu]]) -> None:
    """All GPUs in one table; an asterisk marks an assumed figure."""
    rows = []
    for slug, gpu in gpus:
        link = gpu.scale_up
        rows.append(
            [
                slug,
                gib(gpu.memory.capacity) + _star(gpu, "memory.capacity"),
                f"{gpu.memory.bandwidth / 1e12:.2f}" + _star(gpu, "memory.bandwidth"),
                *(_peak(gpu, precision) for precision in ("bf16", "fp8", "fp4", "int8")),
                f"{gpu.vector_rate / 1e12:.2f}" + _star(gpu, "vector_rate"),
                gpu.attention_overlap + _star(gpu, "attention_overlap"),
                f"{link.bandwidth / 1e9:,.0f} × {link.domain}" if link else "-",
                f"{gpu.tdp:,.0f}" if gpu.tdp else "-",
                f"{gpu.price:.2f}" if gpu.price else "-",
            ]
        )
    headers = (
        "GPU",
        "memory",
        "TB/s",
        "bf16 TFLOP/s",
        "fp8",
        "fp4",
        "int8",
        "exp2 T/s",
        "attention",
        "link GB/s × GPUs",
        "W",
        "USD/h",
    )
    out.print(table(headers, rows))
    out.print(
        "* assumed; (x) stands in for a missing precision. Dense peaks, link one way. Sources: `moeplan gpus NAME`."
    )


def _star(gpu: Gpu, path: str) -> str:
    return "*" if any(path == key or path.startswith(key + ".") for key in gpu.assumed) else ""


def _peak(gpu: Gpu, precision: str) -> str:
    if precision in gpu.compute:
        return f"{gpu.compute[precision] / 1e12:,.0f}" + _star(gpu, f"compute.{precision}")
    return f"({gpu.substitutes[precision]})" if precision in gpu.substitutes else "-"


def print_models(out: Console, models: Sequence[tuple[str, ModelSpec]]) -> None:
    """All models in one table: three conventions for active parameters, bytes of weights and cache."""
    rows = []
    for slug, model in models:
        count, experts = parameters(model), model.experts
        rows.append(
            [
                slug,
                f"{count.total / 1e9:,.1f}",
                f"{count.active / 1e9:.2f}",
                f"{count.active_without_embedding / 1e9:.2f}",
                f"{count.active_without_embedding_and_head / 1e9:.2f}",
                f"{experts.top_k} of {experts.count}" if experts else "-",
                f"{model.layer_count}",
                "MLA" if isinstance(model.attention, Mla) else "GQA",
                f"{weight_bytes(model) / 1e9:,.1f}",
                f"{kv_bytes_per_token(model):,.0f}",
            ]
        )
    headers = (
        "model",
        "total B",
        "active B",
        "- embedding",
        "- and head",
        "experts",
        "layers",
        "attention",
        "weights GB",
        "KV B/token bf16",
    )
    out.print(table(headers, rows))
    out.print("active B: embedding and head included; then without the embedding; then without both.")


def print_nics(out: Console, nics: Sequence[Nic]) -> None:
    """All network cards in one table."""
    rows = [
        [
            nic.slug,
            f"{nic.line_rate / 1e9:,.1f}",
            f"{nic.effective_rate / 1e9:,.1f}" + ("*" if "effective_rate" in nic.assumed else ""),
            f"{nic.latency * 1e6:,.0f}" + ("*" if "latency" in nic.assumed else ""),
        ]
        for nic in nics
    ]
    out.print(table(("NIC", "line GB/s", "effective GB/s", "latency µs"), rows))
    out.print("* assumed. Rates of one port in one direction. `moeplan nics NAME` gives the sources.")


def print_clusters(out: Console, clusters: Mapping[str, ClusterFile]) -> None:
    """All clusters in one table."""
    rows = [
        [
            slug,
            cluster.gpu,
            cluster.nic,
            f"{cluster.gpus_per_node}",
            f"{cluster.nics_per_node}",
            f"{cluster.nodes}" if cluster.nodes is not None else "any",
        ]
        for slug, cluster in clusters.items()
    ]
    out.print(table(("cluster", "GPU", "NIC", "GPUs/node", "NICs/node", "nodes"), rows))
    out.print("For `--cluster` of plan and predict. `moeplan clusters NAME` gives the sources.")


def print_sheet(out: Console, content: Mapping[str, Any]) -> None:
    """One thing with all its figures, as YAML in SI units."""
    import yaml

    out.print(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=110).rstrip(), raw=True)
