"""Balanced experts, for people and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from moeplan.explain.balance_observed import Observed
from moeplan.explain.balance_worth import SCENARIOS, Gain, RowsPerExpert, SkewParts
from moeplan.explain.load_drift import Drift, Interval, best_interval
from moeplan.explain.replica_curve import ReplicaPoint
from moeplan.kinds import Array
from moeplan.report.document import Json
from moeplan.report.tables import Console, Table, table
from moeplan.routing.expert_loads import ExpertLoads
from moeplan.routing.expert_map import ExpertMap
from moeplan.routing.expert_moves import MoveCost
from moeplan.units import gib, si

SHOWN_LAYERS = 6
SHOWN_LAGS = 8


class Balanced(Struct, frozen=True, kw_only=True, eq=False):
    """What `moeplan balance` found.

    before, after: maps; start: what `before` is; bound: of any placement over the mean, (layers,); seconds: CPU time
    of planning. cost: of going from before to after, where model and GPU are known; wire: what its rates are.
    """

    loads: ExpertLoads
    before: ExpertMap
    after: ExpertMap
    start: str
    bound: Array
    asked: float | None
    seconds: float
    moves: Array
    expert_bytes: float | None
    cost: MoveCost | None
    wire: str
    nodes: int

    @property
    def skew(self) -> tuple[Array, Array]:
        """Max over mean before and after: (layers,) each."""
        return self.before.max_over_mean(self.loads.total), self.after.max_over_mean(self.loads.total)

    @property
    def method(self) -> str:
        """Over all ranks alike, or groups kept on nodes."""
        return f"groups of experts kept on {self.nodes} nodes" if self.nodes > 1 else "over all ranks alike"


def print_balanced(out: Console, found: Balanced) -> None:
    """The worst layers, the best, the mean; what moving there costs."""
    out.print(_layers_table(found))
    if found.loads.merged > 1:
        out.print(f"{found.loads.merged} recorded windows were summed into each that is held.")
    silent = found.loads.total.shape[0] - len(found.loads.loaded)
    if silent:
        out.print(f"{silent} layers without load stay in order and are left out of the mean.")
    doubled = int(found.after.doubled.sum())
    if doubled:
        held = "slot holds an expert that its" if doubled == 1 else "slots hold an expert that their"
        out.print(f"{doubled} {held} rank holds already: nothing else came as near.")
    after = found.skew[1]
    if found.asked is not None and (missed := np.flatnonzero(after > found.asked * (1 + 1e-6))).size:
        out.print(f"{missed.size} layers cannot be brought to {found.asked:g}: they are as near as was found.")
    out.print()
    moves = int(found.moves.sum())
    line = f"From {found.start}: {moves:,} experts to load"
    if found.expert_bytes is not None:
        line += f", {gib(moves * found.expert_bytes)} in all"
    if found.cost is not None:
        line += f", {found.cost.inside:,} of them from the same node; {found.cost.seconds * 1e3:,.1f} ms ({found.wire})"
    out.print(line + ".")
    out.print(f"Planned in {found.seconds * 1e3:,.0f} ms of CPU.")


def _layers_table(found: Balanced) -> Table:
    before, after = found.skew
    loaded = found.loads.loaded
    order = loaded[np.argsort(-after[loaded], kind="stable")]
    shown = order if len(order) <= SHOWN_LAYERS + 2 else np.append(order[:SHOWN_LAYERS], order[-1])
    variation, copies = found.loads.variation, found.after.copies
    rows = [
        [
            f"{found.loads.layers[layer]}",
            f"{variation[layer]:.2f}",
            f"{before[layer]:.3f}",
            f"{after[layer]:.4f}",
            f"{found.bound[layer]:.4f}",
            f"{copies[layer].max()}",
            f"{found.moves[layer]}",
        ]
        for layer in shown
    ]
    if len(shown) < len(order):
        rows.insert(-1, ["…"] + [""] * 6)
    rows.append(
        [
            f"mean of {len(loaded)}",
            f"{variation[loaded].mean():.2f}",
            f"{before[loaded].mean():.3f}",
            f"{after[loaded].mean():.4f}",
            f"{found.bound[loaded].mean():.4f}",
            "",
            f"{found.moves[loaded].mean():.1f}",
        ]
    )
    headers = ("layer", "CV", "before", "after", "at least", "most replicas", "moves")
    title = (
        f"{found.loads.source}: {found.after.experts} experts in {found.after.slots} slots "
        f"on {found.after.ranks} ranks, {found.method}; fullest rank over the mean, worst layers first"
    )
    return table(headers, rows, title=title)


def balanced_content(found: Balanced) -> Json:
    """The document: per layer, then the maps."""
    before, after = found.skew
    return {
        "source": found.loads.source,
        "method": found.method,
        "experts": found.after.experts,
        "ranks": found.after.ranks,
        "slots": found.after.slots,
        "redundant": found.after.slots - found.after.experts,
        "start": found.start,
        "layers": found.loads.layers,
        "max_over_mean_before": before,
        "max_over_mean": after,
        "lower_bound": found.bound,
        "moves": found.moves,
        "expert_bytes": found.expert_bytes,
        "bytes": None if found.expert_bytes is None else float(found.moves.sum()) * found.expert_bytes,
        "move_s": None if found.cost is None else found.cost.seconds,
        "moves_inside_nodes": None if found.cost is None else found.cost.inside,
        "planning_s": found.seconds,
        "doubled_slots": found.after.doubled,
        "replicas": found.after.copies,
        "physical_to_logical_map": found.after.expert,
        "logical_to_physical_map": found.after.logical_to_physical(),
    }


def print_worth(
    out: Console, parts: SkewParts, gains: Sequence[Gain], rows_per_expert: Sequence[RowsPerExpert]
) -> None:
    """Where S0 comes from, and what balancing gives a step by batch."""
    out.print()
    out.print(
        f"S0 = {parts.seen:.2f} in the mean of the layers: {parts.dealt:.2f} is what the same loads give when dealt at "
        f"random to {parts.experts_per_rank:.4g} slots per rank (the article's formula: {parts.formula:.2f} at "
        f"CV {parts.variation:.2f}), times {parts.hot_spot:.2f} for where the hot ones lie."
    )
    rows = [
        [
            "many" if gain.batch is None else f"{gain.batch}",
            f"{gain.before:.2f}",
            f"{gain.after:.3f}",
            f"{gain.layers:.2f}×",
            f"{gain.step:.2f}×",
            f"{gain.floor:.1%}",
        ]
        for gain in gains
    ]
    share = gains[0].share
    headers = ("tokens per rank", "S0", "S1", "experts", f"step at f = {share:g}", "floor of sampling")
    out.print(table(headers, rows, title="What balancing is worth"))
    out.print(
        "S with the sampling of a step of that many tokens; floor: √(2 ln P)/√(B·k), which no placement removes, only "
        "a larger batch. Where experts are memory-bound (few rows each) their GEMMs gain less than rows say."
    )
    if rows_per_expert:
        listed = ", ".join(f"{one.rows:,.0f} at {one.batch} ({one.binds})" for one in rows_per_expert)
        out.print(
            f"Rows per expert by tokens per rank: {listed}; arithmetic binds above {rows_per_expert[0].ridge:.0f}."
        )


def print_curve(out: Console, points: Sequence[ReplicaPoint], worth: ReplicaPoint) -> None:
    """Redundant slots: what they even out, what they take."""
    rows = []
    for point in points:
        memory = "" if point.bytes_ is None else gib(point.bytes_)
        numbers = [f"{point.mean:.4f}", f"{point.worst:.3f}", f"{point.gain:.2f}×"] if point.possible else ["–"] * 3
        mark = "worth having" if point is worth else "" if point.possible else "ranks would differ in slots"
        rows.append([f"{point.redundant}", f"{point.per_rank:.4g}", *numbers, memory, mark])
    out.print()
    headers = ("redundant", "slots per rank", "S1 mean", "S1 worst", "step", "per GPU", "meaning")
    out.print(table(headers, rows, title="What redundant experts buy (0: rearranging alone)"))


def print_drift(out: Console, found: Drift, costs: Sequence[Interval], *, pause: float | None) -> None:
    """How a placement ages, and the interval that costs least."""
    out.print()
    lags = [*found.lags[:SHOWN_LAGS]]
    rows = [[f"{lag}", f"{skew:.3f}"] for lag, skew in zip(lags, found.skew, strict=False)]
    title = f"A placement, windows after the one it was made from (never balanced: {found.never:.2f})"
    out.print(table(("windows later", "S"), rows, title=title))
    if not costs or pause is None:
        out.print("How often to rebalance: say how long a window is, --window-seconds, and --pause or a --gpu.")
        return
    best, once, last = best_interval(costs), costs[0], costs[-1]
    every = "window" if best.windows == 1 else f"{best.windows} windows"
    longest = ", the longest that the record shows: less often may cost less still" if best is last else ""
    others = [f"every window: {once.slowdown - 1:.2%}"] if best is not once else []
    others += [f"every {last.windows}: {last.slowdown - 1:.2%}"] if best is not last else []
    out.print(
        f"Rebalancing every {every} ({si(best.seconds, 's')}) costs least{longest}: a step is "
        f"{best.slowdown - 1:.2%} longer than always fresh, a pause of {si(pause, 's')} per rebalance included"
        f"{'; ' if others else ''}{', '.join(others)}."
    )


def print_published(out: Console, observed: Sequence[Observed], caveat: str) -> None:
    """The batch article's three factors, then published figures beside ours."""
    rows = [
        [
            one.name,
            f"{one.variation:g}",
            f"{one.experts_per_rank}",
            f"{one.share:g}",
            f"{one.formula:.3f}",
            f"{one.before:.2f} → {one.after:.2f}",
            f"{one.gain:.2f}×",
            "" if one.measured is None else f"{one.measured:.2f}× needs S0/S1 = {one.needed:.2f}",
        ]
        for one in SCENARIOS
    ]
    headers = ("setup", "CV_e", "experts per rank", "f", "S0 by formula", "S0 → S1", "gain", "measured")
    out.print(table(headers, rows, title="The batch article's three factors"))
    out.print()
    rows = [
        [
            f"{one.model}, {one.setup}",
            f"{one.ranks}",
            f"{one.redundant}",
            "yes" if one.balanced else "no",
            one.statistic,
            f"{one.published:.3f}",
            "–" if one.predicted is None else f"{one.predicted:.3f}",
            one.note,
        ]
        for one in observed
    ]
    headers = ("setup", "ranks", "redundant", "balanced", "statistic", "published", "ours", "meaning")
    out.print(table(headers, rows, title="Published beside predicted"))
    out.print(f"Ours is from the packaged loads: {caveat}.")
    out.print(
        "Balanced ones come out better than published: the engines planned on traffic gone by, with the published "
        "heuristic, and a step samples; ours is planned on the loads that it serves."
    )


def engine_lines(redundant: int, path: str | None) -> list[str]:
    """Flags that start an engine with this placement, as far as it takes one."""
    file = path or "FILE (--out)"
    return [
        f"SGLang: --ep-num-redundant-experts {redundant} --init-expert-location {file}",
        "vLLM loads no placement and balances by itself: --enable-expert-parallel --enable-eplb "
        f"--eplb-config '{{\"num_redundant_experts\": {redundant}}}'",
    ]
