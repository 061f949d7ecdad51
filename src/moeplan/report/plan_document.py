"""The answer of a search as a JSON document."""

from __future__ import annotations

from moeplan.explain.answer import Answer, per_dollar, per_watt
from moeplan.report.document import Json, plan_row, shortfall_content


def plan_content(answer: Answer, model: str, context: float, min_tps: float) -> Json:
    """The best per GPU and NIC in the order asked, the index of the winner, what is missing, the fronts."""
    feasible = [result for result in answer.results if result.found is not None]
    best = []
    for result in feasible:
        assert result.found is not None
        step = result.found.prediction
        ranks = {"tok_per_usd": per_dollar(step), "tok_per_joule_tdp": per_watt(step)}
        best.append({**plan_row(result.found), "ranking": ranks, "front": result.front})
    missed = [
        {"gpu": result.gpu, "nic": result.nic, **shortfall_content(result.missing)}
        for result in answer.results
        if result.missing is not None
    ]
    return {
        "question": {"model": model, "context": context, "min_tok_s_per_user": min_tps, "rank_by": answer.rank_by},
        "complete": answer.complete,
        "feasible": bool(best),
        "best": best,
        "winner": feasible.index(answer.winner) if answer.winner is not None else None,
        "infeasible": missed,
        "unsupported": [
            {"gpu": result.gpu, "nic": result.nic, "reason": result.unsupported}
            for result in answer.results
            if result.unsupported is not None
        ],
    }
