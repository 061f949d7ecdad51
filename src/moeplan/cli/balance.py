"""moeplan balance: expert loads in, a placement out; what it is worth, and what moving there costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import asdict

from moeplan.cli.balance_question import Subject, check, model_rows, subject
from moeplan.cli.balance_steps import balanced_steps, check_steps
from moeplan.cli.machines import DEFAULT_NIC
from moeplan.cli.options import (
    chart_option,
    check_chart,
    data_option,
    json_option,
    print_json,
    set_option,
)
from moeplan.errors import Fault, InputError, together
from moeplan.specs.catalog import Catalog

if TYPE_CHECKING:
    from moeplan.explain.balance_worth import Gain, RowsPerExpert, SkewParts
    from moeplan.explain.load_drift import Drift, Interval
    from moeplan.explain.placement_gain import BalancedSteps
    from moeplan.explain.replica_curve import ReplicaPoint
    from moeplan.report.balance_report import Balanced
    from moeplan.routing.expert_map import ExpertMap

DEFAULT_TOP_K = 8
MOST = 100_000
MOST_RANKS = 4096  # ranks are paired with ranks to save moves


@click.command("balance")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--load", "law", metavar="LAW", help="Loads by law: uniform, zipf:1.2, power_law:1.2, lognormal:1, hot:4:10."
)
@click.option("--experts", type=click.IntRange(1, MOST), metavar="N", help="Of --load; default: the model's.")
@click.option("--layers", type=click.IntRange(1, MOST), metavar="N", help="Of --load; default: the model's, or 58.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of --load.")
@click.option("--ranks", type=click.IntRange(1, MOST_RANKS), metavar="N", help="GPUs of the EP group.")
@click.option(
    "--redundant", type=click.IntRange(0, MOST), metavar="N", help="Slots beyond one per expert; default: fewest."
)
@click.option(
    "--nodes", type=click.IntRange(1, MOST), metavar="N", help="Keep each group of experts on one of N nodes."
)
@click.option("--groups", type=click.IntRange(1, MOST), metavar="N", help="Groups of experts; default: the model's.")
@click.option("--model", metavar="NAME", help="Model: expert bytes, layers, top-k, groups.")
@click.option("--gpu", metavar="NAME", help="GPU, for the seconds that moving takes; needs --model.")
@click.option("--nic", metavar="NAME", help=f"Network card.  [default: {DEFAULT_NIC}]")
@click.option("--from", "current", metavar="OLD.json", help="The placement at hand: moves are counted from it.")
@click.option("--bound", type=float, metavar="S", help="Fewest moves from --from that bring every layer to S.")
@click.option("--out", metavar="FILE.json", help="Write the placement for SGLang's --init-expert-location.")
@click.option(
    "--worth", is_flag=True, help="What balancing is worth, by batch and by redundant slots; drift over windows."
)
@click.option("--share", type=float, default=0.6, show_default=True, metavar="F", help="Share of a step that balances.")
@click.option("--context", metavar="TOKENS", help="Cached tokens per request: --worth by the step model, too.")
@click.option("--min-tps", metavar="TPS", help="Promised tokens per second per user, for what slots leave to serve.")
@click.option("--window-seconds", type=float, metavar="S", help="Seconds of a window: how often to rebalance.")
@click.option(
    "--pause", type=float, metavar="S", help="Seconds a rebalance stops serving; default: planning and moving."
)
@click.option("--published", is_flag=True, help="Published figures and the batch article's beside ours; no FILE.")
@set_option
@data_option
@chart_option
@json_option
def command(files: tuple[str, ...], **options: Any) -> int:
    """Place experts on ranks so that none holds up the rest, from loads in FILE: .npy, .csv, .json, SGLang's .pt.

    Several files, or a third axis, are windows of time.

    Example: moeplan balance loads.csv --ranks 72 --redundant 32 --model deepseek-v3 --gpu h800 --out placement.json
    """
    check_chart(options["chart"])
    together("options", lambda: check(files, options), lambda: check_steps(options))
    catalog = Catalog.standard(options["data"])
    if options["published"]:
        return _published(catalog, as_json=options["as_json"])
    asked = subject(files, options, catalog)
    found = _balance(asked, options)
    worth = _worth(asked, found, options, catalog) if options["worth"] or options["chart"] else None
    if options["out"]:
        _write(asked, found, Path(options["out"]))
    if options["chart"] and worth is not None:
        _draw(asked, found, worth, Path(options["chart"]))
    _show(asked, found, worth if options["worth"] else None, options)
    return 0


class _Worth(Struct, frozen=True, kw_only=True):
    parts: SkewParts
    gains: list[Gain]
    points: list[ReplicaPoint]
    best: ReplicaPoint
    rows: list[RowsPerExpert]
    drift: Drift | None
    costs: list[Interval]
    pause: float | None
    steps: BalancedSteps | None


def _start(asked: Subject, options: Mapping[str, Any]) -> tuple[ExpertMap, str]:
    from moeplan.routing.expert_map import in_order
    from moeplan.routing.map_files import read_map

    experts, layers = asked.loads.experts, len(asked.loads.layers)
    if not options["current"]:
        plain = in_order(layers=layers, experts=experts, slots=asked.slots, ranks=asked.ranks)
        return plain, "experts in order, as engines start"
    found = read_map(Path(options["current"]), rows=model_rows(asked)[0], experts=experts, ranks=asked.ranks)
    if found.slots != asked.slots:
        problem = f"has {found.slots} slots, asked are {asked.slots}"
        fix = f"give --redundant {found.slots - experts}"
        raise InputError(options["current"], [Fault("--from", problem, fix)])
    return found, options["current"]


def _balance(asked: Subject, options: Mapping[str, Any]) -> Balanced:
    from moeplan.report.balance_report import Balanced
    from moeplan.routing.eplb import balanced_map, lower_bound
    from moeplan.routing.expert_moves import Rates, aligned, fewest_moves, loaded, move_cost

    before, start = _start(asked, options)
    loads = asked.loads.total
    begun = time.process_time()
    if options["bound"] is not None:
        hierarchy = {"nodes": asked.nodes, "groups": asked.groups}
        after = fewest_moves(loads, before, bound=options["bound"], **hierarchy)
    else:
        fresh = balanced_map(loads, **asked.sizes, current=before if options["current"] else None)
        after = aligned(before, fresh, ranks_per_node=asked.ranks // asked.nodes if asked.nodes > 1 else None)
    seconds = time.process_time() - begun
    cost, wire = None, ""
    if asked.cluster is not None and asked.expert_bytes is not None:
        cluster = asked.cluster
        network = cluster.nic.effective_rate * cluster.nics_per_gpu
        scale_up = cluster.gpu.scale_up.bandwidth if cluster.gpu.scale_up is not None else network
        domain = max(cluster.gpus_per_node, cluster.gpu.domain)
        rates = Rates(scale_up=scale_up, network=network, gpus_per_node=domain)
        cost = move_cost(before, after, expert_bytes=asked.expert_bytes, rates=rates)
        wire = f"assumed: {scale_up / 1e9:.0f} GB/s inside {domain} GPUs, {network / 1e9:.1f} GB/s between, links idle"
    return Balanced(
        loads=asked.loads,
        before=before,
        after=after,
        start=start,
        bound=lower_bound(loads, slots=asked.slots, ranks=asked.ranks),
        asked=options["bound"],
        seconds=seconds,
        moves=loaded(before, after).sum(axis=1),
        expert_bytes=asked.expert_bytes,
        cost=cost,
        wire=wire,
        nodes=asked.nodes,
    )


def _worth(asked: Subject, found: Balanced, options: Mapping[str, Any], catalog: Catalog) -> _Worth:
    from moeplan.explain.balance_worth import gains, skew_parts
    from moeplan.explain.load_drift import drift, intervals
    from moeplan.explain.replica_curve import replica_curve, worth_having

    loads, spec = asked.loads.total, asked.spec
    top_k = spec.experts.top_k if spec is not None and spec.experts is not None else DEFAULT_TOP_K
    worth = gains(loads, found.before, found.after, top_k=top_k, share=options["share"])
    layers = spec.moe_layer_count if spec is not None else 1
    points = replica_curve(
        loads,
        ranks=asked.ranks,
        before=worth[0].before,
        share=options["share"],
        expert_bytes=None if asked.expert_bytes is None else asked.expert_bytes * layers,
        nodes=asked.nodes,
        groups=asked.groups,
    )
    aged, costs = None, []
    pause = options["pause"]
    if len(asked.loads.windows) > 1:
        aged = drift(asked.loads.windows, **asked.sizes)
        if pause is None and found.cost is not None:
            pause = found.seconds + found.cost.seconds
        if options["window_seconds"] is not None and pause is not None:
            costs = intervals(aged, window_seconds=options["window_seconds"], pause=pause, share=options["share"])
    return _Worth(
        parts=skew_parts(loads, found.before),
        gains=worth,
        points=points,
        rows=_rows_per_expert(asked),
        best=worth_having(points),
        drift=aged,
        costs=costs,
        pause=pause,
        steps=balanced_steps(asked, options, catalog, before=found.before, after=found.after, points=points),
    )


def _rows_per_expert(asked: Subject) -> list[RowsPerExpert]:
    """What binds the experts' products at each batch, where model and GPU are known."""
    from moeplan.explain.balance_worth import BATCHES, rows_of_experts
    from moeplan.specs.precision import bytes_per_weight, weight_format

    spec = asked.spec
    if asked.cluster is None or spec is None or spec.experts is None:
        return []
    gpu, weights = asked.cluster.gpu, weight_format(spec.formats.experts)
    peak = gpu.peak(weights.computes_in)
    width = bytes_per_weight(spec.formats.experts)
    sizes = {"ep": asked.ranks, "experts": asked.loads.experts, "top_k": spec.experts.top_k}
    return rows_of_experts(BATCHES, **sizes, peak=peak, bandwidth=gpu.memory.bandwidth, bytes_per_weight=width)


