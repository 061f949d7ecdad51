"""moeplan groups: how tokens meet experts: the grouped GEMM's groups and rows, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from moeplan.cli.machines import DEFAULT_NIC
from moeplan.cli.options import (
    chart_option,
    check_chart,
    cluster_of,
    count,
    data_option,
    edited_model,
    json_option,
    names,
    print_json,
    set_option,
    whole_range,
)
from moeplan.errors import Fault, InputError, together
from moeplan.specs.catalog import Catalog
from moeplan.specs.model import Experts, ModelSpec

if TYPE_CHECKING:
    from moeplan.engines.rules.flags.launched import LaunchedLayout
    from moeplan.explain.group_claims import Claim
    from moeplan.explain.group_curves import GroupCurve, Turn
    from moeplan.explain.tile_rows import TileRow
    from moeplan.routing.coverage import GroupLimit
    from moeplan.routing.group_shapes import GroupShapes

MOST = 1_000_000
MOST_SLOTS = 10_000
MOST_POINTS = 2_000
MOST_TOKENS = 1e8  # of an EP group
MOST_DRAWN = 5e8  # rows drawn by Monte Carlo: half a minute
CURVE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CURVE_Q = (1, 2, 3, 4)
CURVE_EP = (4, 8, 16, 32, 64, 144)
TURN_BATCH = 128


class _Asked(Struct, frozen=True, kw_only=True):
    """The sizes asked for, from options or from a launch command."""

    batches: tuple[float, ...]  # per attention rank, or of the group
    q_lens: tuple[int, ...]
    eps: tuple[int, ...]
    redundant: int
    data_ranks: float  # attention ranks whose tokens meet in one EP group
    layout: LaunchedLayout | None


@click.command("groups")
@click.argument("model")
@click.option("--launch", metavar="COMMAND", help="A server's command line, or its flags alone: EP, q_len and slots.")
@click.option("--engine", metavar="NAME", help="sglang, vllm or trtllm, where the command does not say.")
@click.option("--engine-version", metavar="VERSION", help="Of the engine; default: the newest whose flags are known.")
@click.option("--ep", metavar="N[,N…]", help="Ranks of the EP group, D in the article; a list or a range.")
@click.option("--q-len", metavar="Q[,Q…]", help="New tokens per request and step, 1 + drafts.  [default: 1]")
@click.option("--batch", default="1,8,32,64,128,256", show_default=True, metavar="B[,B…]", help="Requests.")
@click.option("--concurrency", metavar="N[,N…]", help="Requests of the whole --launch server, instead of --batch.")
@click.option("--global-batch", is_flag=True, help="--batch is of the whole EP group and stays when EP moves.")
@click.option(
    "--popularity",
    default="uniform",
    show_default=True,
    metavar="LAW",
    help="uniform, zipf:1.2, power_law:1.2, or a .csv or .npy with one weight per expert.",
)
@click.option("--redundant", metavar="N", help="Redundant expert slots.  [default: 0, or the command's]")
@click.option("--capacity", type=float, metavar="C", help="An expert takes at most C times the mean of rows.")
@click.option("--no-group-limit", is_flag=True, help="Ignore the model's limit to some groups of experts.")
@click.option(
    "--draws", type=click.IntRange(0, MOST), default=0, metavar="N", help="Monte Carlo instead of closed form."
)
@click.option("--gpu", metavar="NAME[,NAME]", help="One or two GPUs: time and MFU of both products, and their claims.")
@click.option("--nic", default=DEFAULT_NIC, show_default=True, metavar="NAME", help="Network card, for the all-to-all.")
@set_option
@data_option
@chart_option
@json_option
def command(model: str, **options: Any) -> int:
    """Show the groups and rows of the experts' grouped GEMM in a step of MODEL, beside the article's bounds.

    With --gpu also what they cost over batch, q_len and EP size (--chart draws it).
    """
    check_chart(options["chart"])
    if options["chart"] and not options["gpu"]:
        raise InputError("options", [Fault("--chart", "draws times, which need a GPU", "give --gpu")])
    _check_used(options)
    catalog = Catalog.standard(options["data"])
    spec, _ = edited_model(catalog, model, options["edits"])
    if spec.experts is None:
        raise InputError("model", [Fault(spec.name, "has no experts", "name a Mixture-of-Experts model")])
    asked = _asked(options, spec, catalog)
    _check_work(options, spec.experts, asked)
    shapes = _shapes(options, spec.experts, asked)
    tiles = _tiles(options, spec, shapes, catalog)
    costs = _costs(options, spec, catalog) if options["gpu"] else None
    if options["chart"] and costs is not None:
        _draw(costs, spec, Path(options["chart"]))
    if options["as_json"]:
        print_json(_document(spec, asked, shapes, tiles, costs))
        return 0
    from moeplan.report.groups_report import print_costs, print_groups, print_tiles
    from moeplan.report.tables import console

    out = console()
    print_groups(out, spec, shapes, asked.layout)
    print_tiles(out, tiles)
    if costs is not None:
        print_costs(out, costs.curves, costs.turns, costs.claims)
    return 0


class _Costs(Struct, frozen=True, kw_only=True):
    curves: list[GroupCurve]
    turns: dict[str, list[Turn]]
    claims: list[Claim]
    measured: list[dict[str, Any]]


def _typed(name: str) -> bool:
    """Whether the option was given."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _check_used(options: Mapping[str, Any]) -> None:
    """Raise InputError for options that would change nothing, and for empty ones."""
    faults = [
        Fault(f"--{name.replace('_', '-')}", f"says nothing without {needs}", f"give {needs}, or drop it")
        for name, needs in (("engine", "--launch"), ("engine_version", "--launch"), ("nic", "--gpu"))
        if _typed(name) and options[needs.removeprefix("--")] is None
    ]
    faults += [
        Fault(f"--{name.replace('_', '-')}", "is empty", "give a value, or drop it")
        for name in ("ep", "q_len", "redundant", "concurrency", "gpu")
        if options[name] is not None and not options[name].strip()
    ]
    if faults:
        raise InputError("options", faults)


