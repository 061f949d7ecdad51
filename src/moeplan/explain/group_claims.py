"""What the grouped-GEMM article claims of EP size and GPU, held against measurements and the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from moeplan.explain.group_curves import GroupCurve, both_products, group_curves
from moeplan.explain.measured_experts import MeasuredExperts
from moeplan.ops.machine import Machine
from moeplan.specs.model import ModelSpec

BATCHES: Final = (16, 128, 512)
AT: Final = 128  # tokens per rank at which the first claim is shown
HALF: Final = (0.45, 0.55)  # what counts as about half
TIE: Final = 0.05  # what counts as a tie


class Claim(Struct, frozen=True, kw_only=True):
    """A claim in words, whether it holds, and the figures that say so."""

    claim: str
    holds: bool
    evidence: str


def group_claims(
    slower: Machine, faster: Machine, model: ModelSpec, measured: Sequence[MeasuredExperts], *, peak: float
) -> list[Claim]:
    """The three claims of the grouped-GEMM article (H200, then B200), computed; peak: FLOP/s of the first GPU."""
    curves = {
        gpu: both_products(group_curves(machine, model, batches=BATCHES, q_lens=(1,), eps=(8, 32)))
        for gpu, machine in (("first", slower), ("second", faster))
    }
    return [
        _rises_with_ep(slower, model, measured, peak),
        _half(slower, faster, curves),
        _ties(slower, faster, curves, measured),
    ]


def _rises_with_ep(machine: Machine, model: ModelSpec, measured: Sequence[MeasuredExperts], peak: float) -> Claim:
    assert model.experts is not None, "group_curves has refused a dense model"
    experts = model.experts
    gpu = machine.cluster.gpu
    points = sorted(
        (point for point in measured if point.gpu == gpu.slug and point.batch == AT), key=lambda point: point.ep
    )
    flops = 2 * 3 * AT * experts.top_k * experts.width * model.hidden
    times = [point.seconds for point in points]
    mfu = [flops / seconds / peak for seconds in times]
    rising = bool(np.all(np.diff(times) < 0)) and bool(np.all(np.diff(mfu) > 0))
    shown = ", ".join(f"{seconds * 1e6:.0f}" for seconds in times)
    shares = ", ".join(f"{100 * share:.1f}" for share in mfu)
    ranks = ", ".join(str(point.ep) for point in points)
    groups = ", ".join(f"{experts.count / point.ep:g}" for point in points)
    return Claim(
        claim="With the batch per rank held, time and MFU improve with the EP size, since m grows.",
        holds=rising and len(points) > 1,
        evidence=f"measured on {gpu.name}, {AT} tokens per rank, EP {ranks}: {shown} µs, MFU {shares} %; the groups of "
        f"a rank are not constant, as the article says, but fall: {groups}",
    )


def _half(slower: Machine, faster: Machine, curves: Mapping[str, list[GroupCurve]]) -> Claim:
    ratios = _ratios(curves, 8)
    return Claim(
        claim=f"On 8 GPUs {faster.cluster.gpu.name} takes about half of {slower.cluster.gpu.name}'s time.",
        holds=all(HALF[0] <= ratio <= HALF[1] for ratio in ratios),
        evidence=f"model, EP8, {_batches()} requests per rank: {_shown(ratios)} of the time",
    )


def _ties(
    slower: Machine, faster: Machine, curves: Mapping[str, list[GroupCurve]], measured: Sequence[MeasuredExperts]
) -> Claim:
    ratios = _ratios(curves, 32)
    first, second = (
        {point.batch: point.seconds for point in measured if point.gpu == machine.cluster.gpu.slug and point.ep == 32}
        for machine in (slower, faster)
    )
    shared = sorted(first.keys() & second.keys())
    seen = [second[batch] / first[batch] for batch in shared]
    text = f"model, EP32, {_batches()} requests per rank: {_shown(ratios)} of the time"
    if seen:
        text += f"; measured at {', '.join(f'{batch:g}' for batch in shared)}: {_shown(seen)}"
    return Claim(
        claim=f"At 32 GPUs {faster.cluster.gpu.name} and {slower.cluster.gpu.name} tie.",
        holds=all(abs(ratio - 1) <= TIE for ratio in (*ratios, *seen)),
        evidence=text,
    )


def _ratios(curves: Mapping[str, list[GroupCurve]], ep: int) -> list[float]:
    first, second = (next(curve for curve in curves[key] if curve.ep == ep) for key in ("first", "second"))
    return [float(ratio) for ratio in second.seconds / first.seconds]


def _batches() -> str:
    return ", ".join(map(str, BATCHES))


def _shown(ratios: Sequence[float]) -> str:
    return ", ".join(f"{ratio:.2f}" for ratio in ratios)
