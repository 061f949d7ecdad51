"""The columns of collectives' tables: both directions of a row, the fabric, passes of a message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moeplan.kernels.forms import deepep_low_latency, deepep_normal, nccl, nvlink_all_to_all
from moeplan.kernels.silicon import SiliconTable
from moeplan.kernels.silicon_columns import columns_of


def table(family: str, columns: dict[str, list[Any]], *, system: str = "h200_sxm") -> SiliconTable:
    rows = len(next(iter(columns.values())))
    return SiliconTable(
        system=system,
        family=family,
        engine="sglang",
        version="0.5.12",
        columns={
            name: np.array(values, dtype=object if isinstance(values[0], str) else None)
            for name, values in columns.items()
        },
        units={},
        flags=np.zeros(rows, dtype=np.uint16),
        raw_rows=rows,
        source="made by hand",
    )


DEEPEP: dict[str, list[Any]] = {
    "node_num": [1, 4],
    "hidden_size": [7168, 7168],
    "num_token": [1, 128],
    "num_topk": [8, 8],
    "num_experts": [256, 256],
}


def test_a_low_latency_row_times_both_directions() -> None:
    found = columns_of(
        table("wideep_deepep_ll", {**DEEPEP, "dispatch_seconds": [1e-5, 2e-5], "combine_seconds": [3e-5, 4e-5]})
    )
    assert set(deepep_low_latency.FORM.shape) <= found.keys()
    assert found["seconds"].tolist() == [1e-5, 2e-5, 3e-5, 4e-5]
    assert found["combine"].tolist() == [0, 0, 1, 1]
    assert found["ep"].tolist() == [8, 32, 8, 32]
    assert found["nic_rate"].tolist() == [50e9] * 4


def test_a_rack_is_one_domain_of_trays() -> None:
    found = columns_of(
        table(
            "wideep_deepep_ll",
            {**DEEPEP, "dispatch_seconds": [1e-5] * 2, "combine_seconds": [1e-5] * 2},
            system="gb200",
        )
    )
    assert found["ep"].tolist() == [4, 16, 4, 16]
    assert set(found["per_node"].tolist()) == {72}


def test_a_normal_row_counts_the_notification() -> None:
    found = columns_of(
        table(
            "wideep_deepep_normal",
            {
                **DEEPEP,
                "dispatch_sms": [20, 24],
                "combine_sms": [4, 8],
                "dispatch_transmit_seconds": [1e-4, 2e-4],
                "dispatch_notify_seconds": [0.0, 5e-5],
                "combine_transmit_seconds": [3e-4, 4e-4],
                "combine_notify_seconds": [1e-5, 0.0],
            },
        )
    )
    assert set(deepep_normal.FORM.shape) <= found.keys()
    assert found["seconds"].tolist() == pytest.approx([1e-4, 2.5e-4, 3.1e-4, 4e-4])
    assert found["sms"].tolist() == [20, 24, 4, 8]


def test_kernels_of_one_domain() -> None:
    found = columns_of(
        table(
            "trtllm_alltoall",
            {
                "op_name": ["alltoall_dispatch", "alltoall_combine", "alltoall_combine_low_precision"],
                "num_tokens": [1, 2, 3],
                "hidden_size": [7168] * 3,
                "topk": [8] * 3,
                "num_experts": [256] * 3,
                "moe_ep_size": [8] * 3,
            },
        )
    )
    assert set(nvlink_all_to_all.FORM.shape) == found.keys()
    assert found["combine"].tolist() == [0, 1, 1]


def test_an_all_reduce_passes_twice() -> None:
    names = ["all_reduce", "all_gather", "reduce_scatter", "alltoall"]
    found = columns_of(table("nccl", {"op_name": names, "message_bytes": [1024] * 4, "num_gpus": [8] * 4}))
    assert set(nccl.FORM.shape) == found.keys()
    assert found["times"].tolist() == [2, 1, 1, 1]
    assert found["direct"].tolist() == [0, 0, 0, 1]
