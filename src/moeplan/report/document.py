"""Results as JSON documents: one document, SI units, a versioned schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from moeplan import __version__
from moeplan.engines.emit.sglang import LaunchCommand, sglang_command
from moeplan.errors import InputError
from moeplan.explain.shares import measured_share
from moeplan.explain.shortfall import Shortfall
from moeplan.explain.step_band import step_band
from moeplan.ops.cost import Cost
from moeplan.predict import GroupTime, Prediction
from moeplan.report.headline import exchange_notes
from moeplan.search.best import Found
from moeplan.specs.cluster import Nic
from moeplan.specs.gpu import Gpu
from moeplan.specs.model import ModelSpec
from moeplan.specs.parameters import kv_bytes_per_token, parameters, weight_bytes

if TYPE_CHECKING:
    from moeplan.explain.placement_gain import PlacementGain

Json = dict[str, Any]


def document(kind: str, content: Mapping[str, Any]) -> Json:
    """Wrap a result: schema moeplan.<kind>/1, the program's version, then the content with plain numbers."""
    return {"schema": f"moeplan.{kind}/1", "version": __version__, **plain(dict(content))}


def plain(value: Any) -> Any:
    """Turn numpy scalars and arrays, tuples and structs into what JSON has; NaN and infinity become null."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value


def prediction_content(prediction: Prediction, *, explain: bool = False) -> Json:
    """Everything about one step."""
    deployment, precision = prediction.deployment, prediction.deployment.precision
    band = step_band(prediction)
    users = band.of_rate(float(prediction.tokens_per_step))
    served = band.of_rate(float(prediction.tps_per_gpu * prediction.seconds))
    content: Json = {
        "model": prediction.model.name,
        "gpu": prediction.cluster.gpu.name,
        "nic": prediction.cluster.nic.name,
        "deployment": {
            "gpus": deployment.gpus,
            "layout": deployment.layout,
            "ep": deployment.ep,
            "dp": deployment.dp,
            "tp": deployment.tp,
            "moe_tp": deployment.moe_tp,
            "exchange": deployment.exchange,
            "batch": deployment.batch,
            "global_batch": deployment.batch * deployment.dp,
            "context": deployment.context,
            "mtp": deployment.drafts,
            "q_len": deployment.q_len,
            "acceptance": {"rates": deployment.acceptance.rates, "source": deployment.acceptance.source},
            "schedule": deployment.schedule,
            "routing": None if prediction.slots is None else deployment.routing,
            "redundant": None if prediction.slots is None else prediction.slots.redundant,
            "precision": {
                "experts": precision.experts.name,
                "linear": precision.linear.name,
                "attention": precision.core.name,
                "kv": precision.kv.name,
            },
        },
        "metrics": {
            "step_s": prediction.seconds,
            "tokens_per_step": prediction.tokens_per_step,
            "tpot_s": prediction.tpot,
            "tok_s_per_user": prediction.tps_per_user,
            "tok_s_per_gpu": prediction.tps_per_gpu,
            "step_s_p10_p90": [band.low, band.high],
            "tok_s_per_user_p10_p90": [users.low, users.high],
            "tok_s_per_gpu_p10_p90": [served.low, served.high],
            "usd_per_million_output_tokens": price_per_million(prediction),
            "origin": str(prediction.origin),
            "measured_share": measured_share(prediction),
        },
        "experts": _experts(prediction),
        "memory": {
            **asdict(prediction.memory),
            "total": prediction.memory.total,
            "free": prediction.memory.free,
            "fits": prediction.fits,
        },
        "layers": [_group(prediction, group, explain=explain) for group in prediction.groups],
        "outside_layers": [_cost(cost, 1, explain=explain) for cost in prediction.outside],
        "mtp_s": prediction.drafting,
        "notes": exchange_notes(prediction),
    }
    return content


def price_per_million(prediction: Prediction) -> float | None:
    """USD per million output tokens, where the GPU's file states a price."""
    price = prediction.cluster.gpu.price
    return None if price is None else price / 3600 / float(prediction.tps_per_gpu) * 1e6


