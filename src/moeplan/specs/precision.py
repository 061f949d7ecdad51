"""Number formats: how many bytes an element takes in memory, and at which precision it is multiplied."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from moeplan.errors import UnknownName


class Format(Struct, frozen=True, kw_only=True):
    """A storage format of weights or cache.

    bytes_per_element includes the scales that are stored beside the elements; `computes_in` names the tensor-core
    precision of the multiplication; `activation_bytes` is what one input element takes when the kernel reads it.
    """

    name: str
    bytes_per_element: float
    computes_in: str
    activation_bytes: float


def _format(name: str, bytes_per_element: float, computes_in: str, activation_bytes: float) -> Format:
    return Format(
        name=name,
        bytes_per_element=bytes_per_element,
        computes_in=computes_in,
        activation_bytes=activation_bytes,
    )


# Scales: fp8_block one fp32 per 128 x 128 weights and one per 128 activations; mxfp4 one byte per 32 (17/32);
# nvfp4 one byte per 16 (9/16); int4_g32 one bf16 per 32 (9/16). mxfp4 and int4 hold weights only: the kernel widens
# them and multiplies in bf16, unless a GPU with fp4 tensor cores and 4-bit activations is used (nvfp4).
FORMATS: Final = {
    item.name: item
    for item in (
        _format("fp32", 4.0, "bf16", 4.0),
        _format("bf16", 2.0, "bf16", 2.0),
        _format("fp8", 1.0, "fp8", 1.0),
        _format("fp8_block", 1.0 + 4.0 / 128**2, "fp8", 1.0 + 4.0 / 128),
        _format("int8", 1.0, "int8", 1.0),
        _format("nvfp4", 9.0 / 16, "fp4", 9.0 / 16),
        _format("mxfp4", 17.0 / 32, "bf16", 2.0),
        _format("int4_g32", 9.0 / 16, "bf16", 2.0),
    )
}


def weight_format(name: str) -> Format:
    """Return the format of that name; raise UnknownName, never fall back to 16 bits."""
    if name not in FORMATS:
        raise UnknownName("precision", name, FORMATS)
    return FORMATS[name]


def bytes_per_weight(name: str) -> float:
    """Return stored bytes per weight, scales included: nvfp4 0.5625, mxfp4 0.53125."""
    return weight_format(name).bytes_per_element
