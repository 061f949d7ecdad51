"""Options that several commands share, and how their text becomes numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from moeplan import units
from moeplan.errors import Fault, InputError, suggestion
from moeplan.specs.catalog import ENVIRONMENT, Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import CORE_FORMATS, Acceptance
from moeplan.specs.model import ModelSpec
from moeplan.specs.own_data import use_own
from moeplan.specs.precision import FORMATS

if TYPE_CHECKING:
    from moeplan.specs.edits import Edit, Target

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

MOST_DRAFTS = 32
FABRIC = ("leaf_nodes", "oversubscription", "nodes")  # of a cluster, that --set may edit
MOST_GPUS = 10_000  # in one instance
PUBLISHED_ACCEPTANCE = 0.85
PUBLISHED_ACCEPTANCE_SOURCE = "assumed: 0.85 per draft, geometric (DeepSeek-V3 report, as in the throughput article)"


def data_option(command: Command) -> Command:
    """A folder that adds to the packaged data or overrides it."""
    return click.option(
        "--data",
        metavar="DIR",
        is_eager=True,  # other options name schedules and all-to-alls of it
        callback=_own_data,
        help="Folder with your own gpus/, nics/, models/, kernels/, schedules/, exchanges/ (MOEPLAN_DATA).",
    )(command)


def _own_data(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Make the folder's schedules and all-to-alls known by name; Catalog.standard refuses what is no folder."""
    use_own(value if value is not None else os.environ.get(ENVIRONMENT))
    return value


def set_option(command: Command) -> Command:
    """Edit figures."""
    text = "Edit a figure: gpu.memory.bandwidth=4.8TB/s, nic.latency=5µs, model.top_k=6."
    return click.option("--set", "edits", multiple=True, metavar="PATH=VALUE", help=text)(command)


def one_edited(thing: T, target: Target, texts: Sequence[str], name: str | None) -> T:
    """The thing that a listing shows, edited; raise InputError where nothing is named or something else is edited."""
    if not texts:
        return thing
    from moeplan.specs.edits import edited, parse_edits

    edits = parse_edits(texts)
    faults = [Fault("--set", "needs the name of what it edits", "give NAME")] if name is None else []
    faults += [
        Fault(f"--set {edit.target}.{edit.path}", f"edits no {target}", f"write {target}.…")
        for edit in edits
        if edit.target != target
    ]
    if faults:
        raise InputError("options", faults)
    return edited(thing, target, edits)


def json_option(command: Command) -> Command:
    """One JSON document instead of tables."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document, SI units.")(command)


class _ScheduleName(click.ParamType[str]):
    """auto, or a schedule by its name or an alias; the names are read when an option is given."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The schedule's own name; fail with near ones."""
        if value == "auto":
            return "auto"
        from moeplan.specs.schedule import schedule

        try:
            return schedule(str(value)).name
        except InputError as error:
            self.fail(str(error.faults[0]), param, ctx)


def deployment_options(command: Command) -> Command:
    """What a command on one deployment asks of it, beside its size."""
    for option in reversed(
        [
            click.option("--context", metavar="TOKENS", help="Cached tokens per request; 5k is 5,000, 5Ki is 5,120."),
            click.option(
                "--mtp", default="0", show_default=True, metavar="N", help="Drafts per step; q_len = 1 + drafts."
            ),
            click.option(
                "--schedule",
                type=_ScheduleName(),
                default="auto",
                show_default=True,
                metavar="NAME",
                help="Overlap: naive, two-batch, single-batch, two-batch-best (attention cut where it is fastest), "
                "two-batch-prefill; auto takes the faster of the first two.",
            ),
            click.option("--kv", default="bf16", show_default=True, metavar="FORMAT", help="Format of the KV cache."),
            click.option(
                "--attention", default="bf16", show_default=True, metavar="FORMAT", help="Format of the attention core."
            ),
        ]
    ):
        command = option(command)
    return command


def step_options(command: Command) -> Command:
    """What plan and predict have in common."""
    for option in reversed(
        [
            click.option("--experts", metavar="FORMAT", help="Format of expert weights; default: the checkpoint's."),
            click.option(
                "--linear", metavar="FORMAT", help="Format of other linear weights; default: the checkpoint's."
            ),
            click.option(
                "--acceptance",
                default=str(PUBLISHED_ACCEPTANCE),
                metavar="A[,A…]",
                show_default=True,
                help="Share of accepted drafts: one number (geometric) or one per position.",
            ),
            set_option,
            click.option(
                "--kernels",
                default="table,silicon,fitted,assumed",
                show_default=True,
                metavar="SOURCE[,SOURCE…]",
                help="Who may answer for a kernel's time, asked in this order: table (yours, then the packaged ones), "
                "silicon[=ENGINE] (aiconfigurator-core), fitted, assumed; or article (the throughput article's MFU).",
            ),
            click.option(
                "--strict",
                is_flag=True,
                help="Refuse an answer in which a GEMM, attention, all-to-all or all-reduce is assumed.",
            ),
        ]
    ):
        command = option(command)
    return command


