"""Tables of collectives and of expert parallelism's all-to-alls.

The collectors ran on nodes of eight GPUs with a 400 Gb/s card each, or of four in an NVLink domain of 72; the tables do
not say so themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from moeplan.kernels.silicon import SiliconTable
from moeplan.kinds import Array

NODE, TRAY, RACK = 8, 4, 72  # GPUs
RACKS: Final = ("gb200", "gb300")
NIC_RATE: Final = 50e9  # ConnectX-7
NIC_LATENCY: Final = 10e-6
ROUNDS: Final = {"all_reduce": 2.0}  # passes of the message, of the others one

Columns = dict[str, Array]


def _fabric(table: SiliconTable, rows: int) -> Columns:
    per_node = float(RACK if table.system in RACKS else NODE)
    facts = {"per_node": per_node, "nic_rate": NIC_RATE, "nic_latency": NIC_LATENCY}
    return {name: np.full(rows, value) for name, value in facts.items()}


def _deepep(table: SiliconTable) -> Columns:
    size = TRAY if table.system in RACKS else NODE
    return {
        "tokens": _real(table, "num_token"),
        "hidden": _real(table, "hidden_size"),
        "top_k": _real(table, "num_topk"),
        "experts": _real(table, "num_experts"),
        "ep": _real(table, "node_num") * size,
        **_fabric(table, len(table)),
    }


def _both(shape: Columns, dispatch: Columns, combine: Columns) -> Columns:
    """The rows of one direction, then those of the other."""
    twice = {name: np.concatenate([values, values]) for name, values in shape.items()}
    own = {name: np.concatenate([dispatch[name], combine[name]]) for name in dispatch}
    rows = len(dispatch["seconds"])
    return {**twice, **own, "combine": np.repeat([0.0, 1.0], rows)}


def _low_latency(table: SiliconTable) -> Columns:
    return _both(
        _deepep(table), {"seconds": _real(table, "dispatch_seconds")}, {"seconds": _real(table, "combine_seconds")}
    )


def _normal(table: SiliconTable) -> Columns:
    """The time of a call, the counting of what will come (notify) with it: some tables time both as one."""
    dispatch, combine = (
        {
            "seconds": _real(table, f"{name}_transmit_seconds") + _real(table, f"{name}_notify_seconds"),
            "sms": _real(table, f"{name}_sms"),
        }
        for name in ("dispatch", "combine")
    )
    return _both(_deepep(table), dispatch, combine)


def _inside(table: SiliconTable) -> Columns:
    """TensorRT-LLM's kernels of one NVLink domain; tokens are those of one rank."""
    return {
        "tokens": _real(table, "num_tokens"),
        "hidden": _real(table, "hidden_size"),
        "top_k": _real(table, "topk"),
        "experts": _real(table, "num_experts"),
        "ep": _real(table, "moe_ep_size"),
        "combine": np.char.startswith(table["op_name"].astype(str), "alltoall_combine").astype(float),
    }


def _collective(table: SiliconTable) -> Columns:
    names = table["op_name"].astype(str)
    return {
        "bytes": _real(table, "message_bytes"),
        "ranks": _real(table, "num_gpus"),
        "times": np.array([ROUNDS.get(name, 1.0) for name in names.tolist()]),
        "direct": (names == "alltoall").astype(float),
    }


def _real(table: SiliconTable, name: str) -> Array:
    return np.asarray(table[name], dtype=float)


READERS: Final[dict[str, Callable[[SiliconTable], Columns]]] = {
    "wideep_deepep_ll": _low_latency,
    "wideep_deepep_normal": _normal,
    "trtllm_alltoall": _inside,
    "custom_allreduce": _collective,
    "nccl": _collective,
}
