"""moeplan bench: measure kernels on a CUDA machine into tables for --data, the prediction printed first."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from moeplan import units
from moeplan.bench.device import gpu_name, named_or_found
from moeplan.bench.expected import expected
from moeplan.bench.family import COLUMNS, COMMANDS, Family, Shape
from moeplan.bench.harness import Effort, Refused
from moeplan.bench.presets import preset, preset_names, shapes_of_file
from moeplan.bench.session import Outcome, Session
from moeplan.bench.view import View
from moeplan.cli.options import Command, cluster_of, data_option, json_option, print_json, whole_range
from moeplan.errors import Fault, InputError
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog

_DEFAULT_PRESET = {
    "gemm": "deepseek-dense",
    "grouped-gemm": "grouped-gemm-article",
    "attention": "deepseek-mla",
    "all-to-all": "deepseek-{direction}",
    "copy": "copy-sizes",
}


@click.group("bench")
def command() -> None:
    """Measure kernels on a CUDA machine into tables that --data reads.

    Every row is on disk before the next shape starts, and the same command goes on where it stopped. With --dry-run the
    shapes are listed with their predictions; that needs no GPU. Exit 1: a shape was refused.
    """


def _options(measured: Command) -> Command:
    for option in reversed(
        [
            click.option("--preset", metavar="NAME", help="Shapes of the data folder; an unknown name lists them."),
            click.option("--shapes", metavar="FILE.csv", help="Your own shapes; a column per dimension."),
            click.option("--gpu", metavar="NAME", help="The GPU's name in the catalog; default: the one found."),
            click.option("--backend", default="auto", metavar="NAME", show_default=True, help="Whose kernel."),
            click.option("--out", default="moeplan-bench", metavar="DIR", show_default=True, help="Folder for --data."),
            click.option("--dry-run", is_flag=True, help="List the shapes with their predictions; needs no GPU."),
            click.option("--warmup", type=click.IntRange(0, 10_000), default=5, show_default=True, help="Unused runs."),
            click.option(
                "--repetitions",
                type=click.IntRange(1, 10_000),
                default=20,
                show_default=True,
                help="The least of runs.",
            ),
            click.option("--budget", default="500 ms", metavar="TIME", show_default=True, help="Time for a shape."),
            click.option("--seed", type=click.IntRange(0, 1 << 31), default=0, show_default=True, help="Of the data."),
        ]
    ):
        measured = option(measured)
    return measured


@command.command("gemm")
@_options
@data_option
@json_option
@click.pass_context
def gemm(ctx: click.Context, /, **options: Any) -> int:
    """Dense FP8 products (m,n,k), or batched bf16 ones (copies,m,n,k): the shapes tell."""
    return _answer(ctx, COMMANDS["gemm"], options)


@command.command("grouped-gemm")
@click.option("--block-m", metavar="M[,M…]", help="Row tiles to sweep, a table each in DIR/block_m_M; triton only.")
@_options
@data_option
@json_option
@click.pass_context
def grouped_gemm(ctx: click.Context, /, **options: Any) -> int:
    """The grouped FP8 product of the routed experts (groups,m,n,k), m rows in each group."""
    return _answer(ctx, COMMANDS["grouped-gemm"], options)


@command.command("attention")
@_options
@data_option
@json_option
@click.pass_context
def attention(ctx: click.Context, /, **options: Any) -> int:
    """Absorbed MLA decode in bf16 (batch,heads,q_len,context)."""
    return _answer(ctx, COMMANDS["attention"], options)


@command.command("all-to-all")
@click.option(
    "--direction", type=click.Choice(["dispatch", "combine"]), default="dispatch", show_default=True, help="Which half."
)
@click.option("--rdma-only", is_flag=True, help="DeepEP: no NVLink inside a node, as in its published RDMA tables.")
@click.option("--nic", default="cx7", metavar="NAME", show_default=True, help="The network card, for the prediction.")
@_options
@data_option
@json_option
@click.pass_context
def all_to_all(ctx: click.Context, /, **options: Any) -> int:
    """Dispatch or combine of expert parallelism (ep,tokens,hidden,top_k); start one process per GPU with torchrun."""
    family: Family = "dispatch" if options["direction"] == "dispatch" else "combine"
    return _answer(ctx, (family,), options)


@command.command("copy")
@_options
@data_option
@json_option
@click.pass_context
def copy(ctx: click.Context, /, **options: Any) -> int:
    """A copy inside device memory (bytes): what bandwidth can be had at all. No prediction reads it."""
    return _answer(ctx, COMMANDS["copy"], options)


class _Asked(NamedTuple):
    """The question: whose shapes, which, and the row tiles of the preset and of the user."""

    family: Family
    shapes: list[Shape]
    tiles: tuple[int, ...]
    own_tiles: tuple[int, ...]


def _answer(ctx: click.Context, families: Sequence[Family], options: dict[str, Any]) -> int:
    catalog = Catalog.standard(options["data"])
    asked = _asked(catalog, ctx.command.name or "", families, options)
    effort = Effort(
        warmup=options["warmup"], repetitions=options["repetitions"], budget=_seconds(options["budget"], "--budget")
    )
    if options["dry_run"]:
        return _list(catalog, asked, options)
    return _measure(catalog, asked, effort, options, _written(ctx))


def _asked(catalog: Catalog, name: str, families: Sequence[Family], options: dict[str, Any]) -> _Asked:
    tiles = tuple(whole_range(options["block_m"], "--block-m", least=16, most=256)) if options.get("block_m") else ()
    if any(tile & (tile - 1) for tile in tiles):
        fault = Fault("--block-m", f"is {options['block_m']!r}", "give powers of two, such as 16,32,64,128")
        raise InputError("options", [fault])
    if options["shapes"] is None:
        chosen = options["preset"] or _DEFAULT_PRESET[name].format(direction=options.get("direction"))
        found = preset(catalog, chosen, families)
        return _Asked(found.family, found.shapes(), found.block_m, tiles)
    if options["preset"] is not None:
        fault = Fault("--preset", "is given beside --shapes", f"give one; presets: {preset_names(catalog, families)}")
        raise InputError("options", [fault])
    return _Asked(*shapes_of_file(Path(options["shapes"]), families), (), tiles)


def _machine(catalog: Catalog, slug: str, options: dict[str, Any]) -> Machine:
    return Machine.of(cluster_of(catalog, slug, options.get("nic") or "cx7", None), catalog)


def _list(catalog: Catalog, asked: _Asked, options: dict[str, Any]) -> int:
    slug = named_or_found(catalog, options["gpu"])
    machine = _machine(catalog, slug, options)
    outcomes = [Outcome(shape=shape, predicted=expected(asked.family, shape, machine)) for shape in asked.shapes]
    if options["as_json"]:
        _print_document(asked, machine, outcomes, dry_run=True)
        return 0
    from moeplan.report.tables import console, table

    flops = any(float(outcome.predicted.flops) for outcome in outcomes)
    headers = (*COLUMNS[asked.family], "predicted µs", *(("TFLOP/s",) if flops else ()), "GB/s", "bound by", "from")
    title = f"{len(outcomes)} shapes of {asked.family} on {machine.cluster.gpu.name}, predicted; nothing is measured"
    console().print(table(headers, [_cells(outcome, flops=flops) for outcome in outcomes], title=title))
    return 0


def _cells(outcome: Outcome, *, flops: bool) -> list[str]:
    cost, seconds = outcome.predicted, float(outcome.predicted.seconds)
    cells = [*map(str, outcome.shape.values()), f"{seconds * 1e6:,.1f}"]
    flop_rate, byte_rate = (float(amount) / seconds if seconds else 0.0 for amount in (cost.flops, cost.bytes_))
    cells += [f"{flop_rate / 1e12:,.1f}"] if flops else []
    return [*cells, f"{byte_rate / 1e9:,.0f}", cost.bound_by, f"{cost.source}, {cost.origin}"]


def _measure(catalog: Catalog, asked: _Asked, effort: Effort, options: dict[str, Any], written: str) -> int:
    from moeplan.bench import lab as laboratory
    from moeplan.bench.backends.base import Setup
    from moeplan.bench.rows import Rows

    setup = Setup(
        seed=options["seed"], direction=options.get("direction", ""), rdma_only=options.get("rdma_only", False)
    )
    lab = laboratory.open_lab(catalog, asked.family, options["backend"], setup)
    machine = _machine(catalog, gpu_name(catalog, options["gpu"], lab.device), options)
    gpu = machine.cluster.gpu
    shapes = laboratory.for_these_ranks(asked.family, asked.shapes, lab.ranks.world)
    first = lab.ranks.rank == 0
    out = _say if first and not options["as_json"] else None
    view = View(asked.family, shapes, out=out, err=_Progress() if first else None)
    try:
        for folder, kernel in lab.kernels(asked.tiles, asked.own_tiles):
            path = Path(options["out"]) / folder / "kernels" / gpu.slug / f"{kernel.table}.csv"
            session = Session(asked.family, kernel, lab.timer, Rows(path, asked.family), lab.ranks, effort)
            about = laboratory.sidecar(asked.family, gpu.name, kernel, lab, effort, written)
            view.opens(session, kernel.name, session.open(about, shapes))
            for shape in view.todo:
                cost = expected(asked.family, shape, machine)
                view.before(shape, cost)
                view.after(session.measure(shape, cost))
            view.closes()
    except KeyboardInterrupt:
        view.interrupted()
    else:
        lab.ranks.close()  # after an interruption it might wait for a rank that is gone
    if options["as_json"] and first:
        _print_document(asked, machine, view.outcomes, interrupted=view.stopped, tables=view.tables)
    return 130 if view.stopped else 1 if any(isinstance(item.result, Refused) for item in view.outcomes) else 0


def _print_document(asked: _Asked, machine: Machine, outcomes: Sequence[Outcome], **more: Any) -> None:
    from moeplan.report.document import document

    content = {"family": asked.family, "gpu": machine.cluster.gpu.name, **more}
    print_json(document("bench", content | {"rows": [outcome.content() for outcome in outcomes]}))


def _say(text: str, /, *, end: str = "\n") -> None:
    click.echo(text + end, nl=False)
    sys.stdout.flush()


class _Progress:
    """Standard error."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()

    def write(self, text: str) -> None:
        """Write and flush."""
        print(text, end="", file=sys.stderr, flush=True)


def _seconds(text: str, name: str) -> float:
    try:
        return units.parse(text, "s")
    except units.UnitError as error:
        raise InputError("options", [Fault(name, str(error))]) from error


def _written(ctx: click.Context) -> str:
    """The command as it was given, for the sidecar."""
    words = ["moeplan", "bench", ctx.command.name or ""]
    for param in ctx.command.params:
        if param.name is None or ctx.get_parameter_source(param.name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[param.name]
        words += [param.opts[-1]] if value is True else [param.opts[-1], str(value)]
    return shlex.join(words)