class _QuestionFile(click.ParamType[str]):
    """A file that --save can write and a later call can run again; checked before anything is computed."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what could only fail after the work."""
        text = str(value)
        if not text.strip():
            self.fail("is empty; give a file name", param, ctx)
        if not text.lower().endswith((".yaml", ".yml")):
            self.fail(f"{text!r} could not be run again: end it in .yaml", param, ctx)
        if not os.path.isdir(os.path.dirname(text) or "."):
            self.fail(f"{text!r} is in no folder that exists", param, ctx)
        return text


def save_option(command: Command) -> Command:
    """Keep the question as a file."""
    return click.option(
        "--save", type=_QuestionFile(), metavar="FILE.yaml", help="Save the question as YAML, to run again or compare."
    )(command)


def chart_option(command: Command) -> Command:
    """Draw the answer."""
    text = "Draw the answer; .svg and .png need the extra moeplan[charts]."
    return click.option("--chart", metavar="FILE.html|.svg|.png", help=text)(command)


def check_chart(path: str | None) -> None:
    """Refuse a chart file that cannot be written before anything is computed; raise InputError."""
    if path is not None:
        from moeplan.charts.render import check_path

        check_path(Path(path))


def count(text: str, name: str, *, least: float = 1, most: float = 1e9) -> float:
    """Read a whole number such as 5000, 5k (5,000) or 5Ki (5,120); raise InputError."""
    try:
        value = units.parse(text, "1")
    except units.UnitError as error:
        raise InputError("options", [Fault(name, str(error))]) from error
    if value < least or not float(value).is_integer() or value > most:
        raise InputError("options", [Fault(name, f"is {text}", f"give a whole number from {least:g} to {most:g}")])
    return value


def positive(text: str, name: str) -> float:
    """Read a positive finite number; raise InputError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError("options", [Fault(name, f"is {text!r}", "give a positive number")])
    return value


def whole_range(text: str, name: str, *, least: int, most: int = 100_000) -> tuple[int, ...]:
    """Read «3», «16..320» or «16,32,144»: the whole numbers named, ascending; raise InputError."""
    found: set[int] = set()
    for part in text.split(","):
        ends = part.split("..")
        try:
            numbers = [int(end) for end in ends]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2) or numbers[0] < least or numbers[-1] < numbers[0] or numbers[-1] > most:
            fix = f"write a number, a list such as 16,32 or a range such as 16..320; from {least} to {most}"
            raise InputError("options", [Fault(name, f"is {text!r}", fix)])
        found.update(range(numbers[0], numbers[-1] + 1))
    return tuple(sorted(found))


def attention_ranks(text: str, layouts: tuple[str, ...]) -> tuple[int, ...]:
    """GPUs per attention rank to try; raise InputError where no layout asked for has a choice of them."""
    if text.strip() != "1" and not any(layout.startswith("d") for layout in layouts):
        fix = "leave it out, or add a layout by requests: dep, dep-ag or dtp-ag"
        take = f"{' and '.join(layouts)} {'takes' if len(layouts) == 1 else 'take'} all GPUs"
        raise InputError("options", [Fault("--tp", f"is {text}, {take}", fix)])
    return whole_range(text, "--tp", least=1, most=MOST_GPUS)


def instance_sizes(text: str | None, cluster: Cluster) -> tuple[int, ...]:
    """GPUs of one instance: every size in the range that fills whole nodes, or a part of one node that divides it.

    Without a range: one node up to the whole cluster. Raises InputError when the range holds no size, the cluster is
    smaller, or neither a range nor the size of the cluster is known.
    """
    node, total = cluster.gpus_per_node, cluster.total_gpus
    if text is None and total is None:
        fix = "give a number, a list or a range such as 16..320"
        raise InputError("options", [Fault("--gpus", f"is missing, and a cluster of {cluster.gpu.name} may grow", fix)])
    text = f"{min(node, total or node)}..{total}" if text is None else text
    sizes = [
        size
        for size in whole_range(text, "--gpus", least=1, most=MOST_GPUS)
        if size % node == 0 or (size < node and node % size == 0)
    ]
    if total is not None:
        sizes = [size for size in sizes if size <= total]
    if not sizes:
        fix = f"give whole nodes of {node} GPUs, or a part that divides {node}"
        fix += f"; the cluster has {total}" if total is not None else ""
        raise InputError("options", [Fault("--gpus", f"{text} holds no instance of {cluster.gpu.name}", fix)])
    return tuple(sizes)


def acceptance(text: str, drafts: int) -> Acceptance:
    """Read one number (geometric) or one rate per position; raise InputError."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError as error:
        fix = "give a number between 0 and 1, or one per draft such as 0.85,0.6"
        raise InputError("options", [Fault("--acceptance", f"is {text!r}", fix)]) from error
    if len(rates) > 1:
        return Acceptance(rates=tuple(rates), source="given, by position")
    published = rates[0] == PUBLISHED_ACCEPTANCE
    source = PUBLISHED_ACCEPTANCE_SOURCE if published else "given, geometric"
    return Acceptance.geometric(rates[0], max(drafts, 1), source)