def _check_work(options: Mapping[str, Any], experts: Experts, asked: _Asked) -> None:
    """Raise InputError for what would take minutes; the sizes are far beyond any server's."""
    points = len(asked.batches) * len(asked.q_lens) * len(asked.eps)
    faults = []
    if points > MOST_POINTS:
        fix = f"name fewer sizes: at most {MOST_POINTS:,}"
        faults.append(Fault("--batch × --q-len × --ep", f"are {points:,} points", fix))
    ranks = 1 if options["global_batch"] else asked.data_ranks or max(asked.eps)
    tokens = max(asked.batches) * max(asked.q_lens) * ranks
    if tokens > MOST_TOKENS:
        fix = f"give a smaller --batch, --q-len or --ep: at most {MOST_TOKENS:,.0f}"
        faults.append(Fault("--batch", f"makes {tokens:,.0f} tokens in an EP group", fix))
    drawn = options["draws"] * tokens * experts.top_k
    if drawn > MOST_DRAWN:
        fix = f"give fewer, at most {max(MOST_DRAWN / tokens / experts.top_k, 2):,.0f} for this batch"
        faults.append(Fault("--draws", f"draws {drawn:,.0f} rows", fix))
    if faults:
        raise InputError("options", faults)


def _asked(options: Mapping[str, Any], spec: ModelSpec, catalog: Catalog) -> _Asked:
    """Read the sizes; raise InputError naming every fault."""
    launch = options["launch"]
    faults = []
    if launch is not None:
        faults = [
            Fault(name, "contradicts --launch, which says it", "drop one")
            for name, key in (("--ep", "ep"), ("--q-len", "q_len"), ("--redundant", "redundant"))
            if options[key] is not None
        ]
        if options["global_batch"]:
            faults.append(Fault("--global-batch", "contradicts --launch", "give --concurrency of the server"))
    elif options["concurrency"] is not None:
        faults = [Fault("--concurrency", "is of a --launch command", "give --batch, or the command")]
    elif options["ep"] is None:
        faults = [Fault("--ep", "is missing", "give the ranks of the EP group, or a --launch command")]
    if faults:
        raise InputError("options", faults)
    together(
        "options",
        lambda: whole_range(options["batch"], "--batch", least=1, most=MOST),
        lambda: (
            whole_range(options["concurrency"], "--concurrency", least=1, most=MOST * 100)
            if options["concurrency"]
            else None
        ),
        lambda: whole_range(options["ep"], "--ep", least=1, most=10_000) if options["ep"] else None,
        lambda: whole_range(options["q_len"], "--q-len", least=1, most=64) if options["q_len"] else None,
        lambda: count(options["redundant"], "--redundant", least=0, most=MOST_SLOTS) if options["redundant"] else None,
    )
    batches = whole_range(options["batch"], "--batch", least=1, most=MOST)
    if launch is None:
        return _Asked(
            batches=batches,
            q_lens=whole_range(options["q_len"] or "1", "--q-len", least=1, most=64),
            eps=whole_range(options["ep"], "--ep", least=1, most=10_000),
            redundant=int(count(options["redundant"], "--redundant", least=0, most=MOST_SLOTS))
            if options["redundant"]
            else 0,
            data_ranks=0.0,
            layout=None,
        )
    import numpy as np

    from moeplan.engines.rules.flags.batch import rank_batch
    from moeplan.engines.rules.flags.launch import launched

    layout = launched(launch, engine=options["engine"], version=options["engine_version"], model=spec, catalog=catalog)
    assert spec.experts is not None, "the command has refused a dense model"
    sizes: dict[str, Any] = {"experts": spec.experts.count, "top_k": spec.experts.top_k}
    if options["concurrency"]:
        asked = np.array(whole_range(options["concurrency"], "--concurrency", least=1, most=MOST * 100), dtype=float)
        rank = rank_batch(layout, concurrency=asked, **sizes)
    else:
        most = layout.max_running_per_rank
        if most is not None and not _typed("batch"):  # the usual batches, as far as the server goes
            batches = tuple(sorted({min(batch, int(most)) for batch in batches}))
        rank = rank_batch(layout, per_rank=np.array(batches, dtype=float), **sizes)
    return _Asked(
        batches=tuple(np.unique(np.ravel(rank.batch)).tolist()),
        q_lens=(layout.q_len,),
        eps=(layout.ep,),
        redundant=layout.redundant,
        data_ranks=rank.data_ranks,
        layout=layout,
    )


