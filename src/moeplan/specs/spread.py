"""The ways to spread a model over the GPUs of an instance, by their usual names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from moeplan.errors import Fault, InputError, suggestion
from moeplan.specs.deployment import ALL_GATHER, ALL_REDUCE, LOW_LATENCY, head_faults
from moeplan.specs.model import ModelSpec

LAYOUTS: Final = {
    "dep": "attention by requests (DP), experts whole on their ranks (EP), tokens sent by an all-to-all",
    "dep-ag": "attention by requests, experts whole, all tokens gathered on all GPUs",
    "dtp-ag": "attention by requests, every expert cut over all GPUs, all tokens gathered",
    "tep": "attention by heads (TP) over all GPUs, experts whole on their ranks, outputs added up",
    "tp": "attention by heads and every expert cut over all GPUs, outputs added up",
}
EVERYWHERE: Final = MappingProxyType({LOW_LATENCY: (0.0, inf)})  # this all-to-all at every size
BLOCK: Final = 128  # columns that share a scale of an fp8_block weight: a cut may not fall inside


class Spread(Struct, frozen=True, kw_only=True):
    """One layout at some instance sizes: `counts` GPUs, attention over tp of them, an expert over moe_tp."""

    layout: str
    tp: int
    moe_tp: int
    exchange: str
    counts: tuple[int, ...]


def named_layouts(names: Sequence[str]) -> tuple[str, ...]:
    """The layouts of these names, in the order of LAYOUTS; raise InputError naming every unknown one."""
    faults = [
        Fault("--layout", f"unknown {name!r}", suggestion(name, LAYOUTS) or f"one of {', '.join(LAYOUTS)}")
        for name in names
        if name not in LAYOUTS
    ]
    if faults:
        raise InputError("options", faults)
    return tuple(name for name in LAYOUTS if name in names)


def spreads(
    model: ModelSpec,
    counts: Sequence[int],
    layouts: Sequence[str],
    tps: Sequence[int],
    reach: Mapping[str, tuple[float, float]] = EVERYWHERE,
) -> tuple[Spread, ...]:
    """Every spread that a model's heads and widths allow at these instance sizes; tps: GPUs per attention rank.

    A layout in which all GPUs share each head or expert is a spread of its own at every size. reach: all-to-alls to
    send tokens by, each at sizes above the first number and up to the second.
    """
    return tuple(spread for layout in layouts for spread in _of_layout(layout, model, tuple(counts), tuple(tps), reach))


def _of_layout(
    layout: str,
    model: ModelSpec,
    counts: tuple[int, ...],
    tps: tuple[int, ...],
    reach: Mapping[str, tuple[float, float]],
) -> Iterator[Spread]:
    if layout == "dep":
        return _sent(model, counts, tps, reach)
    if layout == "tep":
        return _added(model, counts)
    if layout == "tp":
        return _added_cut(model, counts)
    return {"dep-ag": _gathered, "dtp-ag": _cut}[layout](model, counts, tps)


def _sent(
    model: ModelSpec, counts: tuple[int, ...], tps: tuple[int, ...], reach: Mapping[str, tuple[float, float]]
) -> Iterator[Spread]:
    for name, (over, most) in reach.items():
        reached = tuple(count for count in counts if over < count <= most)
        for tp in tps:
            fitting = tuple(count for count in reached if count % tp == 0 and (count > tp or tp == 1))
            fitting = fitting if model.is_moe else fitting[:1]  # replicas of a dense model are all alike
            if fitting and _heads(model, tp):
                yield Spread(layout="dep", tp=tp, moe_tp=1, exchange=name, counts=fitting)


def _gathered(model: ModelSpec, counts: tuple[int, ...], tps: tuple[int, ...]) -> Iterator[Spread]:
    for tp in tps if model.is_moe else ():
        fitting = tuple(count for count in counts if count % tp == 0 and count > tp)
        if fitting and _heads(model, tp):
            yield Spread(layout="dep-ag", tp=tp, moe_tp=1, exchange=ALL_GATHER, counts=fitting)


def _cut(model: ModelSpec, counts: tuple[int, ...], tps: tuple[int, ...]) -> Iterator[Spread]:
    for tp in tps if model.is_moe else ():
        for count in counts:
            if count % tp == 0 and count > tp and _heads(model, tp) and _width(model, count):
                yield Spread(layout="dtp-ag", tp=tp, moe_tp=count, exchange=ALL_GATHER, counts=(count,))


def _added(model: ModelSpec, counts: tuple[int, ...]) -> Iterator[Spread]:
    for count in counts if model.is_moe else ():
        if count > 1 and _heads(model, count):
            yield Spread(layout="tep", tp=count, moe_tp=1, exchange=ALL_REDUCE, counts=(count,))


def _added_cut(model: ModelSpec, counts: tuple[int, ...]) -> Iterator[Spread]:
    for count in counts:
        if count > 1 and _heads(model, count) and _width(model, count):
            yield Spread(layout="tp", tp=count, moe_tp=count, exchange=ALL_REDUCE, counts=(count,))


def _heads(model: ModelSpec, tp: int) -> bool:
    return not any(head_faults(model, tp))


def _width(model: ModelSpec, ranks: int) -> bool:
    """Whether an expert, or a dense layer, can be cut so."""
    width = model.experts.width if model.experts is not None else model.dense_width
    blocks = BLOCK if model.formats.experts == "fp8_block" and model.is_moe else 1
    return width % (ranks * blocks) == 0
