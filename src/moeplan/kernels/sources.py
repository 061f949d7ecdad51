"""Which sources may answer for a kernel's time, and whose kernels are meant."""

from __future__ import annotations

from typing import Final, Literal, get_args

from msgspec import Struct

from moeplan.errors import Fault, InputError, suggestion

Source = Literal["table", "silicon", "fitted", "assumed", "article"]
SOURCES: Final = get_args(Source)
USUAL: Final[tuple[Source, ...]] = ("table", "silicon", "fitted", "assumed")
ENGINES: Final = ("sglang", "vllm", "trtllm")
MEANING: Final[dict[Source, str]] = {
    "table": "measured tables, yours before the packaged ones",
    "silicon": "the tables of aiconfigurator-core, where it is installed",
    "fitted": "forms fitted to measured tables, carried to other chips by their peaks",
    "assumed": "what stands in where nothing else is",
    "article": "the MFU figures that the throughput article publishes",
}


class KernelSources(Struct, frozen=True, kw_only=True):
    """Sources that may answer; they are asked in the order of SOURCES, but the user's table before all.

    engine: whose kernels come first where several were measured. strict: whether an operator that rests on an
    assumption, for which tables exist elsewhere, makes the answer an error.
    """

    allowed: tuple[Source, ...] = USUAL
    engine: str = "sglang"
    strict: bool = False

    def may(self, source: Source) -> bool:
        """Whether a source is allowed."""
        return source in self.allowed

    @property
    def article(self) -> bool:
        """Whether the article's figures alone are asked."""
        return self.may("article")


ALL: Final = KernelSources()
ARTICLE: Final = KernelSources(allowed=("article",))


def read_sources(text: str, *, strict: bool = False) -> KernelSources:
    """Read «table,silicon=trtllm,fitted»; raise InputError naming every fault."""
    faults, allowed, engine = [], [], "sglang"
    for part in (part.strip() for part in text.split(",")):
        name, equals, value = part.partition("=")
        if name not in SOURCES:
            fix = suggestion(name, SOURCES) or f"of {', '.join(SOURCES)}"
            faults.append(Fault("--kernels", f"unknown source {name!r}" if name else "is empty", fix))
        elif equals and name != "silicon":
            faults.append(Fault("--kernels", f"{part!r}: only silicon takes an engine", "write silicon=trtllm"))
        elif equals and value not in ENGINES:
            fix = suggestion(value, ENGINES) or f"one of {', '.join(ENGINES)}"
            faults.append(Fault("--kernels", f"unknown engine {value!r}", fix))
        else:
            engine = value or engine
            allowed.append(name)
    if "article" in allowed and len(set(allowed)) > 1:
        faults.append(Fault("--kernels", "mixes article with other sources", "give article alone"))
    if faults:
        raise InputError("options", faults)
    return KernelSources(allowed=tuple(name for name in SOURCES if name in allowed), engine=engine, strict=strict)
