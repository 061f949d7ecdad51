"""model + cluster + deployment -> Prediction: one decode step, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from moeplan.engines.rules.memory_rule import MemoryRule, memory_rule
from moeplan.errors import Fault, InputError, Unsupported, suggestion
from moeplan.kernels.origin import Origin, worst
from moeplan.kernels.sources import ALL, KernelSources
from moeplan.kinds import Real
from moeplan.layers.layer import Layer, attention_operators, build_layer, cut_attention
from moeplan.layers.step import Step
from moeplan.memory import MemoryUse, dispatch_tokens, memory_use
from moeplan.ops.collective import all_gather, all_reduce
from moeplan.ops.cost import Cost
from moeplan.ops.elementwise import elementwise
from moeplan.ops.gemm import gemm
from moeplan.ops.machine import Machine
from moeplan.routing.slots import ExpertLoad, Slots, deal
from moeplan.schedules.timeline import Timeline, timeline
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import Deployment, allowed_schedules, check, check_precision
from moeplan.specs.exchange import exchange
from moeplan.specs.model import LayerGroup, ModelSpec, WeightFormats
from moeplan.specs.precision import weight_format
from moeplan.specs.schedule import PLAIN, Schedule, schedule


class GroupTime(Struct, frozen=True, kw_only=True, eq=False):
    """Layers of one kind: the stages of one micro-batch, their timeline, and how many such layers there are."""

    group: LayerGroup
    layer: Layer
    timeline: Timeline

    @property
    def seconds(self) -> Real:
        """All layers of the group."""
        return self.group.count * self.timeline.seconds


class Prediction(Struct, frozen=True, kw_only=True, eq=False):
    """One decode step; scalars or arrays on the deployment's open axes.

    seconds is the step from one token to the next; tokens_per_step what a request gains in it (1 + accepted drafts).
    """

    model: ModelSpec
    cluster: Cluster
    deployment: Deployment
    groups: tuple[GroupTime, ...]
    outside: tuple[Cost, ...]  # embedding, head, sampling, step overhead
    drafting: Real  # seconds of the MTP passes
    slots: Slots | None
    step: Step  # one micro-batch
    memory: MemoryUse
    rule: MemoryRule
    checkpoint: WeightFormats  # as shipped; model.formats is what runs
    seconds: Real

    @property
    def load(self) -> ExpertLoad | None:
        """What the fullest rank's experts get of one micro-batch."""
        return self.step.load()

    @property
    def tokens_per_step(self) -> Real:
        """Tokens that a request gains per step."""
        return self.deployment.acceptance.tokens_per_step(self.deployment.drafts)

    @property
    def tpot(self) -> Real:
        """Seconds per output token of a user in steady decode."""
        return self.seconds / self.tokens_per_step

    @property
    def tps_per_user(self) -> Real:
        """Accepted tokens per second of one user, 1/TPOT."""
        return self.tokens_per_step / self.seconds

    @property
    def tps_per_gpu(self) -> Real:
        """Output tokens per second per decode GPU; tp GPUs make a DP rank."""
        return self.deployment.batch * self.tps_per_user / self.deployment.tp

    @property
    def formats_changed(self) -> bool:
        """Whether some weights run in another format than the checkpoint's."""
        old, new = self.checkpoint, self.model.formats
        kinds = ("experts", "linear", "attention") if self.model.is_moe else ("linear", "attention")
        return any(getattr(old, kind) != getattr(new, kind) for kind in kinds)

    @property
    def fits(self) -> Real:
        """Whether the memory suffices."""
        return np.greater_equal(self.memory.free, 0.0)

    @property
    def origin(self) -> Origin:
        """The least sure origin among the operators."""
        costs = [cost for group in self.groups for stage in group.layer.stages.values() for cost in stage.costs]
        return worst(*(cost.origin for cost in (*costs, *self.outside)))


