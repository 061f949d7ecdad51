"""The answer of a search as a JSON document."""

from __future__ import annotations

from moeplan.explain.alternatives import Alternative
from moeplan.explain.answer import Answer, per_dollar, per_watt
from moeplan.explain.attention_cut import CutGain
from moeplan.explain.shares import measured_share
from moeplan.report.document import Json, plan_row, shortfall_content


def _alternative(other: Alternative) -> Json:
    step = other.prediction
    if step is None:
        return {"choice": other.choice, "feasible": False}
    deployment = step.deployment
    return {
        "choice": other.choice,
        "feasible": True,
        "gpus": int(deployment.gpus),
        "layout": deployment.layout,
        "exchange": deployment.exchange,
        "batch": int(deployment.batch),
        "mtp": int(deployment.drafts),
        "kv": deployment.precision.kv.name,
        "attention": deployment.precision.core.name,
        "schedule": deployment.schedule,
        "tok_s_per_gpu": float(step.tps_per_gpu),
        "tok_s_per_user": float(step.tps_per_user),
        "measured_share": measured_share(step),
    }


def _cut(cut: CutGain) -> Json:
    """What another cut of the winner's attention would give."""
    return {
        "schedule": cut.schedule,
        "before": list(cut.before),
        "gain": cut.gain,
        "tried": cut.tried,
        "tok_s_per_gpu": float(cut.prediction.tps_per_gpu),
    }


def plan_content(answer: Answer, model: str, context: float, min_tps: float) -> Json:
    """The best per GPU and NIC in the order asked, the index of the winner, what is missing, the fronts."""
    feasible = [result for result in answer.results if result.found is not None]
    best = []
    for result in feasible:
        assert result.found is not None
        step = result.found.prediction
        ranks = {"tok_per_usd": per_dollar(step), "tok_per_joule_tdp": per_watt(step)}
        best.append({**plan_row(result.found), "cluster": result.cluster, "ranking": ranks, "front": result.front})
    missed = [
        {"gpu": result.gpu, "nic": result.nic, "cluster": result.cluster, **shortfall_content(result.missing)}
        for result in answer.results
        if result.missing is not None
    ]
    return {
        "question": {"model": model, "context": context, "min_tok_s_per_user": min_tps, "rank_by": answer.rank_by},
        "complete": answer.complete,
        "feasible": bool(best),
        "best": best,
        "winner": feasible.index(answer.winner) if answer.winner is not None else None,
        "alternatives": [_alternative(other) for other in answer.alternatives or ()],
        "alternatives_compared": answer.alternatives is not None,
        "attention_cut": _cut(answer.cut) if answer.cut is not None else None,
        "infeasible": missed,
        "left_out": [
            {"gpu": result.gpu, "nic": result.nic, "cluster": result.cluster, "reason": reason}
            for result in answer.results
            for reason in result.left_out
        ],
        "unsupported": [
            {"gpu": result.gpu, "nic": result.nic, "cluster": result.cluster, "reason": result.unsupported}
            for result in answer.results
            if result.unsupported is not None
        ],
    }