def _write(asked: Subject, found: Balanced, path: Path) -> None:
    from moeplan.routing.map_files import write_map

    rows, layers = model_rows(asked)
    write_map(path, found.after, rows=rows, layers=layers)


def _draw(asked: Subject, found: Balanced, worth: _Worth, path: Path) -> None:
    import numpy as np

    from moeplan.charts.expert_heat import expert_heat_chart
    from moeplan.charts.rank_loads import rank_loads_chart
    from moeplan.charts.render import write_chart
    from moeplan.charts.replica_curve import replica_curve_chart

    loads = asked.loads.total
    title = f"{asked.loads.source}; {asked.slots} slots on {asked.ranks} ranks"
    loaded = asked.loads.loaded
    order = loaded[np.argsort(found.skew[0][loaded], kind="stable")]
    carried = {"before": found.before.rank_loads(loads), "after": found.after.rank_loads(loads)}
    panels = {
        f"{name}: layer {asked.loads.layers[layer]}": {when: one[layer] for when, one in carried.items()}
        for name, layer in (("worst before", order[-1]), ("median before", order[len(order) // 2]))
    }
    specs = [
        expert_heat_chart(loads, asked.loads.layers, subtitle=asked.loads.source),
        rank_loads_chart(panels, subtitle=title),
        replica_curve_chart(
            worth.points,
            worth=worth.best,
            subtitle=f"{asked.loads.source}; {asked.ranks} ranks",
            served=worth.steps.served if worth.steps is not None else (),
        ),
    ]
    write_chart(specs, path)


def _show(asked: Subject, found: Balanced, worth: _Worth | None, options: Mapping[str, Any]) -> None:
    from moeplan.report.balance_report import (
        balanced_content,
        engine_lines,
        print_balanced,
        print_curve,
        print_drift,
        print_worth,
    )
    from moeplan.report.balance_steps_report import print_steps, steps_content

    lines = engine_lines(asked.slots - asked.loads.experts, options["out"])
    if options["as_json"]:
        from moeplan.report.document import document

        content = {**balanced_content(found), "launch": lines}
        if worth is not None:
            content |= {
                "skew_parts": {**asdict(worth.parts), "hot_spot": worth.parts.hot_spot},
                "gains": [{**asdict(one), "experts": one.layers, "step": one.step} for one in worth.gains],
                "replica_curve": worth.points,
                "rows_per_expert": worth.rows,
                "worth_having": worth.best.redundant,
                "drift": worth.drift,
                "intervals": worth.costs,
                "steps": None if worth.steps is None else steps_content(worth.steps),
            }
        print_json(document("balance", content))
        return
    from moeplan.report.tables import console

    out = console()
    print_balanced(out, found)
    if worth is not None:
        print_worth(out, worth.parts, worth.gains, worth.rows)
        print_curve(out, worth.points, worth.best)
        if worth.steps is not None:
            print_steps(out, worth.steps)
        if worth.drift is not None:
            print_drift(out, worth.drift, worth.costs, pause=worth.pause)
    out.print()
    for line in lines:
        out.print(line, raw=True)


def _published(catalog: Catalog, *, as_json: bool) -> int:
    from moeplan.explain.balance_observed import observed_gains, packaged_loads
    from moeplan.explain.balance_worth import SCENARIOS

    source, _ = packaged_loads(catalog)
    observed = observed_gains(catalog)
    if as_json:
        from moeplan.report.document import document

        scenarios = [
            {**asdict(one), "formula": one.formula, "gain": one.gain, "needed": one.needed} for one in SCENARIOS
        ]
        print_json(document("balance-published", {"loads": source, "scenarios": scenarios, "published": observed}))
        return 0
    from moeplan.report.balance_report import print_published
    from moeplan.report.tables import console

    print_published(console(), observed, source.caveat)
    return 0
