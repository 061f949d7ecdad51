"""What binds over the batch, for people and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeplan.explain.batch_article import distinct_target_ranks, gain_of_balancing, gain_of_hiding, target_ranks
from moeplan.explain.four_chains import FourChains, experts_covered
from moeplan.explain.operating_point import (
    ALL_TO_ALL,
    LARGEST,
    MEMORY,
    PROMISE,
    TURNING,
    Budget,
    OperatingPoint,
    Place,
)
from moeplan.predict import Predictor
from moeplan.report.document import Json
from moeplan.report.tables import Console, Table, table
from moeplan.routing.coverage import NO_LIMIT, GroupLimit
from moeplan.specs.deployment import Deployment
from moeplan.specs.exchange import exchange
from moeplan.specs.model import ModelSpec
from moeplan.units import gib

MOST_ROWS = 16


def question_line(predictor: Predictor, deployment: Deployment, schedule: str, min_tps: float) -> str:
    """Model, GPUs, promise."""
    cluster, drafts = predictor.machine.cluster, int(deployment.drafts)
    return (
        f"{predictor.model.name} on {int(deployment.ep)} × {cluster.gpu.name} with {cluster.nic.name}, "
        f"EP{int(deployment.ep)} = DP{int(deployment.ep)}, {drafts} MTP draft{'s' if drafts != 1 else ''}, "
        f"context {float(deployment.context):,.0f} tokens, schedule {schedule}, at least {min_tps:g} tok/s per user"
    )


def print_budget(out: Console, answer: Budget, predictor: Predictor, deployment: Deployment, *, question: str) -> None:
    """The chains over the batch, the limits, the operating point, the host's time, what moves it."""
    out.print(question + ".")
    out.print()
    chains = _shown(answer.chains, answer.point)
    out.print(_weights_table(chains, answer.ridge, predictor.model))
    out.print()
    out.print(_wire_table(chains))
    out.print()
    for line in _notes(answer, predictor, deployment):
        out.print(line)
    out.print()
    out.print(_limits_table(answer))
    out.print()
    for line in _verdict(answer):
        out.print(line)
    out.print()
    out.print(_moves_table(answer))
    for move in answer.moves:
        if move.point is None:
            out.print(f"Not asked: {move.change}: {move.reason}.")


def budget_content(
    answer: Budget, predictor: Predictor, deployment: Deployment, *, schedule: str, min_tps: float
) -> Json:
    """All of it, the chains as columns over the batches asked."""
    chains, cluster, precision = answer.chains, predictor.machine.cluster, deployment.precision
    columns = {name: getattr(chains, name) for name in chains.__struct_fields__}
    hiding = gain_of_hiding(chains.wire_share)
    return {
        "question": {
            "model": predictor.model.name,
            "gpu": cluster.gpu.name,
            "nic": cluster.nic.name,
            "ep": deployment.ep,
            "context": deployment.context,
            "mtp": deployment.drafts,
            "schedule": schedule,
            "min_tok_s_per_user": min_tps,
            "precision": {
                "experts": precision.experts.name,
                "linear": precision.linear.name,
                "attention": precision.core.name,
                "kv": precision.kv.name,
            },
        },
        "ridge_flop_per_byte": answer.ridge,
        "ridge_precision": answer.precision,
        "turning_point_tokens": answer.turning_tokens,
        "turning_point_own_weights": answer.own_turning,
        "turning_tile_rows": answer.turning_tile,
        "host_s_per_operator": {"value": answer.host_launch, "origin": "assumed"},
        "largest_batch_tried": LARGEST,
        **_point_content(answer.point),
        "moves": [
            {"change": move.change, "reason": move.reason or None}
            | (_point_content(move.point) if move.point is not None else {})
            for move in answer.moves
        ],
        "chains": {**columns, "coverage": answer.coverage, "hiding_gains_at_most": hiding},
    }


def _point_content(point: OperatingPoint) -> Json:
    name, times = point.next
    return {
        "limits": {**point.limits, "B_SLA_eager": point.eager_promise},
        "binds": point.binds,
        "next_limit": {"limit": name, "times_as_far": times},
        "operating_point": point.at,
        "best_by_model": point.best,
        "best_origin": str(point.origin) if point.origin is not None else None,
        "best_measured_share": point.measured,
        "fastest_tok_s_per_user": point.fastest,
    }


