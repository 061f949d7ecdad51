"""A schedule as data: in which order compute and network run the stages of a layer, for every micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from moeplan.errors import Fault, InputError, UnknownName
from moeplan.specs.loading import build, read_mapping
from moeplan.specs.own_data import PACKAGED, check_name, named_files, own_folder

Lane = Literal["compute", "network"]
TaskStage = Literal[
    "attention_front", "attention_back", "shared", "routed", "routed_up", "routed_down", "dispatch", "combine"
]
ON_NETWORK: tuple[TaskStage, ...] = ("dispatch", "combine")
PLAIN = "naive"  # what dense layers, drafts and single GPUs run
FOLDER = PACKAGED / "schedules"
MOST_PARTS = 64


class After(Struct, frozen=True, kw_only=True):
    """A task to wait for beyond the natural order; layers_before: of how many layers earlier."""

    batch: int
    stage: TaskStage
    layers_before: int = 0


class Run(Struct, frozen=True, kw_only=True):
    """Stages of one micro-batch, one after another on a lane.

    parts: each stage in so many equal parts; between stages of as many parts the order holds part by part. layer: 1
    where it is already of the next layer. after: what the first stage waits for.
    """

    batch: int
    run: tuple[TaskStage, ...]
    parts: int = 1
    layer: int = 0
    after: tuple[After, ...] = ()


class Schedule(Struct, frozen=True, kw_only=True):
    """Read from data/schedules; one period of each lane's program, which repeats layer after layer.

    refines: the schedule whose programs these are, attention cut in two where that is fastest. mode: of the all-to-all
    that it was made for, empty for the usual one.
    Raises InputError where a micro-batch does not run every stage once.
    """

    name: str
    meaning: str
    source: str
    micro_batches: int
    compute: tuple[Run, ...]
    network: tuple[Run, ...]
    aliases: tuple[str, ...] = ()
    refines: str = ""
    mode: Literal["", "normal"] = ""

    def __post_init__(self) -> None:
        faults = [*_lane_faults(self), *_stage_faults(self)]
        if faults:
            raise InputError(self.name, faults)

    @property
    def overlaps(self) -> bool:
        """Whether it is more than the plain order, and so needs an all-to-all to hide."""
        return self.name != PLAIN

    def program(self, lane: Lane) -> tuple[Run, ...]:
        """What a lane runs in one period."""
        return self.compute if lane == "compute" else self.network

    def runs(self) -> Iterator[tuple[str, Run]]:
        """Every entry of both programs, and where it is written."""
        for lane in get_args(Lane):
            yield from ((f"{lane}[{index}]", run) for index, run in enumerate(self.program(lane)))


def schedule_names() -> tuple[str, ...]:
    """The names of all schedules, yours too, sorted, aliases left out."""
    return tuple(named_files("schedules"))


def schedule(name: str) -> Schedule:
    """Return the schedule of that name or alias; raise UnknownName with near names, InputError for a bad file."""
    return _schedule(name, own_folder())


@lru_cache(maxsize=64)
def _schedule(name: str, _own: Path | None) -> Schedule:
    given = name.lower().strip()
    files = named_files("schedules")
    if given in files:
        return read_schedule(files[given])
    every = [read_schedule(path) for path in files.values()]
    found = next((item for item in every if given in item.aliases), None)
    if found is None:
        raise UnknownName("schedule", name, [*files, *(alias for item in every for alias in item.aliases)])
    return found


def read_schedule(path: Path) -> Schedule:
    """Read one file, the programs of what it refines filled in; raise InputError naming every fault."""
    content = read_mapping(path)
    if content.get("refines"):
        base = read_mapping(_refined(path, str(content["refines"])))
        content = {key: base[key] for key in ("micro_batches", "compute", "network") if key in base} | content
    found = build(Schedule, content, str(path))
    check_name(path, found.name)
    return found


def _refined(path: Path, name: str) -> Path:
    files = named_files("schedules")
    if name not in files:
        raise InputError(str(path), [Fault("refines", f"names no schedule: {name!r}", f"one of {', '.join(files)}")])
    return files[name]


def _lane_faults(found: Schedule) -> Iterator[Fault]:
    """Micro-batches, lanes, parts and layers in range."""
    if found.micro_batches < 1:
        yield Fault("micro_batches", f"is {found.micro_batches}", "give at least 1")
    for where, run in found.runs():
        lane = where.partition("[")[0]
        for stage in run.run:
            if (stage in ON_NETWORK) != (lane == "network"):
                yield Fault(f"{where}.run", f"{stage} does not run on the {lane} lane", "move it to the other program")
        if not 1 <= run.parts <= MOST_PARTS:
            yield Fault(f"{where}.parts", f"is {run.parts}", f"give 1 to {MOST_PARTS}")
        if run.layer > 1:
            yield Fault(f"{where}.layer", f"is {run.layer}", "give 0, or 1 for the next layer")
        for number in (run.batch, *(after.batch for after in run.after)):
            if not 1 <= number <= found.micro_batches:
                yield Fault(f"{where}.batch", f"is {number}", f"give 1 to {found.micro_batches}")


def _stage_faults(found: Schedule) -> Iterator[Fault]:
    """Every micro-batch runs every stage once: routed whole, or up and down."""
    for batch in range(1, found.micro_batches + 1):
        stages = [stage for _, run in found.runs() if run.batch == batch for stage in run.run]
        halves = {"routed_up", "routed_down"} & set(stages)
        wanted = [stage for stage in get_args(TaskStage) if stage not in ("routed", "routed_up", "routed_down")]
        wanted += ["routed_up", "routed_down"] if halves else ["routed"]
        for stage in wanted:
            if stages.count(stage) != 1:
                yield Fault(f"batch {batch}", f"runs {stage} {stages.count(stage)} times", "run every stage once")
        if halves and "routed" in stages:
            yield Fault(f"batch {batch}", "runs routed and its halves", "run routed, or routed_up and routed_down")
        for where, run in found.runs():
            for after in run.after:
                if after.batch == batch and after.stage not in stages:
                    yield Fault(f"{where}.after", f"waits for {after.stage}, which no lane runs", "name a stage of it")
