"""Which backends measure a family, the one that engines serve with first."""

from __future__ import annotations

from typing import Final

from moeplan.bench.backends.base import Backend
from moeplan.bench.backends.deep_ep import DeepEp
from moeplan.bench.backends.deep_gemm_dense import DeepGemmDense
from moeplan.bench.backends.deep_gemm_grouped import DeepGemmGrouped
from moeplan.bench.backends.flash_mla import FlashMla
from moeplan.bench.backends.flashinfer_mla import FlashInferMla
from moeplan.bench.backends.torch_all_to_all import TorchAllToAll
from moeplan.bench.backends.torch_bmm import TorchBmm
from moeplan.bench.backends.torch_copy import TorchCopy
from moeplan.bench.backends.torch_gemm import TorchScaledMm
from moeplan.bench.backends.torch_grouped import TorchGrouped
from moeplan.bench.backends.torch_mla import TorchMla
from moeplan.bench.backends.triton_grouped import TritonGrouped
from moeplan.bench.family import Family
from moeplan.bench.libraries import DRY, Absent
from moeplan.errors import Fault, InputError, suggestion

AUTO: Final = "auto"
BACKENDS: Final[dict[Family, tuple[type[Backend], ...]]] = {
    "gemm_fp8": (DeepGemmDense, TorchScaledMm),
    "gemm_batched_bf16": (TorchBmm,),
    "grouped_gemm_fp8": (DeepGemmGrouped, TorchGrouped, TritonGrouped),
    "mla_decode_bf16": (FlashMla, FlashInferMla, TorchMla),
    "copy": (TorchCopy,),
    "dispatch": (DeepEp, TorchAllToAll),
    "combine": (DeepEp, TorchAllToAll),
}


def choose(family: Family, asked: str) -> type[Backend]:
    """The backend of that name, or with «auto» the first that is installed.

    Raises InputError for a name that the family does not have, Absent when a library is missing.
    """
    known = {item.backend: item for item in BACKENDS[family]}
    if asked == AUTO:
        for backend in known.values():
            if backend.available() and not backend.by_name_only:
                return backend
        names = " or ".join(name for name, item in known.items() if not item.by_name_only)
        raise Absent("--backend", f"none is installed for {family}", f"install {names}, {DRY}")
    if asked not in known:
        fix = suggestion(asked, known) or f"one of {AUTO}, {', '.join(known)}"
        raise InputError("options", [Fault("--backend", f"{asked!r} does not measure {family}", fix)])
    found = known[asked]
    if not found.available():
        others = [name for name, item in known.items() if item.available()]
        fix = f"install it{', say --backend ' + others[0] if others else ''}, {DRY}"
        raise Absent("--backend", f"{asked} is not installed", fix)
    return found
