"""What to know before running SGLang's command: only of flags that are in it."""

from __future__ import annotations

from moeplan.engines.rules.exchange_backends import Backend, exchange_backends
from moeplan.predict import Prediction
from moeplan.specs.exchange import exchange
from moeplan.specs.model import Mla


def core_backend(prediction: Prediction) -> str | None:
    """The attention backend that runs the predicted FP8 core; None for a BF16 core, and where no source names one."""
    precision = prediction.deployment.precision
    if precision.core.name != "fp8" or not precision.kv.name.startswith("fp8"):
        return None
    kind = "mla" if isinstance(prediction.model.attention, Mla) else "gqa"
    return prediction.rule.support.fp8_core_backend(prediction.cluster.gpu.architecture, kind)


def sglang_notes(prediction: Prediction, nodes: int, longest: int, asked: Backend | None) -> tuple[str, ...]:
    """Where to run it, how long its requests may be, what is taken on trust."""
    nodes = nodes if prediction.model.is_moe else 1
    where = f"a decode instance on {nodes} nodes: run it on each, with its own NODE_RANK and the first's HEAD_ADDRESS"
    notes = [
        f"for SGLang {prediction.rule.version}; {where if nodes > 1 else 'one node'}",
        _context_note(prediction, longest),
        *_all_to_all_notes(prediction, asked),
        *_attention_notes(prediction),
        *_placement_notes(prediction),
    ]
    if not prediction.model.is_moe:
        notes.append("a dense model on attention-DP alone: each GPU is a replica; start the command on each node")
    return tuple(notes)


def _context_note(prediction: Prediction, longest: int) -> str:
    context = float(prediction.deployment.context)
    most = prediction.model.max_position
    if most is None or longest < most:
        return (
            f"--context-length {longest:,} leaves room above the mean of {context:,.0f}; raise it for longer requests"
        )
    if longest > context:
        return f"--context-length {longest:,} is the most that the model reads, above the mean of {context:,.0f}"
    return (
        f"--context-length {longest:,} is the most that the model reads and the predicted mean as well: no request can "
        "be longer, so a real mean is lower"
    )


def _placement_notes(prediction: Prediction) -> list[str]:
    routed = prediction.deployment.routed
    if routed is None or float(prediction.deployment.ep) == 1:
        return []
    if routed.balanced:
        return [
            "predicted with experts balanced from the start: `moeplan balance` writes the placement (--out FILE) for "
            "--init-expert-location FILE; --enable-eplb alone gets there by its first rebalance"
        ]
    return ["predicted with experts in order under these loads; --redundant auto says what balancing is worth"]


def _all_to_all_notes(prediction: Prediction, asked: Backend | None) -> list[str]:
    if asked is None:
        return []
    rule, family, backend = prediction.rule, prediction.model.family, asked.backend
    notes = (
        [f"needs {asked.install}; what SGLang {rule.version} does with it was not verified"] if asked.install else []
    )
    if asked.variable:
        mode = " and use --deepep-mode auto" if asked.mode else ""
        decode = "decodes only: it needs prefill instances and a router; to prefill here too, drop"
        notes.append(f"{decode} --disaggregation-mode{mode}")
    if rule.support.family_runs(backend, family) is None and family not in exchange_backends().families.get(
        backend, ()
    ):
        notes.append(f"not verified: whether SGLang {rule.version} runs {family} with --moe-a2a-backend {backend}")
    backing = exchange(prediction.deployment.exchange)
    if not backing.capturable:
        notes.append(f"SGLang turns CUDA graphs off with --deepep-mode {asked.mode}: {backing.title} is not captured")
    if backing.stands_in:
        notes.append(f"the predicted times of {backing.title} are those of {backing.stands_in}")
    experts = prediction.deployment.precision.experts.name
    if experts not in rule.support.expert_formats.get(backend, (experts,)):
        notes.append(
            f"{experts} experts through {backend} need a MoE runner that takes them; which one "
            f"SGLang {rule.version} chooses by itself was not verified"
        )
    return notes


def _attention_notes(prediction: Prediction) -> list[str]:
    """How the predicted core and cache formats meet in the attention backend."""
    core, kv = prediction.deployment.precision.core.name, prediction.deployment.precision.kv.name
    cache = "FP8" if kv.startswith("fp8") else kv.upper()
    notes = []
    if core == "bf16" and kv != "bf16":
        notes.append(
            f"an {cache} cache read by a BF16 attention core: check that the attention backend converts on load"
        )
    backend = core_backend(prediction)
    if backend is not None:
        notes.append(f"an FP8 attention core: --attention-backend {backend} takes the query in FP8 with an FP8 cache")
    elif core == "fp8":
        version = prediction.rule.version
        notes.append(
            f"no flag of SGLang {version} is known to us that runs an FP8 attention core with this {cache} cache here"
        )
    if kv == "nvfp4" and isinstance(prediction.model.attention, Mla):
        notes.append("not verified: whether SGLang's backends of an NVFP4 cache run MLA")
    return notes
