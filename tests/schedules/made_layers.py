"""Layers whose stages have times chosen by hand."""

from __future__ import annotations

from typing import Literal

from moeplan.kernels.origin import Origin
from moeplan.kinds import Real
from moeplan.layers.layer import Layer
from moeplan.layers.stage import Stage, StageName
from moeplan.ops.cost import Cost

NAMES: tuple[StageName, ...] = ("attention_front", "attention_back", "dispatch", "shared", "routed", "combine")
NETWORK = ("dispatch", "combine")


def layer(*, share: Real = 0.0, **seconds: Real) -> Layer:
    """A stage is the sum of two operators; share: of the SMs, what the network takes."""

    def cost(stage: StageName, name: str, part: Real) -> Cost:
        lane: Literal["compute", "network"] = "network" if stage in NETWORK else "compute"
        return Cost(
            name=name,
            seconds=part,
            parts={"compute": part},
            efficiencies={},
            origin=Origin.MEASURED,
            source="this test",
            formula="",
            lane=lane,
            sm_share=share if lane == "network" else 0.0,
        )

    def stage(name: StageName) -> Stage:
        names = ("routed_gate_up", "routed_down") if name == "routed" else (f"{name}_0", f"{name}_1")
        parts = (0.25 * seconds[name], 0.75 * seconds[name])
        return Stage(name, tuple(cost(name, of, part) for of, part in zip(names, parts, strict=True)))

    return Layer({name: stage(name) for name in (*NAMES, "dense") if name in seconds})


def sparse(a0: Real, a1: Real, d: Real, s: Real, e: Real, c: Real, *, share: Real = 0.0) -> Layer:
    """A layer with experts, its stages in the order of NAMES."""
    return layer(share=share, attention_front=a0, attention_back=a1, dispatch=d, shared=s, routed=e, combine=c)