def _shown(chains: FourChains, point: OperatingPoint) -> FourChains:
    """At most MOST_ROWS batches: powers of two, the ends, and where a limit lies."""
    batch = chains.batch
    if batch.size > MOST_ROWS:
        marks = {batch[0], batch[-1], *(2.0**power for power in range(17))}
        marks |= {float(place.batch) for place in (point.at, point.best) if place is not None}
        marks |= {float(limit) for limit in (point.promise, point.memory)}
        kept = np.isin(batch, list(marks))
        columns = {name: getattr(chains, name)[kept] for name in chains.__struct_fields__}
        return FourChains(**columns)
    return chains


def _weights_table(chains: FourChains, ridge: float, model: ModelSpec) -> Table:
    covered = experts_covered(model, chains.tokens)
    rows = [
        [
            f"{chains.batch[i]:,.0f}",
            f"{chains.tokens[i]:,.0f}",
            f"{covered[i]:.1%}",
            f"{chains.weight_bytes[i] / 1e9:.1f}",
            f"{chains.intensity[i]:,.0f}",
            f"{chains.intensity[i] / ridge:.0%}",
            _number(chains.rows[i], ",.1f"),
            _number(chains.waste[i], ",.1f"),
            _number(chains.skew[i] - 1, "+.0%"),
            str(chains.schedule[i]),
        ]
        for i in range(chains.batch.size)
    ]
    headers = ("batch", "tokens meet", "coverage", "weights GB", "FLOP/B", "of ridge", "rows/expert", "FLOP done/asked")
    title = "Chains 1 and 2, per GPU and step: weights read and their intensity, rows and tiles"
    return table((*headers, "fullest rank", "schedule"), rows, title=title)


def _wire_table(chains: FourChains) -> Table:
    rows = [
        [
            f"{chains.batch[i]:,.0f}",
            f"{chains.wire_bytes[i] / 1e9:.2f}",
            f"{chains.wire_seconds[i] * 1e3:.1f}",
            f"{chains.wire_share[i]:.1%}",
            f"{gain_of_hiding(chains.wire_share[i]):.2f}×",
            gib(float(chains.kv_bytes[i])),
            gib(float(chains.kv_room[i])),
            f"{chains.seconds[i] * 1e3:.1f}",
            f"{chains.eager_seconds[i] * 1e3:.0f}",
            f"{chains.tps_per_user[i]:.1f}",
            f"{chains.tps_per_gpu[i]:,.0f}" + ("" if chains.fits[i] else " (does not fit)"),
        ]
        for i in range(chains.batch.size)
    ]
    headers = ("batch", "all-to-all GB", "busy ms", "exposed", "hiding gains ≤", "KV asked", "KV free", "step ms")
    title = "Chains 3 and 4, per GPU and step: all-to-all, KV cache; and what they come to"
    return table((*headers, "eager ms", "tok/s/user", "tok/s/GPU"), rows, title=title)


def _notes(answer: Budget, predictor: Predictor, deployment: Deployment) -> list[str]:
    """What the columns do not say."""
    gpu, experts, ep = predictor.machine.cluster.gpu, predictor.model.experts, float(deployment.ep)
    lines = [
        f"Ridge {answer.ridge:,.0f} FLOP/B: {answer.precision} peak over bandwidth of {gpu.name}. A tile below "
        f"BM* = {answer.turning_tile:.0f} rows is bound by memory: its pad rows cost FLOP and, until the kernel itself "
        "slows down (the article's from 16 to 24 rows on), next to no time."
    ]
    if experts is not None and ep > 1:
        top_k, count = experts.top_k, experts.count
        limit = GroupLimit(count=experts.n_group, taken=experts.topk_group) if experts.n_group > 1 else NO_LIMIT
        low = exchange(deployment.exchange).mode == "low-latency"
        sent = f"the low-latency kernels send all {top_k} messages" if low else "normal kernels send one to each rank"
        lines.append(
            f"A token's {top_k} experts lie on {distinct_target_ranks(ep, top_k, count, limit):.2f} of {ep:.0f} ranks "
            f"(the article's 1 − (1 − 1/P)^k: {float(target_ranks(ep, top_k)):.2f}); {sent}, and these are the "
            f"bytes counted ({deployment.exchange})."
        )
    best = answer.point.best
    if best is not None and experts is not None and best.batch in answer.chains.batch:
        at = answer.chains.at(best.batch)
        skew, share = float(answer.chains.skew[at]), float(answer.chains.expert_share[at])
        lines.append(
            f"At batch {best.batch} sampling alone fills the fullest rank about {skew - 1:.0%} beyond the mean: no "
            "placement removes that, only batch does. An even load would gain at most "
            f"{gain_of_balancing(share, skew):.2f}× ({share:.0%} of the step balances)."
        )
    return lines


