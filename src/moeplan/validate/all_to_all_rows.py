"""A published row of an all-to-all, in the columns of public collections -> the question that it answers, its seconds.

A bandwidth becomes a time by the bytes that its source counts. DeepEP's normal tests, and those of UCCL, mori and
Hybrid-EP after them, count a token once for each distinct rank («NVLink», «XGMI») or node («RDMA», «IB») that it goes
to, its own included, in elements and scales; its low-latency tests count every message, with the header. DeepEP's
internode test limits routing to four nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from moeplan.routing.targets import distinct_targets
from moeplan.specs.exchange import Direction
from moeplan.specs.precision import weight_format
from moeplan.validate.not_modelled import NotModelledError

Row = Mapping[str, str]

PADDED: Final = "an all-to-all of padded buffers: it sends each at its largest, whatever was routed"
BACKENDS: Final = {
    "DeepEP": "deepep",
    "DeepEP (as quoted by pplx)": "deepep-rdma",
    "DeepEP NVSHMEM": "deepep-nvshmem",
    "HybridEP": "hybrid-ep",
    "UCCL-EP": "uccl",
    "mori": "mori",
    "pplx-kernels": "pplx-ibgda",
    "TensorRT-LLM NVLinkOneSided": "trtllm-one-sided",
    "TensorRT-LLM NVLinkTwoSided": "trtllm-two-sided",
}
NAMES: Final = {"SM90": "h800", "SM100": "b200"}  # GPUs that a source names by architecture
NICS: Final = {"efa": "efa-p5en", "pollara": "pollara-400", "thor": "thor2", "cx8": "cx8"}
PAIRS: Final = {"B300": 2.0}  # NICs of 400 Gb/s for each GPU, where there is more than one
USUAL_SMS: Final = 20.0  # of DeepEP's tests
LIMIT: Final = 4.0  # nodes that a token of DeepEP's internode test may go to
LIMITED: Final = ("deepep", "deepep-v2", "deepep-nvshmem", "uccl")  # who runs that test
RANKS, NODES = ("nvlink", "xgmi"), ("rdma", "ib")


class Question(Struct, frozen=True, kw_only=True):
    """Which kernel on which GPU and card, and its shape without the card's figures."""

    form: str
    mode: str
    backend: str
    direction: Direction
    wire: str
    gpu: str
    nic: str
    nics_per_gpu: float
    shape: dict[str, float]


def question_of(row: Row) -> Question:
    """Read a row; raise NotModelledError with the reason where no kernel here is meant."""
    if row["op"] not in ("dispatch", "combine"):
        raise NotModelledError(PADDED if "AtA" in row.get("version", "") else f"{row['op']}, no message size given")
    direction: Direction = "dispatch" if row["op"] == "dispatch" else "combine"
    if "/" in row.get("precision", ""):
        raise NotModelledError("dispatch and combine together, or in an unstated format")
    backend, wire = _backend(row), _wire(row)
    low = row["mode"].startswith("low_latency")
    form = "deepep_low_latency" if low else "deepep_normal"
    if row["mode"] == "one-sided" or backend.startswith("trtllm"):
        form = "nvlink_all_to_all"
    gpu = _gpu(row["gpu"])
    text = row.get("nic", "").lower()
    inside = text in ("none", "nvl72", "hccs")
    ep = _number(row, "ep_ranks")
    per_node = 1.0 if backend == "deepep-rdma" else 72.0 if text == "nvl72" else 8.0
    shape = {
        "ep": ep,
        "tokens": _number(row, "tokens_per_rank"),
        "hidden": _number(row, "hidden"),
        "top_k": _number(row, "topk"),
        "experts": _number(row, "experts") if row.get("experts") else 256.0,
        "per_node": max(per_node, ep) if inside else per_node,
        "sms": _number(row, "sm_count") if row.get("sm_count") else USUAL_SMS,
        "groups": 1.0,
        "top_groups": 1.0,
    }
    nodes = math.ceil(ep / shape["per_node"])
    if form == "deepep_normal" and backend in LIMITED and nodes > LIMIT and shape["experts"] % nodes == 0:
        shape |= {"groups": float(nodes), "top_groups": LIMIT}
    nic = next((slug for word, slug in NICS.items() if word in text), "cx7")
    return Question(
        form=form,
        mode="low-latency" if low else "one domain" if form == "nvlink_all_to_all" else "normal",
        backend=backend,
        direction=direction,
        wire=wire,
        gpu=gpu,
        nic=nic,
        nics_per_gpu=PAIRS.get(row["gpu"], 1.0) if "efa" in text else 1.0,
        shape=shape,
    )


def stated_seconds(row: Row, question: Question) -> float | None:
    """The row's latency, or the time that its bandwidth means; None where it states neither.

    Raises NotModelledError where it is not plain what a bandwidth counts.
    """
    latency = _value(row.get("latency_us", ""))
    if latency is not None:
        return latency * 1e-6
    rate = _value(row.get("bw_gb_per_s", ""))
    return None if rate is None else _counted(row, question) / (rate * 1e9)


def _counted(row: Row, question: Question) -> float:
    """Bytes that the source of a bandwidth counts."""
    shape, kind = question.shape, row.get("bw_kind", "").lower()
    element = weight_format(question.wire).activation_bytes
    if question.mode == "low-latency":
        if question.direction == "dispatch" and "though the LL test" in row.get("note", ""):
            raise NotModelledError("a bandwidth of bf16 by its text and of fp8 by its test")
        header = 16.0 if question.direction == "dispatch" else 0.0
        return shape["tokens"] * shape["top_k"] * (shape["hidden"] * element + header)
    limit = {"groups": shape["groups"], "top_groups": shape["top_groups"]}
    if any(word in kind for word in RANKS):
        places = shape["ep"]
    elif any(re.search(rf"\b{word}\b", kind) for word in NODES):
        places = max(shape["ep"] / shape["per_node"], 1.0)
    else:
        raise NotModelledError(f"a bandwidth of unstated bytes ({kind or 'no kind given'})")
    copies = distinct_targets(places, experts=shape["experts"], top_k=shape["top_k"], **limit)
    return float(copies) * shape["tokens"] * shape["hidden"] * element


def _backend(row: Row) -> str:
    library, version = row.get("library", ""), row.get("version", "")
    if "AtA" in version:
        raise NotModelledError(PADDED)
    if library not in BACKENDS:
        raise NotModelledError(f"library {library or 'not given'}")
    if library == "DeepEP":
        if "pure RDMA" in f"{version} {row['mode']}":
            return "deepep-rdma"
        return "deepep-v2" if version.startswith("V2") else "deepep"
    if library == "HybridEP" and row.get("measured_as", "").startswith("torch API"):
        return "hybrid-ep-call"  # with launch and preparation
    if library == "pplx-kernels" and version.startswith("IBRC"):
        return "pplx-ibrc"
    return BACKENDS[library]


def _wire(row: Row) -> str:
    text = row.get("precision", "").lower()
    if "fp8" in text:
        return "fp8_block"  # with a scale per 128 elements, or of one byte per 32, which weighs as much
    if text in ("bf16", "nvfp4"):
        return text
    raise NotModelledError(f"precision {text or 'not given'}")


def _gpu(text: str) -> str:
    name = text.split(" ")[0]
    return NAMES.get(name, name.lower())


def _number(row: Row, name: str) -> float:
    found = re.match(r"\d+(\.\d+)?", row.get(name, ""))
    value = _value(found[0]) if found else None
    if value is None:
        raise NotModelledError(f"no {name} given" if not row.get(name) else f"{name} is {row[name]}")
    return value


def _value(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
