"""The answer of a search for people: the best per GPU and NIC, why, the winner's step, its command, what is missing."""

from __future__ import annotations

from moeplan.explain.alternatives import MOST_CONFIGURATIONS
from moeplan.explain.answer import RANKINGS, Answer, Result, per_watt
from moeplan.explain.attention_cut import CutGain
from moeplan.explain.shares import measured_share, resource_shares
from moeplan.explain.shortfall import Shortfall
from moeplan.predict import Prediction
from moeplan.report.document import launch, price_per_million
from moeplan.report.headline import headline, layout_name, sent_by
from moeplan.report.step_report import print_prediction
from moeplan.report.tables import Console, Table, table
from moeplan.search.best import Found
from moeplan.units import gib

LEAST_GAIN = 0.0005  # of the throughput; less is not worth a line


def print_plan(out: Console, answer: Answer, *, question: str, min_tps: float, front: bool) -> None:
    """The best per GPU and NIC, what is missing, then the overall winner's breakdown and command.

    min_tps: the speed promised, tokens per second per user.
    """
    out.print(question)
    ranked = answer.ranked
    if ranked:
        out.print()
        out.print(table(_PLAN_HEADERS, [_plan_row(result) for result in ranked]))
        out.print(
            "measured: share of the operators' time that rests on kernels measured on that GPU; the rest is scaled"
        )
        out.print("from another GPU or shape, or assumed. batch/rank: requests of a DP rank, one GPU but with TP.")
        unpriced = [result.gpu for result in ranked if RANKINGS[answer.rank_by](_step(result)) is None]
        if unpriced:
            out.print(f"No figure for {answer.rank_by} is known of {', '.join(unpriced)}: ranked last.")
        for result in ranked[1:]:
            _print_refusal(out, result)
    for result in answer.results:
        for reason in result.left_out:
            out.print(f"Left out on {result.label}: {reason}")
        if result.missing is not None:
            out.print()
            print_shortfall(out, result.label, result.missing)
        if result.unsupported is not None:
            out.print()
            out.print(f"{result.label} cannot run it: {result.unsupported}")
    if front:
        for result in answer.results:
            out.print()
            out.print(_front_table(result))
    winner = answer.winner
    if winner is None or winner.found is None:
        return
    tried = sum(result.tried for result in answer.results)
    how = "" if answer.rank_by == "tok/s" else f", ranked by {answer.rank_by}"
    partial = "" if answer.complete else " (interrupted: a part of the space)"
    out.print()
    out.print(
        f"Winner of {tried:,} configurations{partial}{how}: {headline(winner.found.prediction)}"
        f"{f' (cluster {winner.cluster})' if winner.cluster else ''}; {why(winner.found)}."
    )
    out.print(_promise(winner.found.prediction, min_tps))
    _print_alternatives(out, answer, winner.found.prediction)
    if answer.cut is not None:
        out.print(_cut(answer.cut))
    out.print()
    print_prediction(out, winner.found.prediction, heading=False)
    print_launch(out, winner.found.prediction)


def _cut(cut: CutGain) -> str:
    """What another split of attention would give the winner."""
    if cut.gain > LEAST_GAIN:
        return (
            f"Attention cut before {' or '.join(cut.before)} ({cut.schedule}) would give {cut.gain:+.1%}, the best of "
            f"{cut.tried} cuts; no engine's flag asks for that cut."
        )
    return f"Of the {cut.tried} cuts of attention in two ({cut.schedule}) none gives more than the engines' own."


def _promise(step: Prediction, min_tps: float) -> str:
    """How surely the promised speed is kept: a step is likelier longer than predicted than shorter."""
    from moeplan.explain.step_band import step_band

    band = step_band(step)
    slowest = float(step.tokens_per_step) / band.high
    if slowest >= min_tps:
        return f"The promise is kept at p90 of the step, too: {slowest:.1f} tok/s/user."
    safe = min_tps * float(step.tps_per_user) / slowest
    return (
        f"At p90 of the step a user gets {slowest:.1f} tok/s, less than the {min_tps:g} promised: "
        f"to keep that as surely, ask for about --min-tps {safe:.3g}."
    )


def _step(result: Result) -> Prediction:
    assert result.found is not None, "a ranked result has a deployment"
    return result.found.prediction


def _print_refusal(out: Console, result: Result) -> None:
    """Say so where SGLang cannot run what is best on a GPU that did not win; the winner's command says it itself."""
    command = launch(_step(result))
    if command["command"] is None:
        out.print(f"SGLang cannot run the one on {result.label}: {'; '.join(command['reason'])}")


def _print_alternatives(out: Console, answer: Answer, winner: Prediction) -> None:
    """What each choice of the winner is worth, so that a close or an unmeasured one is seen."""
    if answer.alternatives is None:
        if not answer.complete:
            out.print("What its choices are worth is not compared: interrupted.")
            return
        out.print(f"What its choices are worth is not compared in spaces above {MOST_CONFIGURATIONS:,} configurations.")
        return
    if not answer.alternatives:
        return
    rows = [_alternative_row("as above", winner, winner)]
    rows += [_alternative_row(f"with {other.choice}", other.prediction, winner) for other in answer.alternatives]
    out.print()
    out.print(table(_ALTERNATIVE_HEADERS, rows, title="What its choices are worth: the best with another one"))


