"""The SGLang command (0.5.23) of a deployment."""

from __future__ import annotations

import math
import shlex

from msgspec import Struct

from moeplan.engines.emit.sglang_faults import KV_DTYPE, sglang_faults
from moeplan.engines.emit.sglang_notes import core_backend, sglang_notes
from moeplan.engines.emit.sglang_online import online_fp8
from moeplan.engines.rules.exchange_backends import Backend, exchange_backends
from moeplan.engines.rules.layout import Layout, check_layout
from moeplan.errors import InputError
from moeplan.memory import dispatch_tokens
from moeplan.predict import Prediction
from moeplan.specs.deployment import Deployment
from moeplan.specs.exchange import exchange

_VARIABLES = ("$NODE_RANK", "$HEAD_ADDRESS:20000")  # the only values that the shell expands
CONTEXT_SLACK = 2  # the context of a step is a mean over requests; the longest request needs more


class LaunchCommand(Struct, frozen=True):
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
    gpus, batch, drafts = int(deployment.gpus), int(deployment.batch), int(deployment.drafts)
    nodes = math.ceil(gpus / cluster.gpus_per_node)
    redundant = int(prediction.slots.redundant) if prediction.slots is not None else 0
    if model.is_moe:
        layout = Layout(
            tp=deployment.tp,
            dp=int(deployment.dp),
            moe_ep=int(deployment.ep),
            moe_tp=deployment.moe_tp,
            redundant=redundant,
            nodes=nodes,
        )
        check_layout(model, layout, "sglang")
    faults = sglang_faults(prediction)
    if faults:
        raise InputError("launch with sglang", faults)
    flags: list[tuple[str, str | None]] = [("--model-path", model.repository)]
    if online_fp8(prediction):
        flags.append(("--quantization", "fp8"))
    flags += _parallel_flags(deployment, nodes, moe=model.is_moe)
    sends = model.is_moe and gpus > 1 and deployment.all_to_all
    asked = exchange_backends().exchanges[deployment.exchange] if sends else None  # one that is missing was refused
    if asked is not None:
        flags += _exchange_flags(asked, nodes)
    if int(deployment.ep) > 1:
        flags += _placement_flags(deployment, redundant)
    switch = prediction.rule.support.schedule_flags[deployment.schedule]  # one that is missing was refused before
    if switch:
        flags.append((switch, None))
    flags += _speculative_flags(drafts)
    core = core_backend(prediction)
    if core is not None:
        flags.append(("--attention-backend", core))
    longest = _context_length(prediction)
    flags += [
        ("--kv-cache-dtype", KV_DTYPE[deployment.precision.kv.name]),
        ("--page-size", str(prediction.rule.page_size)),
        ("--context-length", str(longest)),
        ("--max-running-requests", str(batch * int(deployment.dp) if model.is_moe else batch)),  # a replica's own
        *([("--cuda-graph-max-bs-decode", str(batch))] if _captured(deployment, sends=sends) else []),
        ("--mem-fraction-static", f"{math.floor(float(prediction.memory.static_fraction) * 1000) / 1000:.3f}"),
    ]
    environment = []
    if asked is not None and asked.variable:
        flags.append(("--disaggregation-mode", "decode"))
        environment.append((asked.variable, str(int(dispatch_tokens(deployment, prediction.rule)))))
    return LaunchCommand(tuple(flags), tuple(environment), sglang_notes(prediction, nodes, longest, asked))


def _placement_flags(deployment: Deployment, redundant: int) -> list[tuple[str, str | None]]:
    """Without loads, redundant slots are there to be balanced; SGLang balances only where ranks share the experts."""
    flags: list[tuple[str, str | None]] = []
    if redundant:
        flags.append(("--ep-num-redundant-experts", str(redundant)))
    if deployment.routed.balanced if deployment.routed is not None else redundant:
        flags.append(("--enable-eplb", None))
    return flags


def _exchange_flags(asked: Backend, nodes: int) -> list[tuple[str, str | None]]:
    flags: list[tuple[str, str | None]] = [("--moe-a2a-backend", asked.backend)]
    if asked.mode:
        flags.append(("--deepep-mode", asked.mode))
    if asked.backend == "deepep_v2":  # one node over NVLink, or several
        flags.append(("--deepep-v2-mode", "hybrid" if nodes > 1 else "direct"))
    return flags


def _captured(deployment: Deployment, *, sends: bool) -> bool:
    """Whether decode runs in a CUDA graph: not with an all-to-all that cannot be in one."""
    return not sends or exchange(deployment.exchange).capturable


def _parallel_flags(deployment: Deployment, nodes: int, *, moe: bool) -> list[tuple[str, str | None]]:
    """--tp-size counts all GPUs; since 0.5.23 --dp-size counts replicas, --attn-dp-size attention ranks among them.

    Replicas of a dense model never span nodes: each node starts its own.
    """
    gpus, dp, ep = int(deployment.gpus), int(deployment.dp), int(deployment.ep)
    if not moe and deployment.tp == 1:
        return [("--dp-size", str(math.ceil(gpus / nodes)))] if gpus > nodes else []
    flags: list[tuple[str, str | None]] = [("--tp-size", str(gpus))]
    if dp > 1:
        flags.append(("--attn-dp-size", str(dp)))
    if ep > 1 and moe:
        flags.append(("--ep-size", str(ep)))
    if dp > 1:
        flags += [*([("--moe-dense-tp-size", "1")] if deployment.tp == 1 else []), ("--enable-dp-lm-head", None)]
    if nodes > 1:
        flags += [("--nnodes", str(nodes)), ("--node-rank", "$NODE_RANK"), ("--dist-init-addr", "$HEAD_ADDRESS:20000")]
    return flags


def _speculative_flags(drafts: int) -> list[tuple[str, str | None]]:
    """A chain of drafts from the model's own MTP module."""
    if not drafts:
        return []
    return [
        ("--speculative-algorithm", "EAGLE"),
        ("--speculative-num-steps", str(drafts)),
        ("--speculative-eagle-topk", "1"),
        ("--speculative-num-draft-tokens", str(drafts + 1)),
    ]


def _context_length(prediction: Prediction) -> int:
    longest = int(math.ceil(CONTEXT_SLACK * float(prediction.deployment.context) / 1024) * 1024)
    return min(longest, prediction.model.max_position or longest)


def _quoted(value: str) -> str:
    """Quote for a shell, but leave its variables to it."""
    return f'"{value}"' if value in _VARIABLES else shlex.quote(value)