class Predictor(Struct, frozen=True, eq=False):
    """Predicts steps of one model on one cluster; build once, ask for many deployments."""

    model: ModelSpec
    machine: Machine
    rule: MemoryRule

    @classmethod
    def of(cls, model: ModelSpec, cluster: Cluster, catalog: Catalog, sources: KernelSources = ALL) -> Predictor:
        """Load the kernel tables and the engine's memory rule."""
        return cls(model, Machine.of(cluster, catalog, sources), memory_rule(catalog, "sglang"))

    def predict(self, deployment: Deployment) -> Prediction:
        """Predict one deployment.

        Raises InputError naming every rule that it breaks; whether it fits in memory is in the answer, not an error.
        """
        check(deployment, self.model)
        prediction = self.evaluate(deployment)
        _check_corrections(prediction)
        return prediction

    def fastest(self, deployment: Deployment) -> Prediction:
        """Predict at the fastest schedule that a search tries and the deployment allows, the plain one in a tie."""
        steps = [
            self.predict(replace(deployment, schedule=name))
            for name in allowed_schedules(deployment, self.model)
            if name == PLAIN or float(deployment.batch) % schedule(name).micro_batches == 0
        ]
        return min(steps, key=lambda step: float(step.seconds))

    def evaluate(self, deployment: Deployment) -> Prediction:
        """Predict a deployment of scalars or arrays whose rules hold; see predict.

        Raises Unsupported for a precision that the GPU lacks, and where sources are strict for kernels assumed.
        """
        gpu = self.machine.cluster.gpu
        check_precision(deployment.precision, gpu.supports, gpu.name)
        model = deployment.precision.applied_to(self.model)
        slots = None if model.experts is None else deal(model.experts.count, deployment.ep, deployment.redundant)
        found = schedule(deployment.schedule)
        step = self._step(model, deployment, slots, deployment.batch / found.micro_batches)
        whole = self._step(model, deployment, slots, deployment.batch)
        groups = tuple(_group_time(group, step, whole, found) for group in model.layers)
        outside = self._outside(model, whole, serial=deployment.host == "serial")
        drafting = self._drafting(model, deployment, slots)
        seconds: Real = drafting
        for group in groups:
            seconds = seconds + group.seconds
        for cost in outside:
            seconds = seconds + cost.seconds
        if self.machine.kernels.sources.strict:
            _refuse_assumed(gpu.name, groups, outside)
        return Prediction(
            model=model,
            cluster=self.machine.cluster,
            deployment=deployment,
            groups=groups,
            outside=outside,
            drafting=drafting,
            slots=slots,
            step=step,
            memory=memory_use(model, deployment, slots, capacity=gpu.memory.capacity, rule=self.rule),
            rule=self.rule,
            checkpoint=self.model.formats,
            seconds=seconds,
        )

    def _step(
        self, model: ModelSpec, deployment: Deployment, slots: Slots | None, batch: Real, q_len: Real | None = None
    ) -> Step:
        return Step(
            model=model,
            machine=self.machine,
            precision=deployment.precision,
            batch=batch,
            q_len=deployment.q_len if q_len is None else q_len,
            context=deployment.context,
            ep=deployment.ep,
            slots=slots,
            even=deployment.load == "even",
            imbalance=deployment.imbalance,
            routed=deployment.routed,
            tp=deployment.tp,
            moe_tp=deployment.moe_tp,
            exchange=deployment.exchange,
            corrections=deployment.corrections,
        )

    def _outside(self, model: ModelSpec, step: Step, *, serial: bool) -> tuple[Cost, ...]:
        """Embedding, final norm, head, sampling over the logits, and the step's own overhead; words dealt over tp."""
        machine, rows, figures = self.machine, step.rows, self.machine.kernels.general
        head, shared = weight_format(model.formats.embedding), step.tp > 1
        constant = figures.serial_overhead if serial else figures.step_overhead
        overhead = constant + 0.0 * rows
        tensor = 2.0 * rows
        return (
            elementwise("embedding", machine, rows=rows, bytes_per_row=4.0 * model.hidden),
            *([all_reduce("embedding_sum", machine, bytes_=tensor * model.hidden, ranks=step.tp)] if shared else []),
            elementwise("final_norm", machine, rows=rows, bytes_per_row=4.0 * model.hidden),
            gemm("lm_head", machine, m=rows, n=-(-model.vocab // step.tp), k=model.hidden, weights=head),
            *([all_gather("gather_logits", machine, bytes_=tensor * model.vocab, ranks=step.tp)] if shared else []),
            elementwise("sampling", machine, rows=rows, bytes_per_row=8.0 * model.vocab),
            Cost(
                name="step_overhead",
                seconds=overhead,
                parts={"floor": overhead},
                efficiencies={},
                origin=Origin.ASSUMED,
                source=figures.serial_overhead_source if serial else figures.step_overhead_source,
                formula="constant",
                terms={"overhead": (constant, "s")},
            ),
        )

    def _drafting(self, model: ModelSpec, deployment: Deployment, slots: Slots | None) -> Real:
        """Time of the MTP passes: one per draft, each a projection, a layer and the head.

        The first pass takes in every token of the step, the later ones one token per request.
        """
        total: Real = 0.0
        for index in range(int(np.max(deployment.drafts))):
            # Only where there are more drafts than this one: drafts have an axis of their own.
            more = np.greater(deployment.drafts, index)
            some = replace(deployment, drafts=_where(deployment.drafts, more), schedule=PLAIN)
            seconds = self._draft_pass(model, some, slots, some.q_len if index == 0 else 1.0)
            total = total + (_spread(seconds, more) if np.size(more) > 1 else seconds)
        return total

    def _draft_pass(self, model: ModelSpec, deployment: Deployment, slots: Slots | None, q_len: Real) -> Real:
        """One pass of the MTP module: its projection, layer and head over q_len tokens per request."""
        step = self._step(model, deployment, slots, deployment.batch, q_len)
        layer = timeline(build_layer(step, ffn="moe" if model.is_moe else "dense", window=None), PLAIN).seconds
        weights = deployment.precision.linear
        join = gemm("mtp_projection", self.machine, m=step.rows, n=model.hidden, k=2 * model.hidden, weights=weights)
        head = weight_format(model.formats.embedding)
        logits = gemm("mtp_head", self.machine, m=step.rows, n=-(-model.vocab // step.tp), k=model.hidden, weights=head)
        return layer + join.seconds + logits.seconds


def dispatchable(step: Prediction) -> bool | Real:
    """Whether the engine's low-latency all-to-all takes a step's tokens per rank; nothing to ask of any other."""
    if not step.model.is_moe or not step.deployment.all_to_all or not exchange(step.deployment.exchange).limited:
        return True
    within = np.less_equal(dispatch_tokens(step.deployment, step.rule), step.rule.dispatch_tokens_most)
    return np.logical_or(within, np.less_equal(step.deployment.ep, 1))


def _where(drafts: Real, chosen: NDArray[np.bool_]) -> Real:
    """The chosen entries of an open axis, still on that axis."""
    if np.ndim(drafts) == 0:
        return drafts
    axis = int(np.argmax(np.shape(drafts)))
    return np.compress(chosen.ravel(), drafts, axis=axis)


def _with(shape: list[int], axis: int, size: int) -> list[int]:
    """The shape with one axis of another size."""
    return [*shape[:axis], size, *shape[axis + 1 :]]


def _spread(seconds: Real, chosen: NDArray[np.bool_]) -> Real:
    """Put the chosen entries back on the axis, zeros elsewhere."""
    axis = int(np.argmax(chosen.shape))
    shape = list(np.broadcast_shapes(np.shape(seconds), (1,) * chosen.ndim))
    shape[axis] = chosen.size
    result = np.zeros(shape)
    np.moveaxis(result, axis, 0)[chosen.ravel()] = np.moveaxis(
        np.broadcast_to(seconds, _with(shape, axis, int(chosen.sum()))), axis, 0
    )
    return result


def _refuse_assumed(gpu: str, groups: tuple[GroupTime, ...], outside: tuple[Cost, ...]) -> None:
    """Raise Unsupported naming every kernel that tables exist for and that rests on an assumption here."""
    costs = [cost for group in groups for stage in group.layer.stages.values() for cost in stage.costs]
    assumed = {cost.name: cost for cost in (*costs, *outside) if cost.measurable and cost.origin is Origin.ASSUMED}
    if assumed:
        fix = "measure it with `moeplan bench`, choose another GPU or format, or leave --strict out"
        raise Unsupported(gpu, [Fault(name, f"is assumed: {cost.source}", fix) for name, cost in assumed.items()])


def _check_corrections(prediction: Prediction) -> None:
    """Refuse a correction by hand of an operator that the step does not have."""
    known = {cost.name for group in prediction.groups for stage in group.layer.stages.values() for cost in stage.costs}
    faults = [
        Fault(
            f"correct.{name}", "no such operator here", suggestion(name, known) or f"known: {', '.join(sorted(known))}"
        )
        for name in prediction.deployment.corrections
        if name not in known
    ]
    if faults:
        raise InputError("deployment", faults)


def _group_time(group: LayerGroup, step: Step, whole: Step, found: Schedule) -> GroupTime:
    """Dense layers have no all-to-all to hide and run the whole batch at once."""
    if group.ffn == "dense":
        layer = build_layer(whole, ffn="dense", window=group.window)
        return GroupTime(group=group, layer=layer, timeline=timeline(layer, PLAIN))
    layer = build_layer(step, ffn="moe", window=group.window)
    if found.refines:
        return _best_cut(group, layer, step, found)
    return GroupTime(group=group, layer=layer, timeline=timeline(layer, found.name))


def _best_cut(group: LayerGroup, layer: Layer, step: Step, found: Schedule) -> GroupTime:
    """The layer with attention cut in two where it is fastest; the cut of `build_layer` where none is faster."""
    base = timeline(layer, found.name)
    if np.ndim(base.seconds):
        fix = f"ask for {found.refines}, or for one deployment"
        raise Unsupported("schedule", [Fault("schedule", f"{found.name} cuts one deployment at a time", fix)])
    best = GroupTime(group=group, layer=layer, timeline=base)
    for at in range(len(attention_operators(layer)) + 1):
        other = cut_attention(layer, step, at)
        time = timeline(other, found.name)
        if float(time.seconds) < float(best.timeline.seconds) * (1 - 1e-12):
            best = GroupTime(group=group, layer=other, timeline=time)
    return best


def by_stage(group: GroupTime) -> Mapping[str, Real]:
    """Exposed seconds of each stage over all micro-batches of one layer."""
    return {str(name): seconds for name, seconds in group.timeline.exposed.items()}
