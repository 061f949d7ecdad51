"""Why SGLang cannot run a prediction."""

from __future__ import annotations

from moeplan.engines.emit.sglang_online import online_fp8
from moeplan.engines.rules.exchange_backends import exchange_backends
from moeplan.errors import Fault
from moeplan.memory import dispatch_tokens
from moeplan.predict import Prediction, dispatchable
from moeplan.specs.schedule import PLAIN
from moeplan.units import gib

KV_DTYPE = {"bf16": "bf16", "fp8": "fp8_e4m3", "fp8_block": "fp8_e4m3", "nvfp4": "nvfp4"}


def sglang_faults(prediction: Prediction) -> list[Fault]:
    """Everything that stands against a command, but for the layout."""
    faults = _cache_faults(prediction)
    if _sends(prediction):
        faults += _all_to_all_faults(prediction)
    faults += _schedule_faults(prediction)
    if prediction.formats_changed and not online_fp8(prediction):
        fix = "quantise the checkpoint first, or leave its formats"
        faults.append(Fault("precision", "weights are not in the checkpoint's formats", fix))
    if prediction.model.edited:
        fix = "see --set; a longer max_position also needs a rope_scaling of the model's own, which is not written here"
        faults.append(Fault("model", "was edited by hand: no checkpoint has this shape", fix))
    if not bool(prediction.fits):
        faults.append(Fault("memory", f"lacks {gib(-float(prediction.memory.free))} per GPU", "see `moeplan plan`"))
    return faults


def _schedule_faults(prediction: Prediction) -> list[Fault]:
    """Refuse a schedule that no switch gives on this architecture, or that is not written for the model or backend."""
    name, gpu, rule = prediction.deployment.schedule, prediction.cluster.gpu, prediction.rule
    known = [item for item in rule.support.schedule_flags if rule.support.runs_schedule(item, gpu.architecture)]
    if name not in known:
        problem = f"no switch of SGLang {rule.version} gives {name} in decode on {gpu.name} ({gpu.architecture})"
        return [Fault("schedule", problem, f"use {', '.join(known)}")]
    backends, family = exchange_backends(), prediction.model.family
    overlap, asked = backends.overlaps.get(name), backends.exchanges.get(prediction.deployment.exchange)
    if overlap is None:
        return []
    faults = []
    if overlap.families and family not in overlap.families:
        problem = f"{name} is written for {', '.join(overlap.families)} in SGLang {rule.version}, not for {family}"
        faults.append(Fault("schedule", problem, f"use {PLAIN}"))
    if asked is not None and overlap.backends and asked.backend not in overlap.backends:
        problem = f"{name} has no dispatcher of {asked.backend} in SGLang {rule.version}"
        faults.append(Fault("schedule", problem, f"use {PLAIN}"))
    return faults


def _cache_faults(prediction: Prediction) -> list[Fault]:
    """Refuse a cache without a flag, and NVFP4 off Blackwell or on a decode instance (it has no KV transfer)."""
    kv, gpu = prediction.deployment.precision.kv.name, prediction.cluster.gpu
    if kv not in KV_DTYPE:
        return [Fault("kv", f"no {kv} cache in SGLang", f"use {', '.join(KV_DTYPE)}")]
    if kv != "nvfp4":
        return []
    if not prediction.rule.support.holds_fp4_cache(gpu.architecture):
        return [Fault("kv", f"no nvfp4 cache on {gpu.name} ({gpu.architecture}) in SGLang", "use bf16 or fp8")]
    if _sends(prediction):
        return [Fault("kv", "SGLang does not transfer an nvfp4 cache to a decode instance", "use bf16 or fp8")]
    return []


def _sends(prediction: Prediction) -> bool:
    deployment = prediction.deployment
    return prediction.model.is_moe and int(deployment.ep) > 1 and deployment.all_to_all


def _all_to_all_faults(prediction: Prediction) -> list[Fault]:
    """Refuse a dispatch that is too large, and an all-to-all that SGLang, the card or the model does not have."""
    rule, gpu = prediction.rule, prediction.cluster.gpu
    faults, cap = [], int(dispatch_tokens(prediction.deployment, rule))
    if not bool(dispatchable(prediction)):
        problem = f"{cap} tokens per rank, low-latency dispatch takes at most {rule.dispatch_tokens_most}"
        faults.append(Fault("batch", problem, "lower the batch or the drafts"))
    backends, name = exchange_backends(), prediction.deployment.exchange
    instead = ", ".join(backends.exchanges_on(gpu.architecture))
    fix = f"use {instead}" if instead else "take the figures as those of an engine with one"
    asked = backends.exchanges.get(name)
    if asked is None:
        return [*faults, Fault("all_to_all", f"SGLang {rule.version} has no backend for {name}", fix)]
    if asked.backend not in backends.known_on(gpu.architecture):
        problem = f"{asked.backend} is not known to run on {gpu.name} ({gpu.architecture}) in SGLang {rule.version}"
        return [*faults, Fault("all_to_all", problem, fix)]
    return faults + _model_faults(prediction, asked.backend)


def _model_faults(prediction: Prediction, backend: str) -> list[Fault]:
    """Refuse what a backend does not do for a model or a layout."""
    rule, model, faults = prediction.rule, prediction.model, []
    if rule.support.family_runs(backend, model.family) is False or not exchange_backends().takes(backend, model.family):
        problem = f"SGLang {rule.version} has no path through {backend} for {model.family}"
        faults.append(Fault("all_to_all", problem, "use one GPU, or take the figures as those of an engine with one"))
    sizes = rule.support.hidden_sizes.get(backend)
    if sizes is not None and model.hidden not in sizes:
        problem = f"{backend} is not compiled for a hidden size of {model.hidden}"
        faults.append(Fault("hidden", problem, f"it knows {', '.join(map(str, sizes))}"))
    if backend == "flashinfer" and prediction.deployment.tp > 1:
        problem = f"flashinfer wants an attention rank per GPU, tp is {prediction.deployment.tp}"
        faults.append(Fault("tp", problem, "use tp 1"))
    return faults