def _experts(prediction: Prediction) -> Json | None:
    if prediction.slots is None or prediction.load is None:
        return None
    slots, load = prediction.slots, prediction.load
    return {
        "slots": slots.total,
        "redundant": slots.redundant,
        "slots_per_full_rank": slots.per_full_rank,
        "full_ranks": slots.full_ranks,
        "rows_per_slot_mean": load.mean_rows_per_slot,
        "rows_fullest_rank": load.rows,
        "active_slots_fullest_rank": load.active,
    }


def placement_content(gain: PlacementGain) -> Json:
    """What placing the experts by their loads is worth to a step."""
    before, after = gain.skews
    return {
        "in_order_s": gain.before.seconds,
        "balanced_s": gain.after.seconds,
        "busiest_over_mean_in_order": before,
        "busiest_over_mean_balanced": after,
        "gain": gain.gain,
        "share": gain.share,
        "gain_by_formula": gain.formula,
    }


def _group(prediction: Prediction, group: GroupTime, *, explain: bool) -> Json:
    copies = group.timeline.micro_batches
    return {
        "count": group.group.count,
        "ffn": group.group.ffn,
        "window": group.group.window,
        "layer_s": group.timeline.seconds,
        "share_of_step": group.seconds / prediction.seconds,
        "micro_batches": copies,
        "formula": group.timeline.formula,
        "stages": [
            {
                "stage": name,
                "busy_s": copies * stage.seconds,
                "exposed_s": group.timeline.exposed[name],
                "operators": [_cost(cost, copies, explain=explain) for cost in stage.costs],
            }
            for name, stage in group.layer.stages.items()
        ],
    }


def _cost(cost: Cost, copies: int, *, explain: bool) -> Json:
    content: Json = {
        "operator": cost.name,
        "seconds": cost.seconds,
        "seconds_per_layer": copies * cost.seconds,
        "bound_by": cost.bound_by,
        "efficiency": cost.efficiency,
        "flops": cost.flops,
        "bytes": cost.bytes_,
        "origin": str(cost.origin),
        "source": cost.source,
        "error": None if cost.error is None else {"median": cost.error.median, "p90": cost.error.p90},
    }
    if explain:
        content["formula"] = cost.formula
        content["terms"] = {key: {"value": value, "unit": unit} for key, (value, unit) in cost.terms.items()}
    return content


def plan_row(found: Found) -> Json:
    """The winner on one GPU and NIC, with its command."""
    content = prediction_content(found.prediction)
    command = launch(found.prediction)
    content["search"] = {"tried": found.tried, "feasible": found.feasible, "binds": found.binding}
    content["launch"] = command
    return content


def launch(prediction: Prediction) -> Json:
    """The SGLang command, or why SGLang cannot run it."""
    try:
        command: LaunchCommand = sglang_command(prediction)
    except InputError as error:
        return {"engine": "sglang", "command": None, "reason": [str(fault) for fault in error.faults]}
    return {
        "engine": "sglang",
        "command": command.text(),
        "flags": {name: value if value is not None else True for name, value in command.flags},
        "environment": dict(command.environment),
        "notes": command.notes,
    }


def shortfall_content(missing: Shortfall) -> Json:
    """What failed, in SI units, and what would do."""
    return {
        "constraint": missing.constraint,
        "unit": missing.unit,
        "needed": missing.needed,
        "available": missing.available,
        "remedies": [{"change": remedy.change, "relative_size": remedy.size} for remedy in missing.remedies],
    }


def gpu_content(gpu: Gpu) -> Json:
    """A GPU's figures with their sources."""
    return {**plain(gpu), "domain": gpu.domain}


def nic_content(nic: Nic) -> Json:
    """A NIC's figures with their sources."""
    content: Json = plain(nic)
    return content


def model_content(model: ModelSpec) -> Json:
    """A model's shape, its three active-parameter conventions, its bytes."""
    count = parameters(model)
    return {
        **plain(model),
        "parameters": {
            "total": count.total,
            "total_with_mtp": count.total_with_mtp,
            "active": count.active,
            "active_without_embedding": count.active_without_embedding,
            "active_without_embedding_and_head": count.active_without_embedding_and_head,
            "routed_experts": count.routed.total,
        },
        "weight_bytes": weight_bytes(model),
        "weight_bytes_with_mtp": weight_bytes(model, mtp=True),
        "kv_bytes_per_token": {"bf16": kv_bytes_per_token(model), "fp8": kv_bytes_per_token(model, kv="fp8")},
    }
