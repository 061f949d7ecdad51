"""A plan asked about: its options, and the spaces to search that they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from moeplan.cli.exchanges import read_exchanges, searched
from moeplan.cli.load_option import BEST, check_load_options, read_load, redundant_slots
from moeplan.cli.options import (
    MOST_DRAFTS,
    MOST_GPUS,
    acceptance,
    attention_ranks,
    count,
    edited_model,
    edits_of,
    formats,
    instance_sizes,
    names,
    positive,
    whole_range,
)
from moeplan.cli.question import Question
from moeplan.errors import Fault, InputError, UnknownName, Unsupported, together
from moeplan.memory import LARGEST_BATCH
from moeplan.predict import Predictor
from moeplan.search.space import Space
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import (
    NO_DRAFTS,
    Deployment,
    Precision,
    RoutedLoads,
    check_precision,
    excess_faults,
    fewest_redundant,
)
from moeplan.specs.exchange import AUTO
from moeplan.specs.model import ModelSpec
from moeplan.specs.schedule import PLAIN, schedule
from moeplan.specs.spread import LAYOUTS, named_layouts

EXTRAS = (0, 1, 2)  # redundant slots of a rank that `auto` tries, beyond what fills every rank
MOST_CONFIGURATIONS = 1_000_000_000  # about a quarter of an hour


class PlanQuestion(Question, frozen=True, kw_only=True):
    """The options of a plan."""

    gpus: str | None
    layout: str
    exchange: str = AUTO
    tp: str
    min_tps: str
    max_batch: str
    rank_by: str


class Search(Struct, frozen=True, kw_only=True):
    """One cluster to search. asked: the options that name it; left_out: what was asked for and not tried, and why."""

    asked: Mapping[str, str]
    predictor: Predictor
    space: Space
    left_out: tuple[str, ...]


class ReadPlan(Struct, frozen=True, kw_only=True):
    """The question read: the model, the numbers, and one search per cluster."""

    model: ModelSpec
    context: float
    min_tps: float
    searches: tuple[Search, ...]
    unsupported: tuple[tuple[Mapping[str, str], Cluster, str], ...]  # and why it cannot run the model


def check_question(context: str | None, min_tps: str | None, workload: dict[str, str | None]) -> None:
    """One decode step is described by --context and --min-tps; a workload cannot be described beside it."""
    given = [name for name, value in workload.items() if value is not None]
    faults = []
    if given:
        contradiction = " and contradicts --context, which describes one decode step" if context is not None else ""
        fix = "describe a decode step with --context and --min-tps; workloads are not answered by this version"
        faults += [Fault(name, f"describes a workload{contradiction}", fix) for name in given]
    if context is None:
        faults.append(Fault("--context", "is missing", "give the cached tokens per request, such as 5k"))
    if min_tps is None:
        faults.append(Fault("--min-tps", "is missing", "give the promised tokens per second per user, such as 20"))
    if faults:
        raise InputError("options", faults)


def read_plan(question: PlanQuestion) -> ReadPlan:
    """Read every option before anything is searched; raise InputError naming what is wrong."""
    catalog = Catalog.standard(question.data)
    machines = question.machines
    together(
        "options",
        lambda: edited_model(catalog, question.model, question.edits),
        lambda: list(machines.clusters(catalog, edits_of(question.edits))),
        lambda: formats(catalog.model(question.model), question.formats),
        lambda: count(question.context, "--context"),
        lambda: positive(question.min_tps, "--min-tps"),
        lambda: whole_range(question.gpus, "--gpus", least=1, most=MOST_GPUS) if question.gpus is not None else None,
        lambda: whole_range(question.mtp, "--mtp", least=0, most=MOST_DRAFTS),
        lambda: count(question.max_batch, "--max-batch", most=LARGEST_BATCH),
        lambda: acceptance(question.acceptance, 1),
        lambda: question.sources,
        lambda: _check_modes(_named_schedules(question.schedule), question.exchange),
        lambda: named_layouts(names(question.layout, "--layout")),
        lambda: read_exchanges(question.exchange),
        lambda: whole_range(question.tp, "--tp", least=1, most=MOST_GPUS),
        lambda: check_load_options(question.load, question.redundant),
    )
    model, edits = edited_model(catalog, question.model, question.edits)
    context, min_tps = count(question.context, "--context"), positive(question.min_tps, "--min-tps")
    if model.max_position is not None and context > model.max_position:
        fix = f"{model.name} reads at most {model.max_position:,} tokens as shipped; if you serve it with a longer rope"
        fix += " scaling, --set model.max_position=…"
        raise InputError("options", [Fault("--context", f"is {question.context}", fix)])
    routed = read_load(question.load, model, balanced=question.redundant is not None)
    searches, unsupported = [], []
    refused: Unsupported | None = None
    for asked, cluster in machines.clusters(catalog, edits):
        predictor = Predictor.of(model, cluster, catalog, question.sources)
        try:
            space, left_out = _space(question, predictor, context, routed)
            searches.append(Search(asked=asked, predictor=predictor, space=space, left_out=left_out))
        except Unsupported as error:  # in a comparison, no reason to drop the other GPUs
            refused = error
            unsupported.append((asked, cluster, "; ".join(map(str, error.faults))))
    if refused is not None and not searches:
        raise refused
    return ReadPlan(
        model=model,
        context=context,
        min_tps=min_tps,
        searches=tuple(searches),
        unsupported=tuple(unsupported),
    )


def _space(
    question: PlanQuestion, predictor: Predictor, context: float, routed: RoutedLoads | None
) -> tuple[Space, tuple[str, ...]]:
    """The space of one cluster, and why all-to-alls, layouts and attention TP sizes asked for are not in it."""
    model, cluster = predictor.model, predictor.machine.cluster
    counts, layouts = instance_sizes(question.gpus, cluster), named_layouts(names(question.layout, "--layout"))
    reach, left_out = searched(question.exchange, predictor, counts, layouts, question.experts)
    drafts = _drafts(model, question.mtp)
    tps = attention_ranks(question.tp, layouts)
    _check_slots(model, counts, redundant_slots(question.redundant))
    largest = int(count(question.max_batch, "--max-batch", most=LARGEST_BATCH))
    space = Space(
        counts=counts,
        batches=tuple(range(1, largest + 1)),
        drafts=drafts,
        precisions=tuple(_precisions(question, predictor, next(iter(reach)))),
        schedules=_schedules(question.schedule, model, max(counts)),
        context=context,
        acceptance=acceptance(question.acceptance, max(drafts)),
        model=model,
        layouts=layouts,
        tps=tps,
        redundant=redundant_slots(question.redundant),
        extras=EXTRAS if question.redundant == BEST else (0,),
        routed=routed,
        reach=reach,
    )
    answered, unpriced = _answered(predictor, space)
    unused = tuple(_unused(space, layouts))
    space = replace(space, layouts=answered)
    if space.size > MOST_CONFIGURATIONS:
        fix = f"narrow --gpus, --max-batch or --mtp; at most {MOST_CONFIGURATIONS:,} are searched per cluster"
        raise InputError("options", [Fault("--gpus", f"spans {space.size:,} configurations", fix)])
    if not space.size:
        raise InputError(
            "options", [Fault("--schedule", "leaves nothing to try", "two-batch needs --max-batch of 2 or more")]
        )
    return space, (*left_out, *unpriced, *unused)


def _unused(space: Space, layouts: tuple[str, ...]) -> Iterator[str]:
    """Layouts and sizes of attention ranks that were asked for and of which nothing is tried."""
    tried = [spread for spread in space.spreads if any(space.counts_for(name, spread).size for name in space.schedules)]
    missing = [str(tp) for tp in space.tps if not any(spread.tp == tp for spread in tried if spread.layout[0] == "d")]
    if missing and any(layout.startswith("d") for layout in layouts):
        yield f"--tp {', '.join(missing)}: divides no heads or no instance size in layouts by requests"
    for layout in layouts if layouts != tuple(LAYOUTS) else ():  # who names none has not asked for any
        if not any(spread.layout == layout for spread in tried):
            kept = any(spread.layout == layout for spread in space.spreads)
            why = "no --schedule named suits it" if kept else "the model cannot be spread so over these GPUs"
            yield f"--layout {layout}: {why}"


def _check_slots(model: ModelSpec, counts: tuple[int, ...], redundant: int | None) -> None:
    """Raise InputError where a number of redundant slots suits none of the sizes, or the model has no experts."""
    if redundant is None:
        return
    if model.experts is None:
        raise InputError("options", [Fault("--redundant", f"{model.name} has no experts", "leave it out")])
    slots = model.experts.count + redundant
    fitting = [size for size in counts if slots % size == 0]
    if fitting:
        excess = list(excess_faults(redundant, experts=model.experts.count, ep=max(fitting), name="--redundant"))
        if excess:
            raise InputError("options", excess)
    else:
        near = sorted({int(fewest_redundant(model.experts.count, size)) for size in counts})[:4]
        fix = f"give auto, {', '.join(map(str, near))} or a multiple of the GPUs more"
        sizes = ", ".join(map(str, counts[:6])) + (", …" if counts[6:] else "")
        raise InputError("options", [Fault("--redundant", f"{slots} slots divide over none of {sizes} GPUs", fix)])


def _answered(predictor: Predictor, space: Space) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The layouts for whose kernels and wires the allowed sources answer, on this GPU, and why others are left out.

    Raises Unsupported, naming every reason, when there is none.
    """
    found: list[str] = []
    faults: list[Fault] = []
    reasons: list[str] = []
    for layout in space.layouts:
        try:
            few = replace(space, layouts=(layout,), schedules=(PLAIN,), batches=space.batches[:1], routed=None)
            for piece in few.pieces():  # without loads: placing experts at every size is the search's work
                predictor.evaluate(piece)
        except InputError as error:
            faults.extend(fault for fault in error.faults if fault not in faults)
            if any(spread.layout == layout for spread in space.spreads):  # _unused says it of the others
                reasons.append(f"--layout {layout}: {'; '.join(map(str, error.faults))}")
        else:
            found.append(layout)
    if not found:
        raise Unsupported(predictor.machine.cluster.gpu.name, faults)
    return tuple(found), tuple(reasons)


