"""Silicon tables as the columns that forms read: one file per form or two that belong together."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from moeplan.errors import UnknownName
from moeplan.kernels.silicon import SiliconTable
from moeplan.kinds import Array

_FILE: Final = {
    "generation_mla": "mla",
    "context_mla": "mla",
    "mla_generation_module": "mla",
    "mla_context_module": "mla",
    "generation_attention": "gqa",
    "context_attention": "gqa",
    "gemm": "gemm",
    "mla_bmm": "gemm",
    "moe": "moe",
    "wideep_generation_moe": "grouped_gemm",
    "wideep_context_moe": "grouped_gemm",
    "wideep_deepep_ll": "network",
    "wideep_deepep_normal": "network",
    "trtllm_alltoall": "network",
    "custom_allreduce": "network",
    "nccl": "network",
}


def columns_of(table: SiliconTable) -> dict[str, Array]:
    """The columns of the form that stands for this family; raise UnknownName where none does.

    A family whose rows time two kernels gives its rows twice, and `seconds` of each as another column.
    """
    if table.family not in _FILE:
        raise UnknownName("silicon family with a form", table.family, _FILE)
    module = import_module(f"moeplan.kernels.silicon_columns.{_FILE[table.family]}")
    found: dict[str, Array] = module.READERS[table.family](table)
    return found
