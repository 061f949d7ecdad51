"""What a version of an engine is known to run: all-to-all backends per family, cache formats, attention backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct

T = TypeVar("T")


class Support(Struct, frozen=True, kw_only=True, eq=False):
    """Read from data/engines/<engine>.yaml; what neither list of families holds was not verified.

    hidden_sizes: those that an all-to-all backend is compiled for, any where it is not listed; families,
    families_without: model families whose code has a path through a backend, or none; expert_formats: those that run
    through a backend without choosing a kernel by hand; fp4_cache: starts of the architectures with an NVFP4 cache;
    fp8_core: the attention backend that multiplies in FP8, by start of the architecture and kind of attention (mla,
    gqa). schedule_flags: the switch of a schedule, empty for the one that needs none; schedule_architectures: starts of
    those that run it, any where it is not listed.
    """

    hidden_sizes: dict[str, tuple[int, ...]]
    hidden_source: str
    families: dict[str, tuple[str, ...]]
    families_without: dict[str, tuple[str, ...]]
    families_source: str
    expert_formats: dict[str, tuple[str, ...]]
    expert_formats_source: str
    fp4_cache: tuple[str, ...]
    fp4_source: str
    fp8_core: dict[str, dict[str, str]]
    fp8_core_source: str
    schedule_flags: dict[str, str]
    schedule_architectures: dict[str, tuple[str, ...]]
    schedule_source: str

    def family_runs(self, backend: str, family: str) -> bool | None:
        """Whether a family's code has a path through the backend, None where that was not verified."""
        if family in self.families_without.get(backend, ()):
            return False
        return True if family in self.families.get(backend, ()) else None

    def holds_fp4_cache(self, architecture: str) -> bool:
        """Whether the engine keeps an NVFP4 cache on that architecture."""
        return architecture.startswith(self.fp4_cache)

    def fp8_core_backend(self, architecture: str, attention: str) -> str | None:
        """The attention backend with an FP8 core, None where no source names one."""
        return by_start(self.fp8_core, architecture, {}).get(attention)

    def runs_schedule(self, schedule: str, architecture: str) -> bool:
        """Whether a switch, or none at all, gives a schedule on that architecture."""
        starts = self.schedule_architectures.get(schedule, ("",))
        return schedule in self.schedule_flags and architecture.startswith(starts)


def by_start(table: Mapping[str, T], architecture: str, default: T) -> T:
    """The first entry whose key starts the architecture's name."""
    return next((value for start, value in table.items() if architecture.startswith(start)), default)