def _drafts(model: ModelSpec, text: str) -> tuple[int, ...]:
    """The drafts to try; a model without MTP module can only have none."""
    drafts = whole_range(text, "--mtp", least=0, most=MOST_DRAFTS)
    if model.mtp_layers:
        return drafts
    if 0 not in drafts:
        fault = Fault("--mtp", f"{model.name} ships no multi-token-prediction module", "use --mtp 0")
        raise InputError("options", [fault])
    return (0,)


def _precisions(question: PlanQuestion, predictor: Predictor, exchange: str) -> Iterator[Precision]:
    """The formats named that this GPU can multiply in and that the allowed sources answer for.

    Raises Unsupported, naming every reason, when there is none.
    """
    model, gpu = predictor.model, predictor.machine.cluster.gpu
    formats(model, question.formats)
    faults: list[Fault] = []
    found = False
    for core in names(question.attention, "--attention"):
        for cache in names(question.kv, "--kv"):
            precision = Precision.of(model, experts=question.experts, linear=question.linear, core=core, kv=cache)
            try:
                check_precision(precision, gpu.supports, gpu.name)
                predictor.evaluate(_smallest(precision, exchange))
            except InputError as error:
                faults.extend(fault for fault in error.faults if fault not in faults)
            else:
                found = True
                yield precision
    if not found:
        raise Unsupported(gpu.name, faults)


