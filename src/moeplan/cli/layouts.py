"""moeplan layouts: which layout is fastest over the requests in all, and where they cross."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from moeplan.cli.layouts_question import LayoutsQuestion, ReadLayouts, largest_of, read_layouts
from moeplan.cli.machines import machine_options
from moeplan.cli.options import chart_option, check_chart, data_option, json_option, print_json, step_options
from moeplan.errors import Fault, InputError

if TYPE_CHECKING:
    from moeplan.explain.group_limit import GroupLimitEffect
    from moeplan.explain.layout_curves import LayoutPanel


@click.command("layouts")
@click.argument("model")
@machine_options(several=False)
@click.option("--gpus", metavar="N|A..B|A,B", help="GPUs of one instance, each size a panel; whole nodes.")
@click.option("--context", metavar="TOKENS[,…]", help="Cached tokens per request, each a panel; 5k is 5,000.")
@click.option("--requests", metavar="N[,N…]", help="Requests in all to show.  [default: powers of two up to what fits]")
@click.option("--max-batch", default="512", show_default=True, metavar="N", help="Most requests per GPU to try.")
@click.option(
    "--layout",
    default="dep,dep-ag,dtp-ag,tep,tp",
    show_default=True,
    metavar="NAME[,NAME…]",
    help="Layouts to compare: attention by requests (d…) or by heads, experts whole (ep) or cut (tp); docs/layouts.md.",
)
@click.option(
    "--tp", default="1", show_default=True, metavar="N|A,B", help="GPUs per attention rank to try in d… layouts."
)
@click.option("--mtp", default="0", show_default=True, metavar="N", help="Drafts per step; q_len = 1 + drafts.")
@click.option("--kv", default="bf16", show_default=True, metavar="FORMAT", help="Format of the KV cache.")
@click.option("--attention", default="bf16", show_default=True, metavar="FORMAT", help="Format of the attention core.")
@step_options
@chart_option
@data_option
@json_option
def command(**options: Any) -> int:
    """Compare layouts of MODEL: attention by heads (TP) or by requests (DP), experts whole (EP) or cut (TP).

    For every instance size and context: the step of each layout over the requests in all, at the faster of naive and
    two-batch; up to how many requests attention by heads is fastest, and in which range the p10–p90 band of the two
    steps' ratio leaves that undecided.

    Example: moeplan layouts deepseek-v3 --gpu h200 --gpus 8,32 --context 2k,16k,64k
    """
    check_chart(options["chart"])
    missing = [
        Fault(f"--{name}", "is missing", fix)
        for name, fix in (("gpus", "give sizes such as 8,32"), ("context", "give tokens such as 2k,16k"))
        if options[name] is None
    ]
    if options["cluster"] is None and options["gpu"] is None:
        missing.append(Fault("--gpu", "is missing", "name a GPU (`moeplan gpus`) or a --cluster"))
    if missing:
        raise InputError("options", missing)
    fields = set(LayoutsQuestion.__struct_fields__)
    asked = {name: value for name, value in options.items() if name in fields}
    read = read_layouts(LayoutsQuestion(**asked, schedule="naive,two-batch"))
    panels = _panels(read)
    effects, unanswered = _effects(read)
    if options["chart"]:
        _draw(read, panels, Path(options["chart"]))
    _print(read, panels, effects, unanswered, as_json=options["as_json"])
    return 0 if any(panel.curves for panel in panels) else 1


def _panels(read: ReadLayouts) -> list[LayoutPanel]:
    """A panel per size and context; what the kernels refuse stands in it with the reason."""
    from moeplan.explain.layout_curves import layout_panel, requests_grid

    return [
        layout_panel(
            read.predictor,
            replace(read.base, context=context),
            size.spreads,
            requests_grid(size.gpus, largest_of(read, size.gpus), read.requests),
            gpus=size.gpus,
            refused=size.refused,
        )
        for size in read.sizes
        for context in read.contexts
    ]


def _effects(read: ReadLayouts) -> tuple[list[GroupLimitEffect], list[tuple[int, str]]]:
    """What the router's group limit changes at every size of several nodes; and where nothing answers, why."""
    from moeplan.explain.group_limit import group_limit_effect, has_limit

    found: list[GroupLimitEffect] = []
    unanswered: list[tuple[int, str]] = []
    machine = read.predictor.machine
    if not has_limit(read.model) or machine.kernels.sources.article:
        return found, unanswered
    node = max(machine.cluster.gpu.domain, machine.cluster.gpus_per_node)
    for size in read.sizes:
        if size.gpus > node:
            try:
                found.append(group_limit_effect(read.model, machine, read.base.precision, gpus=size.gpus))
            except InputError as error:
                unanswered.append((size.gpus, "; ".join(map(str, error.faults))))
    return found, unanswered


def _draw(read: ReadLayouts, panels: list[LayoutPanel], path: Path) -> None:
    from moeplan.charts.layout_curves import layout_curves_chart, layout_fronts_chart
    from moeplan.charts.render import write_chart
    from moeplan.report.layouts_report import heading

    drawn = [panel for panel in panels if panel.curves]
    if drawn:
        subtitle = heading(read.predictor, read.base)
        write_chart(
            [layout_curves_chart(drawn, subtitle=subtitle), layout_fronts_chart(drawn, subtitle=subtitle)], path
        )


def _print(
    read: ReadLayouts,
    panels: list[LayoutPanel],
    effects: list[GroupLimitEffect],
    unanswered: list[tuple[int, str]],
    *,
    as_json: bool,
) -> None:
    from moeplan.report.layouts_report import heading, layouts_content, print_layouts

    if as_json:
        from moeplan.report.document import document

        content = layouts_content(panels, effects, unanswered, requests=read.requests)
        content |= {"model": read.model.name, "gpu": read.predictor.machine.cluster.gpu.name}
        content |= {"refused_sizes": [{"gpus": gpus, "why": why} for gpus, why in read.refused]}
        print_json(document("layouts", content))
        return
    from moeplan.report.tables import console

    print_layouts(
        console(),
        panels,
        effects,
        unanswered,
        heading=heading(read.predictor, read.base),
        requests=read.requests,
        refused=read.refused,
    )