def _alternative_row(choice: str, step: Prediction | None, winner: Prediction) -> list[str]:
    if step is None:
        return [choice, *["-"] * (len(_ALTERNATIVE_HEADERS) - 2), "nothing feasible"]
    deployment, change = step.deployment, float(step.tps_per_gpu) / float(winner.tps_per_gpu) - 1
    return [
        choice,
        layout_name(deployment),
        sent_by(step),
        f"{int(deployment.gpus)}",
        f"{int(deployment.batch)}",
        f"{int(deployment.drafts)}",
        deployment.precision.kv.name,
        deployment.schedule,
        f"{float(step.tps_per_gpu):,.0f}",
        f"{measured_share(step):.0%}",
        f"{change:+.1%}" if step is not winner else "",
    ]


_ALTERNATIVE_HEADERS = (
    "choice",
    "layout",
    "tokens by",
    "GPUs",
    "batch/rank",
    "MTP",
    "KV",
    "schedule",
    "tok/s/GPU",
    "measured",
    "change",
)
_PLAN_HEADERS = (
    "GPU",
    "NIC or cluster",
    "layout",
    "tokens by",
    "GPUs",
    "batch/rank",
    "MTP",
    "KV",
    "schedule",
    "tok/s/GPU",
    "tok/s/user",
    "TPOT",
    "USD/Mtok",
    "tok/s/W",
    "memory free",
    "measured",
    "binds",
    "SGLang",
)


def _plan_row(result: Result) -> list[str]:
    assert result.found is not None
    step = _step(result)
    price, watt = price_per_million(step), per_watt(step)
    return [
        result.gpu,
        result.cluster or result.nic,
        layout_name(step.deployment),
        sent_by(step),
        f"{int(step.deployment.gpus)}",
        f"{int(step.deployment.batch)}",
        f"{int(step.deployment.drafts)}",
        step.deployment.precision.kv.name,
        step.deployment.schedule,
        f"{float(step.tps_per_gpu):,.0f}",
        f"{float(step.tps_per_user):.1f}",
        f"{float(step.tpot) * 1e3:.1f} ms",
        f"{price:.3f}" if price is not None else "-",
        f"{watt:.2f}" if watt is not None else "-",
        gib(float(step.memory.free)),
        f"{measured_share(step):.0%}",
        result.found.binding,
        "no" if launch(step)["command"] is None else "yes",
    ]


MOST_FRONT_ROWS = 20


def _front_table(result: Result) -> Table:
    """The front, thinned to MOST_FRONT_ROWS from end to end; --json and --chart have all of it."""
    last, rows_shown = len(result.front) - 1, min(len(result.front), MOST_FRONT_ROWS)
    shown = [result.front[index * last // max(rows_shown - 1, 1)] for index in range(rows_shown)]
    redundant = any(point.redundant is not None for point in shown)
    rows = [
        [
            f"{point.tps_per_user:.1f}",
            f"{point.tps_per_gpu:,.0f}",
            point.layout,
            point.exchange if point.count > 1 else "-",
            str(point.count),
            str(point.batch),
            str(point.drafts),
            point.kv,
            point.schedule,
            *([str(point.redundant or 0)] if redundant else []),
        ]
        for point in shown
    ]
    headers = ["tok/s/user", "tok/s/GPU", "layout", "tokens by", "GPUs", "batch/rank", "MTP", "KV", "schedule"]
    headers += ["redundant"] if redundant else []
    return table(headers, rows, title=f"Front of {result.label}: {len(result.front)} deployments")


def why(found: Found) -> str:
    """What stops a larger batch, and what the step spends its time on."""
    reasons = {
        "speed per user": "a larger batch would break the promised speed per user",
        "memory": "a larger batch does not fit in memory",
        "all-to-all limit": "a larger batch is more than the engine's low-latency all-to-all takes",
        "largest batch tried": "the batch is the largest tried (--max-batch)",
        "throughput peaks here": "a larger batch gives no more",
    }
    shares = resource_shares(found.prediction)
    spent = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: -item[1])[:3])
    return f"{reasons[found.binding]}; the step's exposed time goes to {spent}"


def print_launch(out: Console, step: Prediction) -> None:
    """The SGLang command, or why there is none."""
    command = launch(step)
    out.print()
    if command["command"] is None:
        out.print("SGLang cannot run it: " + "; ".join(command["reason"]))
        return
    out.print("Launch command")
    for note in command["notes"]:
        out.print(f"# {note}", raw=True)
    out.print(command["command"], raw=True)


def print_shortfall(out: Console, label: str, missing: Shortfall) -> None:
    """Which constraint failed, by how much, and what would do."""
    in_bytes = missing.unit == "B"
    needed = gib(missing.needed) if in_bytes else f"{missing.needed:g} {missing.unit}"
    available = gib(missing.available) if in_bytes else f"{missing.available:.2f} {missing.unit}"
    by = missing.needed / missing.available - 1 if missing.available else float("inf")
    out.print(f"{label}: nothing feasible. {missing.constraint}: {needed} wanted, {available} there is ({by:+.1%}).")
    if missing.remedies:
        first, *others = (remedy.change for remedy in missing.remedies)
        rest = f"; or {'; or '.join(others)}" if others else ""
        out.print(f"  The smallest change that would do: {first}{rest}")
    else:
        out.print(
            "  No change of context or GPU count alone would do: choose smaller formats or a GPU with more memory."
        )