def _smallest(precision: Precision, exchange: str) -> Deployment:
    """One request on two GPUs: whatever a step asks of kernels and wires, this asks as well."""
    return Deployment(
        batch=1,
        ep=2,
        context=1,
        precision=precision,
        acceptance=NO_DRAFTS,
        exchange=exchange,
    )


def _schedules(text: str, model: ModelSpec, most_gpus: int) -> tuple[str, ...]:
    """The schedules named; overlap needs an all-to-all to hide, so a dense model or one GPU has only the naive one.

    Raises InputError where that one is not among them.
    """
    named = _named_schedules(text)
    if model.is_moe and most_gpus > 1:
        return named
    if PLAIN not in named:
        what = f"{model.name}, which has no experts," if not model.is_moe else "one GPU"
        fault = Fault("--schedule", f"{', '.join(named)} hides an all-to-all, {what} has none", f"add {PLAIN}")
        raise InputError("options", [fault])
    return (PLAIN,)


def _check_modes(schedules: tuple[str, ...], exchange: str) -> None:
    """A search asks for one all-to-all at every size: where a schedule was made for another mode, it is to be named."""
    made = [f"{name} ({schedule(name).mode})" for name in schedules if schedule(name).mode]
    if made and exchange.strip() == AUTO:
        fix = "name those to search with --exchange, such as deepep-low-latency,deepep-normal"
        problem = f"{', '.join(made)} was made for an all-to-all of another mode than auto takes"
        raise InputError("options", [Fault("--schedule", problem, fix)])


def _named_schedules(text: str) -> tuple[str, ...]:
    """The schedules of these names or aliases, each once, the plain one first: it wins where two are as fast."""
    faults, found = [], set()
    for name in names(text, "--schedule"):
        try:
            item = schedule(name)
        except UnknownName as error:
            faults += [Fault("--schedule", fault.problem, fault.fix) for fault in error.faults]
            continue
        found.add(item.name)
        if item.refines:
            fix = f"search {item.refines}: what the best cut would give is said of the winner"
            faults.append(Fault("--schedule", f"{item.name} cuts one deployment at a time", fix))
    if faults:
        raise InputError("options", faults)
    return tuple(sorted(found, key=lambda name: (name != PLAIN, schedule(name).micro_batches, name)))