def _shapes(options: Mapping[str, Any], experts: Experts, asked: _Asked) -> list[GroupShapes]:
    """One set of shapes, over the batches, per q_len and EP size."""
    import numpy as np

    from moeplan.routing.group_shapes import group_shapes

    batches = np.array(asked.batches, dtype=float)
    whole = options["global_batch"]
    if asked.layout is not None and asked.data_ranks != asked.layout.ep:  # several GPUs share an attention rank
        whole, batches = True, batches * asked.data_ranks
    return [
        group_shapes(
            q_len=q_len,
            ep=ep,
            experts=experts.count,
            top_k=experts.top_k,
            popularity=_popularity(options["popularity"], experts.count),
            redundant=asked.redundant,
            placement="balanced" if asked.redundant else None,
            limit=_limit(experts, ignored=options["no_group_limit"]),
            capacity_factor=options["capacity"],
            draws=options["draws"],
            batch=None if whole else batches,
            global_batch=batches if whole else None,
        )
        for q_len in asked.q_lens
        for ep in asked.eps
    ]


def _tiles(
    options: Mapping[str, Any], spec: ModelSpec, shapes: Sequence[GroupShapes], catalog: Catalog
) -> list[TileRow]:
    """Tile waste of every shape; on a GPU also whether pad rows take time, and its waves."""
    from moeplan.explain.tile_rows import tile_rows
    from moeplan.specs.precision import weight_format

    gpu = catalog.gpu(names(options["gpu"], "--gpu")[0]) if options["gpu"] else None
    weights = weight_format(spec.formats.experts)
    return [row for found in shapes for row in tile_rows(found, spec, gpu=gpu, weights=weights)]


def _popularity(text: str, experts: int) -> str | Sequence[float]:
    """A law by name, or the weights in a file; raise InputError."""
    path = Path(text)
    if path.suffix.lower() not in (".csv", ".npy"):
        return text
    import numpy as np

    fix = f"write {experts} numbers, one per expert, without a header"
    try:
        if path.suffix.lower() == ".csv" and not path.read_text(encoding="utf-8").strip():
            raise ValueError("it is empty")
        found = np.load(path, allow_pickle=False) if path.suffix.lower() == ".npy" else np.loadtxt(path, delimiter=",")
    except (OSError, ValueError) as error:
        why = "it is no array of numbers" if "pickle" in str(error) else error
        raise InputError("options", [Fault("--popularity", f"{path} cannot be read: {why}", fix)]) from error
    array = np.asarray(found)
    if array.dtype.kind not in "iuf":
        raise InputError("options", [Fault("--popularity", f"{path} holds {array.dtype}, not numbers", fix)])
    if max(array.shape, default=1) != array.size:
        raise InputError("options", [Fault("--popularity", f"{path} has the shape {array.shape}", fix)])
    weights: list[float] = array.astype(float).ravel().tolist()
    return weights


