"""What a GPU is: memory, dense peaks per precision, vector rate, attention overlap class, scale-up link."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct, field

from moeplan.errors import Fault, InputError, Unsupported, suggestion

PRECISIONS = ("bf16", "fp8", "fp4", "int8")
USUAL_SMS = 132  # of H100, H200, H800
EDITED = "set by hand"  # why a figure is assumed that was given on the command line
AttentionOverlap = Literal["none", "two-stage", "three-stage"]
MOST_JOINED = 10_000  # GPUs of a node or a scale-up domain: more is a slip of the pen


class Memory(Struct, frozen=True, kw_only=True):
    """Device memory: capacity in bytes, bandwidth in bytes/s; `capacity_is` says who states the capacity."""

    capacity: Annotated[float, "B"]
    bandwidth: Annotated[float, "B/s"]
    capacity_is: Literal["reported", "nominal"] = "nominal"


class ScaleUp(Struct, frozen=True, kw_only=True):
    """The link between GPUs of one domain (NVLink, xGMI): bytes/s in one direction per GPU, GPUs per domain."""

    bandwidth: Annotated[float, "B/s"]
    domain: int


class Gpu(Struct, frozen=True, kw_only=True):
    """One accelerator; every figure with its source, SI base units.

    compute: dense FLOP/s per precision (bf16, fp8, fp4, int8). A precision that is not there is not available, unless
    `substitutes` names the one that stands in for it (int8 for fp8 on A100). vector_rate: exp2 per second of the whole
    GPU. attention_overlap: how much of softmax hides behind the two GEMMs of attention (FlashAttention-3, section 3.2).
    sms: streaming multiprocessors, compute units or cores, whatever runs one thread block; l2: bytes of the last cache.
    sources: where each figure was read, by key or key prefix. assumed: figures that are guesses, and why.
    """

    name: str
    vendor: str
    architecture: str
    memory: Memory
    compute: Annotated[dict[str, float], "FLOP/s"]
    vector_rate: Annotated[float, "op/s"]
    attention_overlap: AttentionOverlap
    substitutes: dict[str, str] = field(default_factory=dict)
    scale_up: ScaleUp | None = None
    sms: int | None = None
    l2: Annotated[float | None, "B"] = None
    gpus_per_node: int = 8
    tdp: Annotated[float | None, "W"] = None
    price: Annotated[float | None, "USD/h"] = None
    sources: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    slug: str = ""  # the name of its file, by which kernel tables are found

    def __post_init__(self) -> None:
        faults = [
            Fault(f"substitutes.{wanted}", f"stands on {given!r}, which `compute` does not list", "list its rate")
            for wanted, given in self.substitutes.items()
            if given not in self.compute
        ]
        positive = {
            "memory.capacity": self.memory.capacity,
            "memory.bandwidth": self.memory.bandwidth,
            "vector_rate": self.vector_rate,
            "gpus_per_node": self.gpus_per_node,
            **{f"compute.{key}": value for key, value in self.compute.items()},
        }
        positive |= {name: value for name, value in (("sms", self.sms), ("l2", self.l2)) if value is not None}
        if self.scale_up is not None:
            positive |= {"scale_up.bandwidth": self.scale_up.bandwidth, "scale_up.domain": self.scale_up.domain}
        faults += [Fault(path, "is zero", "give the real figure") for path, value in positive.items() if not value > 0]
        faults += [
            Fault(path, f"is {positive[path]:g}", f"give at most {MOST_JOINED:,}, the GPUs that one thing joins")
            for path in ("gpus_per_node", "scale_up.domain")
            if positive.get(path, 0) > MOST_JOINED
        ]
        faults += [
            Fault(f"compute.{key}", "unknown precision", suggestion(key, PRECISIONS) or f"of {', '.join(PRECISIONS)}")
            for key in self.compute
            if key not in PRECISIONS
        ]
        if not self.compute:
            faults.append(Fault("compute", "is empty", "give at least bf16"))
        if faults:
            raise InputError(self.name, faults)

    def peak(self, precision: str) -> float:
        """Return dense FLOP/s at that precision or its named substitute; raise Unsupported when there is neither."""
        rate = self.compute.get(precision)
        if rate is None and precision in self.substitutes:
            rate = self.compute[self.substitutes[precision]]
        if rate is None:
            fix = f"{self.name} has {', '.join(self.compute)}; choose one of these precisions or name a substitute"
            raise Unsupported(self.name, [Fault("precision", f"no {precision} on {self.name}", fix)])
        return rate

    def supports(self, precision: str) -> bool:
        """Say whether peak(precision) has an answer."""
        return precision in self.compute or precision in self.substitutes

    @property
    def units(self) -> int:
        """SMs, or as many as Hopper's where the file does not say."""
        return self.sms if self.sms is not None else USUAL_SMS

    @property
    def domain(self) -> int:
        """GPUs that reach each other over the scale-up link; 1 for a chip without one."""
        return self.scale_up.domain if self.scale_up is not None else 1
