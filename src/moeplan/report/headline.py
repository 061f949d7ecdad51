"""One line that says what runs where."""

from __future__ import annotations

from moeplan.predict import Prediction
from moeplan.specs.deployment import LOW_LATENCY, Deployment
from moeplan.specs.exchange import exchange


def layout_of(deployment: Deployment) -> str:
    """The sizes of a layout: «EP144 = DP144», or «dep-ag: attention TP8 × DP4, experts EP32 by all-gather».

    Tokens travel by DeepEP's low-latency all-to-all unless another way is named.
    """
    ep, dp = int(deployment.ep), int(deployment.dp)
    if deployment.tp == 1 and deployment.moe_tp == 1 and deployment.all_to_all:
        return f"EP{ep} = DP{dp}" + (f" by {deployment.exchange}" if deployment.exchange != LOW_LATENCY else "")
    attention = f"attention TP{deployment.tp}" + (f" × DP{dp}" if dp > 1 else "")
    cut = f"TP{deployment.moe_tp}" if deployment.moe_tp > 1 else ""
    experts = " × ".join(part for part in (cut, f"EP{ep}" if ep > 1 or not cut else "") if part)
    return f"{deployment.layout}: {attention}, experts {experts} by {deployment.exchange}"


def layout_name(deployment: Deployment) -> str:
    """The layout, with the GPUs of an attention rank where they are more than one and not all of them."""
    return f"{deployment.layout} tp{deployment.tp}" if deployment.dp > 1 and deployment.tp > 1 else deployment.layout


def sent_by(step: Prediction) -> str:
    """How tokens reach their experts; a dash where nothing is sent."""
    deployment = step.deployment
    return deployment.exchange if step.model.is_moe and int(deployment.gpus) > 1 else "-"


def exchange_notes(step: Prediction) -> list[str]:
    """What a figure of an all-to-all leaves out: launches outside a CUDA graph, a buffer that is assumed."""
    deployment = step.deployment
    if not step.model.is_moe or not deployment.all_to_all or int(deployment.ep) == 1:
        return []
    found, notes = exchange(deployment.exchange), []
    if not found.capturable:
        notes.append(
            f"{found.name} cannot be captured in a CUDA graph: the CPU launches every kernel of the step, "
            "which is not charged, as no published figure separates it; real steps are slower"
        )
    if found.setup_source.startswith("assumed"):
        notes.append(f"the buffer of {found.name} is {found.setup_source}")
    if found.stands_in:
        notes.append(f"for the times of {found.name} stand {found.stands_in}")
    return notes


def sureness(step: Prediction) -> str:
    """The step and its throughput with their p10–p90 bands (docs/layouts.md)."""
    from moeplan.explain.step_band import step_band

    band = step_band(step)
    rates = band.of_rate(float(step.tps_per_gpu * step.seconds))
    return (
        f"p10–p90 of the step {band.low * 1e3:.1f}–{band.high * 1e3:.1f} ms, of the throughput "
        f"{rates.low:,.0f}–{rates.high:,.0f} tok/s/GPU: nearly all published steps ran longer than predicted"
    )


def headline(step: Prediction) -> str:
    """Model, GPUs, EP size, batch, drafts, schedule, context, and the loads of experts where any are given."""
    deployment = step.deployment
    place = "GPU" if deployment.tp == 1 else "DP rank"
    loads = f", loads {deployment.routing}" if deployment.routed is not None else ""
    return (
        f"{step.model.name} on {int(deployment.gpus)} × {step.cluster.gpu.name} with {step.cluster.nic.name}, "
        f"{layout_of(deployment)}, batch {int(deployment.batch)} per {place}, "
        f"{int(deployment.drafts)} MTP draft{'s' if deployment.drafts != 1 else ''}, {deployment.schedule}, "
        f"context {float(deployment.context):,.0f} tokens{loads}"
    )
