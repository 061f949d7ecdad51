"""What a request's cache costs to bring from a prefill instance to the GPUs that decode it."""

from __future__ import annotations

from moeplan.ops.cost import Cost
from moeplan.ops.machine import Machine
from moeplan.ops.point_to_point import point_to_point
from moeplan.predict import Prediction
from moeplan.specs.parameters import kv_bytes, kv_shard_factor


def kv_hand_over(machine: Machine, step: Prediction) -> Cost:
    """Bytes and time for one GPU's share of one request's cache, sent layer by layer over its NICs.

    Every GPU of an attention rank takes its heads; a latent goes whole to each. Layers of prefill that run meanwhile
    hide all but the last one's; the time here is of all, none hidden.
    """
    deployment, model = step.deployment, step.model
    drafts = float(deployment.drafts) > 0
    whole = kv_bytes(model, deployment.context, kv=deployment.precision.kv.name, mtp=drafts)
    share = whole / kv_shard_factor(model.attention, tp=deployment.tp)
    layers = model.layer_count + (model.mtp_layers if drafts else 0)
    return point_to_point("kv_hand_over", machine, bytes_=float(share), inside=False, messages=float(layers))