def _limit(experts: Experts, *, ignored: bool) -> GroupLimit:
    from moeplan.routing.coverage import NO_LIMIT, GroupLimit

    if ignored or experts.n_group <= 1:
        return NO_LIMIT
    return GroupLimit(count=experts.n_group, taken=experts.topk_group)


def _costs(options: Mapping[str, Any], spec: ModelSpec, catalog: Catalog) -> _Costs:
    from moeplan.explain.group_claims import group_claims
    from moeplan.explain.group_curves import both_products, group_curves, turns
    from moeplan.explain.measured_experts import measured_experts
    from moeplan.ops.machine import Machine

    assert spec.experts is not None, "the command has refused a dense model"
    gpus = names(options["gpu"], "--gpu")
    if len(gpus) > 2:
        raise InputError("options", [Fault("--gpu", f"names {len(gpus)}", "give one or two")])
    eps = [ep for ep in CURVE_EP if ep <= spec.experts.count]
    machines = [Machine.of(cluster_of(catalog, gpu, options["nic"], None), catalog) for gpu in gpus]
    curves, found = [], {}
    for machine in machines:
        own = group_curves(machine, spec, batches=CURVE_BATCHES, q_lens=CURVE_Q, eps=eps)
        curves += [*own, *both_products(own)]
        found[machine.cluster.gpu.name] = turns(machine, spec, batch=TURN_BATCH, q_len=1, eps=eps)
    source, points = measured_experts(catalog)
    claims: list[Claim] = []
    measured: list[dict[str, Any]] = []
    if spec.name == catalog.model(source.model).name:
        flops = 2.0 * 3 * spec.experts.top_k * spec.experts.width * spec.hidden
        measured = [
            {
                "GPU": machine.cluster.gpu.name,
                "EP": point.ep,
                "batch": point.batch,
                "seconds": point.seconds,
                "MFU": flops * point.batch / point.seconds / machine.cluster.gpu.peak("fp8"),
            }
            for machine in machines
            for point in points
            if point.gpu == machine.cluster.gpu.slug and point.ep in eps and point.batch >= 1
        ]
        if len(machines) == 2:
            peak = machines[0].cluster.gpu.peak("fp8")
            claims = group_claims(machines[0], machines[1], spec, points, peak=peak)
    return _Costs(curves=curves, turns=found, claims=claims, measured=measured)


def _draw(costs: _Costs, spec: ModelSpec, path: Path) -> None:
    from moeplan.charts.group_curves import group_chart, turn_chart
    from moeplan.charts.render import write_chart

    subtitle = f"{spec.name}, experts in {spec.formats.experts}, uniform routing"
    specs = []
    for product in ("gate_up", "down", "both"):
        own = [curve for curve in costs.curves if curve.product == product]
        seen = costs.measured if product == "both" else ()
        note = "; points: measured, with the activation between the products" if seen else ""
        specs += [
            group_chart(own, "time", subtitle=subtitle + note, measured=seen),
            group_chart(own, "MFU", subtitle=subtitle + note, measured=seen),
        ]
    specs.append(turn_chart(costs.turns, subtitle=f"{subtitle}; {TURN_BATCH} requests per rank, nothing hidden"))
    write_chart(specs, path)


def _document(
    spec: ModelSpec,
    asked: _Asked,
    shapes: Sequence[GroupShapes],
    tiles: Sequence[TileRow],
    costs: _Costs | None,
) -> dict[str, Any]:
    from moeplan.report.document import document
    from moeplan.report.groups_report import shapes_content

    content: dict[str, Any] = {
        "model": spec.name,
        "launch": asked.layout,
        "shapes": [shapes_content(found) for found in shapes],
        "tiles": tiles,
    }
    if costs is not None:
        content |= {"curves": costs.curves, "turns": costs.turns, "claims": costs.claims}
    return document("groups", content)
