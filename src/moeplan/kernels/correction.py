"""What a measured table adds to a fit: how much faster or slower the kernel was than the fit says, shape by shape.

Between measured shapes this ratio is interpolated, beyond them the nearest one is carried, so that outside its range a
table goes on as the fit does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct, field

from moeplan.kernels.fit import Fit
from moeplan.kernels.forms.form import Shape
from moeplan.kernels.forms.network import USUAL
from moeplan.kernels.origin import Origin
from moeplan.kernels.surface import Surface
from moeplan.kinds import Array, Real
from moeplan.specs.gpu import Gpu

LOOSE: Final = ("nic_rate", "nic_latency")  # of a fabric: figures that cards of one kind have alike, not the same
ALIKE: Final = math.log(1.025)
Point = tuple[float, float, float]  # series, line, fitted over measured time
NEAR: Final = math.log(4.0)  # a weight shape counts as near a measured one when its sides differ by less than 4x in all


class Axes(Struct, frozen=True, kw_only=True, eq=False):
    """How a form's columns span a table: those that name a surface, and the two axes of each.

    kept: of so many of the names, the first ones, no other value will do. near: how far the others may be in all.
    """

    names: tuple[str, ...]
    series: Callable[[Shape], Real]
    line: Callable[[Shape], Real]
    kept: int = 0
    near: float = NEAR


def _one(shape: Shape) -> Real:
    return np.ones_like(np.asarray(shape["m"], dtype=float))


def _slots(shape: Shape) -> Real:
    """All groups of a rank, with rows or not; a prediction says how many, which no batch changes."""
    return shape["slots"] if "slots" in shape else shape["groups"] + shape.get("idle", 0.0)


def _tokens(shape: Shape) -> Real:
    return shape["tokens"]


def _alone(shape: Shape) -> Real:
    return np.ones_like(np.asarray(shape["tokens" if "tokens" in shape else "bytes"], dtype=float))


_ROUTED: Final = ("hidden", "top_k", "experts")
_ROUTING: Final = tuple(USUAL)
_FABRIC: Final = ("ep", "per_node", "nic_rate", "nic_latency", *_ROUTING)
AXES: Final[dict[str, Axes]] = {
    "gemm": Axes(names=("n", "k"), series=_one, line=lambda shape: shape["m"]),
    "batched_gemm": Axes(names=("n", "k"), series=lambda shape: shape["copies"], line=lambda shape: shape["m"]),
    "grouped_gemm": Axes(names=("n", "k"), series=_slots, line=lambda shape: shape["m"]),
    "mla_decode": Axes(
        names=(),
        series=lambda shape: shape["heads"] * shape["q_len"],
        line=lambda shape: shape["batch"] * shape["context"],
    ),
    "gqa_decode": Axes(
        names=("heads", "kv_heads", "head_dim"),
        series=lambda shape: shape["batch"] * shape["q_len"],
        line=lambda shape: shape["context"],
    ),
    "deepep_low_latency": Axes(names=(*_FABRIC, *_ROUTED), series=_alone, line=_tokens, kept=len(_FABRIC)),
    "deepep_normal": Axes(
        names=(*_FABRIC, *_ROUTED), series=lambda shape: shape["sms"], line=_tokens, kept=len(_FABRIC)
    ),
    "nvlink_all_to_all": Axes(names=("ep", *_ROUTING, *_ROUTED), series=_alone, line=_tokens, kept=1 + len(_ROUTING)),
    "all_reduce": Axes(names=("ranks",), series=_alone, line=lambda shape: shape["bytes"], kept=1),
    "nccl": Axes(names=("ranks",), series=_alone, line=lambda shape: shape["bytes"], kept=1),
}


class Corrected(Struct, frozen=True, kw_only=True, eq=False):
    """fitted over measured time, how sure that is, and how far the nearest surface was: |ln| summed over its names."""

    speed: Real
    origin: Origin
    distance: float
    nearest: tuple[float, ...]


class Correction(Struct, frozen=True, kw_only=True, eq=False):
    """Surfaces of fitted over measured time, by the columns that name them; title: of the table, gpu: measured.

    points: see points_of. A table has hundreds of weight shapes, a model asks for few: a surface is built when it does.
    """

    title: str
    gpu: str
    axes: Axes
    points: dict[tuple[float, ...], list[Point]]
    best_origin: Origin = Origin.MEASURED
    of_both: bool = False  # the rows time both products of an expert together
    packaged: bool = True  # measured on the packaged chip of that name, not by the user
    _built: dict[tuple[float, ...], Surface] = field(default_factory=dict)
    _asked: dict[tuple[float, ...], tuple[tuple[float, ...], float]] = field(default_factory=dict)

    @classmethod
    def of(cls, title: str, gpu: Gpu, shape: Shape, seconds: Array, fit: Fit, best: Origin) -> Correction:
        """Build from measured rows; gpu: the chip that was measured."""
        return cls(
            title=title,
            gpu=gpu.slug,
            axes=AXES[fit.form.name],
            points=points_of(gpu, shape, seconds, fit),
            best_origin=best,
            of_both=bool(np.any(shape.get("both", 0))),
        )

    def at(self, shape: Shape) -> Corrected:
        """The correction at a shape, whose naming columns are numbers, not arrays."""
        found, distance = self.nearest(shape)
        speed, origin = self._surface(found).at(self.axes.series(shape), self.axes.line(shape))
        return Corrected(speed=speed, origin=max(origin, self.best_origin), distance=distance, nearest=found)

    def values(self, name: str) -> frozenset[float]:
        """What a naming column holds in this table."""
        place = self.axes.names.index(name)
        return frozenset(key[place] for key in self.points)

    def nearest(self, shape: Shape) -> tuple[tuple[float, ...], float]:
        """The name of the nearest surface and how far it is, see Corrected."""
        wanted = tuple(float(np.max(_named(shape, name))) for name in self.axes.names)
        if wanted not in self._asked:
            self._asked[wanted] = self._nearest(wanted)
        return self._asked[wanted]

    def _surface(self, name: tuple[float, ...]) -> Surface:
        if name not in self._built:
            self._built[name] = Surface.of(self.points[name])
        return self._built[name]

    def _nearest(self, wanted: tuple[float, ...]) -> tuple[tuple[float, ...], float]:
        if wanted in self.points:
            return wanted, 0.0
        names = np.array(list(self.points))
        apart = np.abs(np.log(names / np.array(wanted)))
        kept = self.axes.kept
        allowed = [ALIKE if name in LOOSE else 0.0 for name in self.axes.names[:kept]]
        other = (apart[:, :kept] > np.array(allowed)).any(axis=1)
        distance = np.where(other, np.inf, apart[:, kept:].sum(axis=1))
        place = int(np.lexsort((*names.T[::-1], distance))[0])
        return tuple(names[place].tolist()), float(distance[place])


def _named(shape: Shape, name: str) -> Real:
    return shape[name] if name in shape else USUAL[name]


def points_of(gpu: Gpu, shape: Shape, seconds: Array, fit: Fit) -> dict[tuple[float, ...], list[Point]]:
    """Measured rows by the columns that name a surface: its two axes, and fitted over measured time."""
    axes = AXES[fit.form.name]
    columns = (*(_named(shape, name) for name in axes.names), axes.series(shape), axes.line(shape))
    rows = [np.broadcast_to(column, seconds.shape).tolist() for column in columns]
    speed = (np.broadcast_to(fit.parts(gpu, shape).seconds, seconds.shape) / seconds).tolist()
    points: dict[tuple[float, ...], list[Point]] = {}
    for *name, series, line, found in zip(*rows, speed, strict=True):
        points.setdefault(tuple(name), []).append((series, line, found))
    return points
