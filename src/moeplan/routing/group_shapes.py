"""Grouped-GEMM shapes of a step: groups with rows, rows of a group, the busiest rank, in expectation and at the tails.

Beside the grouped-GEMM article's bounds stand the exact laws that it approximates: tokens are independent, each picks
top_k distinct experts with given probabilities, so an expert's rows are binomial and a rank's rows a sum over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from moeplan.errors import Fault, InputError, together
from moeplan.kinds import Array, Real
from moeplan.routing.article_shapes import ArticleShapes, article_shapes
from moeplan.routing.capacity import check_factor
from moeplan.routing.coverage import NO_LIMIT, GroupLimit
from moeplan.routing.draws import SEED
from moeplan.routing.extremes import Extreme
from moeplan.routing.layout import layout
from moeplan.routing.picks import picks
from moeplan.routing.placement import PlacementName
from moeplan.routing.popularity import Popularity
from moeplan.routing.popularity import popularity as read_popularity
from moeplan.routing.step_rows import DEFAULT_DRAWS, StepRows, step_rows


class GroupShapes(Struct, frozen=True, kw_only=True, eq=False):
    """One step of a grouped GEMM over an EP group; scalars, or arrays over batch, q_len and ep.

    held: what stays fixed when ep moves, «batch per rank» or «global batch». A slot is an expert or a replica of one; a
    group of the grouped GEMM is a slot with rows.
    """

    held: str
    popularity: Popularity
    placement: str
    limit: GroupLimit
    method: str  # of the largest numbers: closed form, or Monte Carlo
    article: ArticleShapes
    batch: Real  # per rank
    ep: Real
    tokens: Real  # of the whole EP group
    rows: Real  # tokens · top_k, before any is dropped
    slots_per_rank: Real  # in the mean
    active: Real  # groups with rows on a rank, mean over ranks
    active_most: Real  # the same on the rank that expects most
    idle: Real  # probability that a slot has no row
    rows_per_slot: Real
    rows_if_active: Real
    rows_p50: Real
    rows_p99: Real
    largest_on_rank: Extreme  # most rows of one slot on a rank, ranks drawn at random
    largest: Extreme  # most rows of one slot anywhere
    rank_rows: Real  # mean over ranks
    rank_deviation: Real  # standard deviation of one rank's rows before any is dropped, root mean square over ranks
    rank_rows_hottest: Real  # expected rows of the rank that expects most
    busiest: Extreme  # most rows of one rank
    targets: Real  # different ranks that a token goes to
    limit_rows: Real  # rows a slot takes at most under a capacity factor, else inf
    dropped: Real  # expected rows dropped, of `rows`

    @property
    def imbalance(self) -> Real:
        """Rows of the busiest rank over the mean, S₀ of the batch article (EPLB)."""
        return self.busiest.mean / self.rank_rows

    @property
    def skew(self) -> Real:
        """The α with which eq. 3 of the grouped-GEMM article gives the largest group of a rank."""
        return self.largest_on_rank.mean / self.rows_per_slot


def group_shapes(
    *,
    batch: Real | None = None,
    global_batch: Real | None = None,
    q_len: Real = 1,
    ep: Real,
    experts: int,
    top_k: int,
    popularity: str | Sequence[float] | Array | Popularity = "uniform",
    redundant: int | None = 0,
    placement: PlacementName | Sequence[int] | None = None,
    limit: GroupLimit = NO_LIMIT,
    capacity_factor: float | None = None,
    draws: int = 0,
    seed: int = SEED,
) -> GroupShapes:
    """Shapes for `batch` requests per rank or `global_batch` in all, whichever is given: that one stays when ep moves.

    placement: None is «balanced» with replicas, «in order» for experts that have a name, and «shuffled» for laws that
    only say how hot the i-th hottest is; those are shuffled over the experts with replicas too. draws: 0 takes the
    largest numbers in closed form, exact for one or two ranks and elsewhere near (`extremes.of_laws`); else Monte Carlo
    with this many draws and a standard error. A capacity factor limits every slot to ⌈c · rows per slot⌉ and is always
    drawn, 1,000 times if draws is 0.

    Raises InputError with the faults of the sizes, the popularity, the limit or the placement.
    """
    together(
        "group shapes",
        lambda: _check(batch, global_batch, q_len, ep, draws),
        lambda: check_factor(capacity_factor),
        lambda: _heat(popularity, experts, top_k),
    )
    heat = _heat(popularity, experts, top_k)
    name = placement if placement is not None else _usual_placement(heat, redundant)
    unnamed = not (heat.labelled or heat.is_uniform)
    if isinstance(name, str) and (name == "shuffled" or (name == "balanced" and unnamed)):
        heat = heat.shuffled()  # a law that names no expert must not put all hot ones into one group of the limit
    grid = _grid(batch, global_batch, q_len, ep)
    token_law = picks(heat, limit)
    layouts = {d: layout(heat, token_law, name, ep=d, redundant=redundant) for d in sorted(set(grid.ranks))}
    count = DEFAULT_DRAWS if capacity_factor is not None and not draws else draws
    points = [
        step_rows(layouts[d], tokens=t, capacity_factor=capacity_factor, draws=count, seed=seed)
        for d, t in zip(grid.ranks, grid.tokens, strict=True)
    ]
    per_rank, tokens, ranks = (_shaped(values, grid.shape) for values in (grid.batch, grid.tokens, grid.ranks))
    slots = _shaped([len(layouts[d].placement.expert) / d for d in grid.ranks], grid.shape)
    return GroupShapes(
        held="batch per rank" if batch is not None else "global batch",
        popularity=heat,
        placement=name if isinstance(name, str) else "given",
        limit=limit,
        method=f"Monte Carlo, {count} draws, seed {seed}" if count else "closed form",
        article=article_shapes(per_rank, q_len=q_len, ep=ranks, experts=experts, top_k=top_k),
        batch=per_rank,
        ep=ranks,
        tokens=tokens,
        rows=tokens * top_k,
        slots_per_rank=slots,
        **_stacked(points, grid.shape),
    )


class _Grid(Struct, frozen=True, kw_only=True):
    """The points one after another, and the shape that they fill; batch per rank."""

    shape: tuple[int, ...]
    batch: list[float]
    ranks: list[int]
    tokens: list[int]


def _grid(batch: Real | None, global_batch: Real | None, q_len: Real, ep: Real) -> _Grid:
    given = batch if batch is not None else global_batch
    amount, length, ranks = np.broadcast_arrays(np.asarray(given, dtype=float), q_len, ep)
    total = amount * ranks if batch is not None else amount
    return _Grid(
        shape=amount.shape,
        batch=[float(one) for one in np.ravel(total / ranks)],
        ranks=[int(one) for one in np.ravel(ranks)],
        tokens=[int(one) for one in np.ravel(total * length)],
    )


def _heat(law: str | Sequence[float] | Array | Popularity, experts: int, top_k: int) -> Popularity:
    if not isinstance(law, Popularity):
        return read_popularity(law, experts=experts, top_k=top_k)
    if (law.experts, law.top_k) != (experts, top_k):
        problem = f"is of {law.experts} experts and top_k {law.top_k}, not {experts} and {top_k}"
        raise InputError("group shapes", [Fault("popularity", problem, "make it for this model")])
    return law


def _stacked(points: list[StepRows], shape: tuple[int, ...]) -> dict[str, Any]:
    """The fields of every point as arrays of this shape, or as floats."""
    result: dict[str, Any] = {}
    for name in StepRows.__struct_fields__:
        values = [getattr(point, name) for point in points]
        if isinstance(values[0], Extreme):
            parts = {part: _shaped([getattr(one, part) for one in values], shape) for part in Extreme.__struct_fields__}
            result[name] = Extreme(**parts)
        else:
            result[name] = _shaped(values, shape)
    return result


def _shaped(values: Sequence[float], shape: tuple[int, ...]) -> Real:
    return np.array(values, dtype=float).reshape(shape) if shape else float(values[0])


def _usual_placement(heat: Popularity, redundant: int | None) -> PlacementName:
    if redundant != 0 and not heat.is_uniform:
        return "balanced"
    return "in order" if heat.labelled or heat.is_uniform else "shuffled"


def _check(batch: Real | None, global_batch: Real | None, q_len: Real, ep: Real, draws: int) -> None:
    faults = []
    if (batch is None) == (global_batch is None):
        faults.append(Fault("batch", "give the batch per rank or the global batch", "one of the two is held fixed"))
    for name, value in (("batch", batch), ("global_batch", global_batch), ("q_len", q_len), ("ep", ep)):
        if value is None:
            continue
        numbers = np.asarray(value, dtype=float)
        if not np.all(np.isfinite(numbers)) or np.any(numbers < 1) or np.any(numbers != np.rint(numbers)):
            faults.append(Fault(name, f"is {value}", "give whole numbers from 1 up"))
    if draws < 0 or draws == 1:
        faults.append(Fault("draws", f"is {draws}", "give 0, or at least 2"))
    if faults:
        raise InputError("group shapes", faults)