def _limits_table(answer: Budget) -> Table:
    point, tokens = answer.point, answer.turning_tokens
    meanings = {
        TURNING: f"the article's formula, Ridge · W_total · bpp / (2 · N_active) = {tokens:,.0f} tokens of all GPUs "
        "that share the weights: where multiplying takes as long as reading all weights. NOT the best batch",
        PROMISE: "largest batch that keeps the promised speed, by the step's prediction with CUDA graphs",
        MEMORY: "largest batch whose KV cache, buffers and reserve fit",
        ALL_TO_ALL: "the most that the engine's low-latency kernels take from one rank",
    }
    least = point.limits[point.binds]
    rows = [
        [
            name,
            _limit(value),
            f"{value / least:.2f}×" if least else "-",
            "binds" if name == point.binds else "",
            meanings[name],
        ]
        for name, value in sorted(point.limits.items(), key=lambda item: item[1])
    ]
    headers = ("limit", "requests/GPU", "of the least", "binds", "meaning")
    return table(headers, rows, title="Limits on the batch")


def _verdict(answer: Budget) -> list[str]:
    point = answer.point
    name, times = point.next
    lines = []
    if point.at is None or point.best is None:
        lines.append(
            f"No operating point: {point.binds} leaves no batch; one request runs at {point.fastest:.1f} tok/s."
        )
    else:
        lines.append(
            f"Operating point, the smallest: {_place(point.at)}. {point.binds} binds; {name} would be next, "
            f"{times:.1f} times as far."
        )
        if point.best.batch == point.at.batch:
            lines.append("The model's own best batch under promise and memory is the same.")
        else:
            more = point.best.tps_per_gpu / point.at.tps_per_gpu - 1
            lines.append(
                f"The model's own best under promise and memory: {_place(point.best)}: {more:+.0%}. B* is where the "
                "weights' GEMMs turn, not where throughput ends; with the weights that each of these GPUs really "
                "reads, all but the routed experts in full, they turn at "
                f"{_limit(answer.own_turning)} requests per GPU."
            )
    eager = float(answer.chains.eager_seconds.min())
    lines.append(
        f"Without CUDA graphs the host needs {answer.host_launch * 1e6:.0f} µs per operator (assumed: fitted to the "
        f"article's flat 141 to 146 ms of one model): a step takes {eager * 1e3:.0f} ms or more whatever the batch, "
        f"and {_limit(point.eager_promise)} requests per GPU would keep the promise."
    )
    return lines


def _moves_table(answer: Budget) -> Table:
    now = answer.point
    rows = [_move_row("now", now, now)]
    rows += [_move_row(move.change, move.point, now) for move in answer.moves if move.point is not None]
    headers = (
        "knob",
        TURNING,
        PROMISE,
        MEMORY,
        "point",
        "binds",
        "tok/s/GPU",
        "best batch",
        "best tok/s/GPU",
        "change",
        "measured",
    )
    return table(
        headers,
        rows,
        title="What moves it, each answered again; measured: time at the best batch on kernels measured on this GPU",
    )


def _move_row(name: str, point: OperatingPoint, now: OperatingPoint) -> Sequence[str]:
    limits = [_limit(limit) for limit in (point.turning, point.promise, point.memory)]
    if point.at is None or point.best is None:
        return [name, *limits, "none", point.binds, "-", "-", "-", "-", "-"]
    gain = f"{point.best.tps_per_gpu / now.best.tps_per_gpu - 1:+.1%}" if now.best is not None else "-"
    return [
        name,
        *limits,
        str(point.at.batch),
        point.binds,
        f"{point.at.tps_per_gpu:,.0f}",
        str(point.best.batch),
        f"{point.best.tps_per_gpu:,.0f}",
        gain,
        f"{point.measured:.0%}" if point.measured is not None else "-",
    ]


def _place(place: Place) -> str:
    return (
        f"batch {place.batch} per GPU ({place.schedule}, {place.seconds * 1e3:.1f} ms, {place.tps_per_user:.1f} "
        f"tok/s/user, {place.tps_per_gpu:,.0f} tok/s/GPU)"
    )


def _limit(value: float) -> str:
    return f"≥ {LARGEST:,}" if value == LARGEST else f"{value:,.0f}"


def _number(value: float, format_: str) -> str:
    return format(value, format_) if np.isfinite(value) else "-"
