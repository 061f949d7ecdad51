"""What a deployment is: how the model is spread over the GPUs and how it is driven."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, Protocol, get_args

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from moeplan.errors import Fault, InputError, UnknownName, Unsupported
from moeplan.kinds import Real
from moeplan.specs.model import Gqa, ModelSpec
from moeplan.specs.precision import Format, weight_format
from moeplan.specs.schedule import PLAIN, schedule

ScheduleName = str  # of a file in data/schedules
CORE_FORMATS = ("bf16", "fp8")
# How tokens reach their experts: an all-to-all by the name of its backend, or one of the two that need none.
LOW_LATENCY, ALL_GATHER, ALL_REDUCE = "deepep-low-latency", "all-gather", "all-reduce"
LoadName = Literal["sampled", "even"]
HostName = Literal["overlapped", "serial"]  # whether the scheduler works on the next step while the GPUs run this one
HOSTS: tuple[HostName, ...] = get_args(HostName)
SCHEDULES: tuple[ScheduleName, ...] = (PLAIN, "two-batch")  # what a search tries unless told otherwise


def is_all_to_all(exchange: str) -> bool:
    """Whether every token travels to its experts alone, in the exchange of that name."""
    return exchange not in (ALL_GATHER, ALL_REDUCE)


class Acceptance(Struct, frozen=True, kw_only=True):
    """How many drafts survive: rates[i] = share of steps in which draft i + 1 is accepted (then all before it are)."""

    rates: tuple[float, ...]
    source: str

    def __post_init__(self) -> None:
        faults = [
            Fault(f"acceptance[{i}]", f"is {rate:g}", "give a share between 0 and 1")
            for i, rate in enumerate(self.rates)
            if not 0.0 <= rate <= 1.0
        ]
        rising = [i for i in range(1, len(self.rates)) if self.rates[i] > self.rates[i - 1]]
        faults += [
            Fault(f"acceptance[{i}]", "is above the one before", "a draft counts only if those before it do")
            for i in rising
        ]
        if faults:
            raise InputError("acceptance", faults)

    @classmethod
    def geometric(cls, rate: float, drafts: int, source: str) -> Acceptance:
        """One scalar: draft i is accepted with rate**i (the throughput article takes 0.85)."""
        return cls(rates=tuple(rate**i for i in range(1, drafts + 1)), source=source)

    def tokens_per_step(self, drafts: Real) -> Real:
        """Tokens a request gains in a step: 1 + the sum of the first `drafts` rates.

        Raises InputError when there are fewer rates than drafts.
        """
        most = int(np.max(drafts))
        if most > len(self.rates):
            fix = f"give {most} rates, or one number for a geometric series"
            raise InputError("acceptance", [Fault("acceptance", f"has {len(self.rates)} rates for {most} drafts", fix)])
        total = np.concatenate([[1.0], 1.0 + np.cumsum(self.rates)])
        result: Real = total[np.asarray(drafts, dtype=np.intp)]
        return result if np.ndim(drafts) else float(result)


NO_DRAFTS: Final = Acceptance(rates=(), source="nothing is drafted")


class Precision(Struct, frozen=True, kw_only=True):
    """Formats by kind of tensor: expert weights, other linear weights, the attention core, the KV cache.

    attention_linear and attention_output: attention's projections, which some checkpoints keep in another format.
    """

    experts: Format
    linear: Format
    attention_linear: Format
    attention_output: Format
    core: Format
    kv: Format

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        *,
        experts: str | None = None,
        linear: str | None = None,
        core: str = "bf16",
        kv: str = "bf16",
    ) -> Precision:
        """The checkpoint's formats, but where a name is given; DeepSeek serves FP8 weights with a BF16 core and cache.

        Raises UnknownName for an unknown format.
        """
        return cls(
            experts=weight_format(experts or model.formats.experts),
            linear=weight_format(linear or model.formats.linear),
            attention_linear=weight_format(linear or model.formats.attention),
            attention_output=weight_format(linear or model.formats.attention_output or model.formats.attention),
            core=weight_format(core),
            kv=weight_format(kv),
        )

    def applied_to(self, model: ModelSpec) -> ModelSpec:
        """The model with its weights in these formats; its MTP modules keep theirs unless a format is overridden."""
        old = model.formats
        kept = (old.experts, old.linear) == (self.experts.name, self.linear.name)
        formats = replace(
            old,
            experts=self.experts.name,
            linear=self.linear.name,
            attention=self.attention_linear.name,
            attention_output=self.attention_output.name,
            mtp=old.mtp if kept else None,
        )
        return replace(model, formats=formats)


class RoutedLoads(Protocol):
    """Loads over the experts, and where those lie (routing.loaded_ranks)."""

    @property
    def experts(self) -> int:
        """Experts of a layer."""

    @property
    def source(self) -> str:
        """The loads."""

    @property
    def title(self) -> str:
        """The loads and how experts are placed."""

    @property
    def balanced(self) -> bool:
        """Whether experts are placed by their loads, not in order."""

    def placed(self, *, balanced: bool) -> RoutedLoads:
        """The same loads with experts balanced, or in order."""

    def at(self, *, ep: Real, slots: Real, tokens: Real) -> tuple[Real, Real]:
        """Rows of the busiest rank over the mean, and its active slots, with `tokens` tokens of the EP group."""


class Deployment(Struct, frozen=True, kw_only=True):
    """dp attention ranks of tp GPUs each; experts over ep ranks, each expert over moe_tp GPUs: dp·tp = ep·moe_tp GPUs.

    batch: requests per DP rank in a step; drafts: MTP drafts per step, q_len = 1 + drafts; context: cached tokens per
    request. Scalars, or arrays on open axes; tp and moe_tp are whole numbers. exchange: how tokens reach their experts:
    by the all-to-all of that name, by gathering all tokens on all GPUs, or, where all GPUs hold the same ones (dp = 1),
    by adding up. redundant: replicas of experts; None fills every rank. load: sampled takes the fullest rank under
    uniform routing, even the mean. imbalance: rows of the busiest rank over the mean as measured; sampling alone is
    never below it. routed: loads and placement, which then make the imbalance of every batch and what experts are
    active. host: whether scheduling hides behind the step before.
    """

    batch: Real
    ep: Real
    context: Real
    precision: Precision
    acceptance: Acceptance
    drafts: Real = 0
    schedule: ScheduleName = PLAIN
    redundant: Real | None = None
    load: LoadName = "sampled"
    imbalance: Real = 1.0
    routed: RoutedLoads | None = None
    host: HostName = "overlapped"
    tp: int = 1
    moe_tp: int = 1
    exchange: str = LOW_LATENCY
    corrections: dict[str, float] = field(default_factory=dict)

    @property
    def q_len(self) -> Real:
        """New tokens per request and step that the main model verifies."""
        return 1 + self.drafts

    @property
    def gpus(self) -> Real:
        """GPUs of one instance."""
        return self.ep * self.moe_tp

    @property
    def dp(self) -> Real:
        """Attention ranks with requests of their own."""
        return self.gpus / self.tp

    @property
    def all_to_all(self) -> bool:
        """Whether every token travels to its experts alone."""
        return is_all_to_all(self.exchange)

    @property
    def routing(self) -> str:
        """How tokens are taken to choose their experts."""
        alone = bool(np.all(np.equal(self.ep, 1)))
        if self.routed is not None:
            return f"{self.routed.source}; every rank holds all experts" if alone else self.routed.title
        if self.load == "even":
            return "uniform, every rank as full as the mean"
        if np.ndim(self.imbalance) or self.imbalance > 1.0:
            return "busiest rank as given, uniform within it"
        if alone:
            return "uniform, every rank holds all experts"
        return "uniform, fullest rank of the sample"

    @property
    def layout(self) -> str:
        """Its name in specs.spread."""
        experts = "tp" if self.moe_tp > 1 else "ep"
        if self.exchange == ALL_REDUCE:
            return "tp" if experts == "tp" else "tep"
        return f"d{experts}" + ("" if self.all_to_all else "-ag")


def allowed_schedules(deployment: Deployment, model: ModelSpec) -> tuple[ScheduleName, ...]:
    """Those of SCHEDULES that a deployment allows at some batch: overlap hides an all-to-all between several GPUs."""
    sends = model.is_moe and deployment.all_to_all and int(deployment.gpus) > 1
    return tuple(name for name in SCHEDULES if sends or not schedule(name).overlaps)


def check(deployment: Deployment, model: ModelSpec) -> None:
    """Check a scalar deployment against the model; raise InputError naming every violated rule."""
    faults = [
        *_size_faults(deployment),
        *_layout_faults(deployment, model),
        *_schedule_faults(deployment, model),
        *_draft_faults(deployment, model),
        *_other_faults(deployment, model),
    ]
    if faults:
        raise InputError("deployment", faults)


def _size_faults(deployment: Deployment) -> Iterator[Fault]:
    for name, least in (("batch", 1), ("ep", 1), ("context", 1), ("drafts", 0), ("redundant", 0)):
        value = getattr(deployment, name)
        if value is not None and not (least <= float(value) <= 1e9 and float(value).is_integer()):
            yield Fault(name, f"is {value}", f"give a whole number from {least} to 1e9")


def _layout_faults(deployment: Deployment, model: ModelSpec) -> Iterator[Fault]:
    tp, moe_tp, gpus = deployment.tp, deployment.moe_tp, float(deployment.gpus)
    small = [name for name, size in (("tp", tp), ("moe_tp", moe_tp)) if size < 1]
    yield from (Fault(name, "is below 1", "give at least 1") for name in small)
    if small:
        return
    if gpus % tp:
        yield Fault("tp", f"{tp} does not divide {gpus:g} GPUs", "give a divisor")
    yield from head_faults(model, tp)
    if model.experts is None:
        return
    if model.experts.width % moe_tp:
        yield Fault("moe_tp", f"expert width {model.experts.width} does not divide by {moe_tp}", "use moe_tp 1")
    if deployment.exchange == ALL_REDUCE and gpus != tp:
        fix = f"give tp {gpus:g}, or gather the tokens"
        yield Fault("exchange", f"all-reduce adds up what all GPUs hold, tp is {tp} of {gpus:g}", fix)
    if deployment.exchange != ALL_REDUCE and gpus == tp > 1:
        yield Fault("exchange", "one attention rank has all tokens on all GPUs", f"use {ALL_REDUCE}")
    if deployment.all_to_all and moe_tp > 1:
        yield Fault("moe_tp", "an all-to-all sends tokens to whole experts", f"use moe_tp 1, or {ALL_GATHER}")


def head_faults(model: ModelSpec, tp: int, instead: str = "") -> Iterator[Fault]:
    """Every rule of attention heads that a TP size breaks; instead: what else would do."""
    attention = model.attention
    if attention.heads % tp:
        fix = f"use a tp that divides {attention.heads}{instead}"
        yield Fault("tp", f"{attention.heads} attention heads do not divide by tp {tp}", fix)
    if isinstance(attention, Gqa) and attention.kv_heads % tp and tp % attention.kv_heads:
        # One head, as a latent, is replicated: never a reason to refuse.
        fix = f"use a tp that divides {attention.kv_heads} or is a multiple of it"
        yield Fault("tp", f"{attention.kv_heads} KV heads and tp {tp} do not divide each other", fix)


def _schedule_faults(deployment: Deployment, model: ModelSpec) -> Iterator[Fault]:
    if deployment.load not in ("sampled", "even"):
        yield Fault("load", f"unknown {deployment.load!r}", "one of sampled, even")
    try:
        found = schedule(deployment.schedule)
    except UnknownName as error:
        yield from error.faults
        return
    name, parts = found.name, found.micro_batches
    if found.overlaps and model.experts is None:
        yield Fault("schedule", f"{name} overlap hides an all-to-all, a dense model has none", f"use {PLAIN}")
    elif found.overlaps and (float(deployment.ep) == 1 or not deployment.all_to_all):
        what = "one GPU" if float(deployment.gpus) == 1 else deployment.exchange
        yield Fault("schedule", f"{name} overlap hides an all-to-all, {what} has none", f"use {PLAIN}")
    if float(deployment.batch) % parts:
        fix = "use an even batch" if parts == 2 else f"use a multiple of {parts}"
        yield Fault("batch", f"{deployment.batch} requests do not split in {parts}", fix)


def _draft_faults(deployment: Deployment, model: ModelSpec) -> Iterator[Fault]:
    if float(deployment.drafts) > 0 and model.mtp_layers == 0:
        fix = "use 0 drafts; a separate draft model is not modelled"
        yield Fault("mtp", f"{model.name} ships no multi-token-prediction module", fix)
    rates = len(deployment.acceptance.rates)
    if float(deployment.drafts) > rates:
        fix = f"give {deployment.drafts} rates, or one number for a geometric series"
        yield Fault("acceptance", f"has {rates} rates for {deployment.drafts} drafts", fix)


def _other_faults(deployment: Deployment, model: ModelSpec) -> Iterator[Fault]:
    for name, factor in deployment.corrections.items():
        if not 0 < factor < 1e6:
            yield Fault(f"correct.{name}", f"factor {factor:g}", "give a positive factor below 1e6")
    if deployment.host not in HOSTS:
        yield Fault("host", f"unknown {deployment.host!r}", f"one of {', '.join(HOSTS)}")
    if not np.all(np.greater_equal(deployment.imbalance, 1.0)):
        yield Fault("imbalance", f"is {deployment.imbalance}", "give the busiest rank over the mean, 1 or more")
    yield from _routed_faults(deployment, model)
    yield from _redundant_faults(deployment, model)
    if deployment.precision.core.name not in CORE_FORMATS:
        yield Fault("attention", f"no attention core in {deployment.precision.core.name}", f"{', '.join(CORE_FORMATS)}")
    if model.max_position is not None and float(deployment.context) > model.max_position:
        yield Fault("context", f"is {deployment.context:g}", f"{model.name} reads at most {model.max_position} tokens")


def _redundant_faults(deployment: Deployment, model: ModelSpec) -> Iterator[Fault]:
    if not deployment.redundant:
        return
    if model.experts is None:
        yield Fault("redundant", f"{model.name} has no experts", "leave it out")
    elif float(deployment.ep) >= 1:
        yield from excess_faults(deployment.redundant, experts=model.experts.count, ep=deployment.ep)


def fewest_redundant(experts: int, ep: Real) -> Real:
    """Redundant slots that fill every rank; scalars or arrays."""
    return -experts % ep


def most_redundant(experts: int, ep: Real) -> Real:
    """Redundant slots with which every rank holds every expert: more copies have no rank to go to."""
    return experts * (ep - 1)


def excess_faults(redundant: Real, *, experts: int, ep: Real, name: str = "redundant") -> Iterator[Fault]:
    """More redundant slots than the ranks can use."""
    most = most_redundant(experts, ep)
    if redundant > most:
        fix = f"give at most {most:g}: every rank then holds every expert" if most else "leave it out"
        yield Fault(name, f"is {redundant} beyond {experts} experts of EP{ep:g}", fix)


def _routed_faults(deployment: Deployment, model: ModelSpec) -> Iterator[Fault]:
    routed = deployment.routed
    if routed is None:
        return
    if model.experts is None:
        yield Fault("load", f"{model.name} has no experts", "leave it out")
    elif routed.experts != model.experts.count:
        problem = f"is of {routed.experts} experts, {model.name} has {model.experts.count}"
        yield Fault("load", problem, "give loads of this model")
    if deployment.load == "even" or np.any(np.greater(deployment.imbalance, 1.0)):
        yield Fault("load", "beside an even load or an imbalance by hand says two things", "give one of them")


def check_precision(precision: Precision, supports: object, gpu_name: str) -> None:
    """Raise Unsupported for every format whose multiplication the GPU lacks; `supports` is Gpu.supports."""
    assert callable(supports)
    wanted = {
        "experts": precision.experts,
        "linear": precision.linear,
        "attention projections": precision.attention_linear,
        "attention output": precision.attention_output,
        "attention": precision.core,
    }
    faults = [
        Fault(kind, f"{item.name} multiplies in {item.computes_in}, which {gpu_name} lacks", "choose bf16")
        for kind, item in wanted.items()
        if not supports(item.computes_in)
    ]
    if faults:
        raise Unsupported("precision", faults)
