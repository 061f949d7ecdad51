"""What is wrong with rows of the silicon tables: rules from silicon.yaml, and how each is found in a table.

Rows are marked, never dropped: a reader that fits leaves the unfit ones out, one that lists shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntFlag
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from moeplan.kinds import Array
from moeplan.specs.catalog import Catalog
from moeplan.specs.loading import build, read_mapping

Columns: TypeAlias = Mapping[str, NDArray[Any]]
Mask: TypeAlias = NDArray[np.bool_]

SMALLEST_SHARE = 0.1  # of a group's rows, from which a floor is read
KEY_ROOM = 2**62  # of an int64


class Flag(IntFlag):
    """One bit per thing to know of a row; its text is the name in lower case with a dash."""

    HOST_BOUND = 1  # the host's launch is timed, not the kernel
    EAGER = 2  # without a CUDA graph, as no engine decodes
    MISLABELLED = 4  # the routing that was timed is not the one the row names
    OTHER_WORK = 8  # the kernel did several times the work the row names
    BAD_TACTIC = 16  # much slower than the same kernel with at least as much work
    OTHER_DEVICE = 32  # measured on another GPU than most of the file
    NOT_TIMED = 64  # the time is zero
    OTHER_VERSION = 128  # measured with another engine version than the folder names
    DUPLICATED = 256  # the median of several rows with the same key
    UNGATED = 512  # a MoE with two weight matrices, not three
    UNFUSED_TOP_K = 1024  # the sum over experts is not fused into the kernel

    @property
    def words(self) -> tuple[str, ...]:
        """The names of all bits that are set."""
        return tuple(flag.name.lower().replace("_", "-") for flag in Flag if flag in self and flag.name)


UNFIT = (
    Flag.HOST_BOUND
    | Flag.EAGER
    | Flag.MISLABELLED
    | Flag.OTHER_WORK
    | Flag.BAD_TACTIC
    | Flag.OTHER_DEVICE
    | Flag.NOT_TIMED
)


class Floor(Struct, frozen=True, kw_only=True):
    """Rows that take no more than `factor` times the floor of their group.

    The floor is the quantile `at` of the times of the group's smallest tenth, by work / share.
    """

    factor: float
    at: float = 0.5
    work: tuple[str, ...]
    share: tuple[str, ...] = ()
    per: tuple[str, ...] = ()


class Outdone(Struct, frozen=True, kw_only=True):
    """Rows that take more than `factor` times as long as one with at least as much work, all else equal.

    Work grows with the columns `more` and shrinks with the columns `less`.
    """

    factor: float
    more: tuple[str, ...] = ()
    less: tuple[str, ...] = ()


class Rule(Struct, frozen=True, kw_only=True):
    """Which rows get a flag: every condition that is written must hold; of `shapes` any one."""

    flag: Literal["host-bound", "eager", "mislabelled", "other-work", "bad-tactic", "ungated", "unfused-top-k"]
    families: tuple[str, ...]
    why: str
    engines: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    text: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shapes: tuple[dict[str, int], ...] = ()
    least: dict[str, int] = field(default_factory=dict)
    floor: Floor | None = None
    outdone: Outdone | None = None

    def holds_for(self, family: str, engine: str, version: str) -> bool:
        """Say whether the rule is about that file."""
        return (
            family in self.families
            and (not self.engines or engine in self.engines)
            and (not self.versions or version in self.versions)
        )

    def rows(self, columns: Columns, words: Columns, seconds: Array) -> Mask:
        """Return which rows the rule marks; a text column holds places in its list of words."""
        found = np.ones(seconds.size, dtype=np.bool_)
        for name, wanted in self.text.items():
            found &= np.isin(columns[name], [place for place, word in enumerate(words[name]) if word in wanted])
        for name, least in self.least.items():
            found &= columns[name] >= least
        if self.shapes:
            found &= np.any([_all_equal(columns, shape) for shape in self.shapes], axis=0)
        if self.floor is not None:
            found = _at_floor(self.floor, columns, seconds, found)
        if self.outdone is not None:
            found &= _is_outdone(self.outdone, columns, seconds)
        return found


class SiliconFacts(Struct, frozen=True, kw_only=True, eq=False):
    """silicon.yaml: the folder of each of our GPUs, and the rules."""

    systems: dict[str, str]
    rules: tuple[Rule, ...]


def silicon_facts(catalog: Catalog | None = None) -> SiliconFacts:
    """Read silicon.yaml; raise InputError."""
    path = (catalog or Catalog.standard()).data_file("kernels", "silicon.yaml")
    return _facts(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _facts(path: Path, _changed: int) -> SiliconFacts:
    return build(SiliconFacts, read_mapping(path), str(path))


def flags_of(columns: Columns, words: Columns, seconds: Array, rules: Sequence[Rule]) -> NDArray[np.uint16]:
    """Return the flags of every row that the rules find; see Rule.rows."""
    flags = np.zeros(seconds.size, dtype=np.uint16)
    for rule in rules:
        flags[rule.rows(columns, words, seconds)] |= np.uint16(Flag[rule.flag.upper().replace("-", "_")])
    return flags


def key_of(columns: Columns, names: Sequence[str], size: int) -> NDArray[np.int64]:
    """Return one number per row, equal where all named columns are equal and ascending in their order."""
    key, room = np.zeros(size, dtype=np.int64), 1
    for name in names:
        values, code = np.unique(columns[name], return_inverse=True)
        if room * values.size > KEY_ROOM:
            taken, key = np.unique(key, return_inverse=True)
            room = taken.size
        key, room = key * values.size + code, room * values.size
    return key


def _all_equal(columns: Columns, shape: Mapping[str, int]) -> Mask:
    mask: Mask = np.all([columns[name] == value for name, value in shape.items()], axis=0)
    return mask


def _at_floor(floor: Floor, columns: Columns, seconds: Array, among: Mask) -> Mask:
    found, places = np.zeros(seconds.size, dtype=np.bool_), np.flatnonzero(among)
    work = prod((columns[name][places].astype(float) for name in floor.work), start=np.ones(places.size))
    work = work / prod((columns[name][places] for name in floor.share), start=np.ones(places.size))
    _, group = np.unique(key_of(columns, floor.per, seconds.size)[places], return_inverse=True)
    for number in range(int(group.max(initial=-1)) + 1):
        own = places[group == number]
        size = work[group == number]
        smallest = own[size <= np.quantile(size, SMALLEST_SHARE)]
        found[own] = seconds[own] <= floor.factor * np.quantile(seconds[smallest], floor.at)
    return found


def _is_outdone(outdone: Outdone, columns: Columns, seconds: Array) -> Mask:
    axes = (*outdone.more, *outdone.less)
    others = [name for name in columns if name not in axes and columns[name].dtype.kind in "ib"]
    groups, group = np.unique(key_of(columns, others, seconds.size), return_inverse=True)
    places, shape = [group], [groups.size]
    for name in axes:
        values, code = np.unique(columns[name], return_inverse=True)
        places.append(code if name in outdone.less else values.size - 1 - code)
        shape.append(values.size)
    best = np.full(shape, np.inf)
    best[tuple(places)] = np.where(seconds > 0, seconds, np.inf)
    for axis in range(1, best.ndim):  # from most work to least
        best = np.minimum.accumulate(best, axis=axis)
    slower: Mask = seconds > outdone.factor * best[tuple(places)]
    return slower