def formats(model: ModelSpec, given: Mapping[str, str | None]) -> None:
    """Check lists of formats by option; raise InputError for each that is unknown or that the model cannot use."""
    faults = [
        Fault(name, f"unknown format {part!r}", suggestion(part, FORMATS) or f"known: {', '.join(FORMATS)}")
        for name, text in given.items()
        if text is not None
        for part in text.split(",")
        if part.strip() not in FORMATS
    ]
    cores = [part.strip() for part in (given.get("--attention") or "").split(",") if part.strip() in FORMATS]
    faults += [
        Fault("--attention", f"no attention core in {core}", f"one of {', '.join(CORE_FORMATS)}")
        for core in cores
        if core not in CORE_FORMATS
    ]
    if given.get("--experts") is not None and not model.is_moe:
        faults.append(Fault("--experts", f"{model.name} has no experts", "use --linear"))
    if faults:
        raise InputError("options", faults)


def cluster_of(catalog: Catalog, gpu: str, nic: str, nics_per_node: int | None, edits: Sequence[Edit] = ()) -> Cluster:
    """A cluster of any size from the names of its GPU and NIC, edited."""
    device, card = catalog.gpu(gpu), catalog.nic(nic)
    if edits:
        from moeplan.specs.edits import edited

        device, card = edited(device, "gpu", edits), edited(card, "nic", edits)
    found = Cluster(
        gpu=device,
        nic=card,
        gpus_per_node=device.gpus_per_node,
        nics_per_node=nics_per_node if nics_per_node is not None else device.gpus_per_node,
    )
    return edited_cluster(found, edits)


def edited_cluster(cluster: Cluster, edits: Sequence[Edit]) -> Cluster:
    """The cluster with the edits of its fabric; its GPU and NIC have edits of their own. Raise InputError."""
    own = [edit for edit in edits if edit.target == "cluster"]
    if not own:
        return cluster
    from moeplan.specs.edits import edited

    faults = [
        Fault(
            f"--set cluster.{edit.path}", "edits no fabric", f"one of {', '.join(FABRIC)}; gpu.… and nic.… of their own"
        )
        for edit in own
        if edit.path not in FABRIC
    ]
    if faults:
        raise InputError("options", faults)
    return edited(cluster, "cluster", own)


def edited_model(catalog: Catalog, name: str, texts: Sequence[str]) -> tuple[ModelSpec, Sequence[Edit]]:
    """The model of that name with its edits, and all edits read; raise InputError."""
    model = catalog.model(name)
    edits = edits_of(texts)
    if not edits:
        return model, edits
    from moeplan.specs.edits import edited

    return edited(model, "model", edits), edits


def edits_of(texts: Sequence[str]) -> Sequence[Edit]:
    """Edits read; raise InputError naming every one that is not of the form."""
    if not texts:
        return ()
    from moeplan.specs.edits import parse_edits

    return parse_edits(texts)


def names(text: str, name: str) -> list[str]:
    """Split a comma-separated list, without repetition; raise InputError when it is empty."""
    result = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not result:
        raise InputError("options", [Fault(name, "is empty", "name at least one")])
    return result


def corrections(items: tuple[str, ...]) -> dict[str, float]:
    """Read OPERATOR=FACTOR pairs; raise InputError naming every bad one."""
    found, faults = {}, []
    for item in items:
        operator, _, factor = item.partition("=")
        try:
            value = float(factor)
        except ValueError:
            value = math.nan
        if not operator or not (math.isfinite(value) and value > 0):
            faults.append(Fault("--correct", f"is {item!r}", "write OPERATOR=FACTOR, such as o_proj=1.1"))
        elif operator in found:
            faults.append(Fault("--correct", f"corrects {operator} twice", "give one factor"))
        found[operator] = value
    if faults:
        raise InputError("options", faults)
    return found


def print_json(content: Mapping[str, Any]) -> None:
    """Write the document to standard output."""
    import json

    click.echo(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
