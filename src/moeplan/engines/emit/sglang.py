"""The SGLang command (0.5.23) of a deployment."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from moeplan.engines.rules.layout import Layout, check_layout
from moeplan.errors import Fault, InputError
from moeplan.memory import dispatch_tokens
from moeplan.predict import Prediction
from moeplan.units import gib

VERSION = "0.5.23"
_KV_DTYPE = {"bf16": "bf16", "fp8": "fp8_e4m3", "fp8_block": "fp8_e4m3", "nvfp4": "nvfp4"}
_VARIABLES = ("$NODE_RANK", "$HEAD_ADDRESS:20000")  # the only values that the shell expands
CONTEXT_SLACK = 2  # the context of a step is a mean over requests; the longest request needs more


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """What to run on every node, and what to know before.

    flags: (name, value) in order, value None for a switch; environment: variables of the process.
    """

    flags: tuple[tuple[str, str | None], ...]
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    def text(self) -> str:
        """The command as one would paste it, a flag a line, $NODE_RANK and $HEAD_ADDRESS left to the shell."""
        parts = [f"{name}={shlex.quote(value)}" for name, value in self.environment]
        parts.append("python -m sglang.launch_server")
        parts += [name if value is None else f"{name} {_quoted(value)}" for name, value in self.flags]
        return " \\\n  ".join(parts)


def sglang_command(prediction: Prediction) -> LaunchCommand:
    """Translate a scalar prediction into the flags of SGLang 0.5.23.

    Raises InputError where SGLang cannot express the deployment, or it does not fit in memory.
    """
    deployment, cluster, model = prediction.deployment, prediction.cluster, prediction.model
    gpus, batch, drafts = int(deployment.ep), int(deployment.batch), int(deployment.drafts)
    nodes = math.ceil(gpus / cluster.gpus_per_node)
    redundant = int(prediction.slots.redundant) if prediction.slots is not None else 0
    if model.is_moe:
        check_layout(model, Layout(dp=gpus, moe_ep=gpus, moe_tp=1, redundant=redundant, nodes=nodes), "sglang")
    faults = _faults(prediction)
    if faults:
        raise InputError("launch with sglang", faults)
    flags: list[tuple[str, str | None]] = [("--model-path", model.repository)]
    if _online_fp8(prediction):
        flags.append(("--quantization", "fp8"))
    flags += _parallel_flags(gpus, nodes, moe=model.is_moe)
    if model.is_moe and gpus > 1:
        backend = prediction.rule.backend(cluster.gpu.architecture)
        assert backend is not None, "refused before"
        flags.append(("--moe-a2a-backend", backend))
        if backend == "deepep":
            flags.append(("--deepep-mode", "low_latency"))
        if redundant:
            flags += [("--ep-num-redundant-experts", str(redundant)), ("--enable-eplb", None)]
    if deployment.schedule == "two-batch":
        flags.append(("--enable-two-batch-overlap", None))
    if drafts:
        flags += [
            ("--speculative-algorithm", "EAGLE"),
            ("--speculative-num-steps", str(drafts)),
            ("--speculative-eagle-topk", "1"),
            ("--speculative-num-draft-tokens", str(drafts + 1)),
        ]
    longest = _context_length(prediction)
    flags += [
        ("--kv-cache-dtype", _KV_DTYPE[deployment.precision.kv.name]),
        ("--page-size", str(prediction.rule.page_size)),
        ("--context-length", str(longest)),
        ("--max-running-requests", str(batch * gpus if model.is_moe else batch)),  # a replica has its own
        ("--cuda-graph-max-bs-decode", str(batch)),
        ("--mem-fraction-static", f"{math.floor(float(prediction.memory.static_fraction) * 1000) / 1000:.3f}"),
    ]
    environment = []
    if model.is_moe and gpus > 1:
        cap = int(dispatch_tokens(deployment, prediction.rule))
        flags.append(("--disaggregation-mode", "decode"))
        environment.append(("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", str(cap)))
    return LaunchCommand(tuple(flags), tuple(environment), _notes(prediction, nodes, longest))


def _faults(prediction: Prediction) -> list[Fault]:
    deployment, gpus, kv = prediction.deployment, int(prediction.deployment.ep), prediction.deployment.precision.kv.name
    faults = []
    if kv not in _KV_DTYPE:
        faults.append(Fault("kv", f"no {kv} cache in SGLang", f"use {', '.join(_KV_DTYPE)}"))
    cap = int(dispatch_tokens(deployment, prediction.rule))
    if prediction.model.is_moe and gpus > 1 and cap > prediction.rule.dispatch_tokens_most:
        problem = f"{cap} tokens per rank, low-latency dispatch takes at most {prediction.rule.dispatch_tokens_most}"
        faults.append(Fault("batch", problem, "lower the batch or the drafts"))
    gpu = prediction.cluster.gpu
    if prediction.model.is_moe and gpus > 1 and prediction.rule.backend(gpu.architecture) is None:
        problem = f"no low-latency all-to-all is known to run on {gpu.name} ({gpu.architecture})"
        faults.append(Fault("all_to_all", problem, "take the figures as those of a card with one"))
    if prediction.formats_changed and not _online_fp8(prediction):
        fix = "quantise the checkpoint first, or leave its formats"
        faults.append(Fault("precision", "weights are not in the checkpoint's formats", fix))
    if prediction.model.edited:
        faults.append(Fault("model", "was edited by hand: no checkpoint has this shape", "see --set"))
    if not bool(prediction.fits):
        faults.append(Fault("memory", f"lacks {gib(-float(prediction.memory.free))} per GPU", "see `moeplan plan`"))
    return faults


def _online_fp8(prediction: Prediction) -> bool:
    """Whether SGLang can make the formats itself: it quantises a BF16 checkpoint to FP8 as it loads."""
    old, new = prediction.checkpoint, prediction.model.formats
    return (
        prediction.formats_changed
        and (old.experts, old.linear, old.attention) == ("bf16", "bf16", "bf16")
        and {new.linear, new.attention, new.experts if prediction.model.is_moe else "fp8"} <= {"fp8", "fp8_block"}
    )


def _parallel_flags(gpus: int, nodes: int, *, moe: bool) -> list[tuple[str, str | None]]:
    """Attention-DP over all GPUs of the instance; since 0.5.23 --dp-size counts replicas, --attn-dp-size DP ranks.

    Replicas never span nodes: each node starts its own.
    """
    if not moe:
        return [("--dp-size", str(math.ceil(gpus / nodes)))] if gpus > nodes else []
    flags: list[tuple[str, str | None]] = [("--tp-size", str(gpus))]
    if gpus > 1:
        flags += [
            ("--attn-dp-size", str(gpus)),
            ("--ep-size", str(gpus)),
            ("--moe-dense-tp-size", "1"),
            ("--enable-dp-lm-head", None),
        ]
    if nodes > 1:
        flags += [("--nnodes", str(nodes)), ("--node-rank", "$NODE_RANK"), ("--dist-init-addr", "$HEAD_ADDRESS:20000")]
    return flags


def _context_length(prediction: Prediction) -> int:
    longest = int(math.ceil(CONTEXT_SLACK * float(prediction.deployment.context) / 1024) * 1024)
    return min(longest, prediction.model.max_position or longest)


def _notes(prediction: Prediction, nodes: int, longest: int) -> tuple[str, ...]:
    context = float(prediction.deployment.context)
    nodes = nodes if prediction.model.is_moe else 1
    where = f"a decode instance on {nodes} nodes: run it on each, with its own NODE_RANK and the first's HEAD_ADDRESS"
    notes = [
        f"for SGLang {VERSION}; {where if nodes > 1 else 'one node'}",
        f"--context-length {longest:,} leaves room above the mean of {context:,.0f}; raise it for longer requests",
    ]
    if prediction.model.is_moe and int(prediction.deployment.ep) > 1:
        notes.append(
            "decodes only: it needs prefill instances and a router; to prefill here too, drop --disaggregation-mode "
            "and use --deepep-mode auto"
        )
    core, kv = prediction.deployment.precision.core.name, prediction.deployment.precision.kv.name
    if core == "bf16" and kv != "bf16":
        notes.append("an FP8 cache read by a BF16 attention core: check that the attention backend converts on load")
    if not prediction.model.is_moe:
        notes.append("a dense model on attention-DP alone: each GPU is a replica; start the command on each node")
    return tuple(notes)


def _quoted(value: str) -> str:
    """Quote for a shell, but leave its variables to it."""
    return f'"{value}"' if value in _VARIABLES else shlex.quote(value)
