"""A schedule's layer time in letters, read off its segments."""

from __future__ import annotations

from moeplan.schedules.segments import Amounts, Period, Segment
from moeplan.specs.schedule import TaskStage

LETTERS: dict[TaskStage, str] = {
    "attention_front": "A0",
    "attention_back": "A1",
    "shared": "S",
    "routed": "E",
    "routed_up": "E1",
    "routed_down": "E2",
    "dispatch": "D",
    "combine": "C",
}


def formula(steady: Period, *, slowed: bool) -> str:
    """Such as «A0 + A1 + max(D, S) + E + C»; [x ∥ y]: side by side, as far as they need not wait for each other.

    slowed: with s, the share of the SMs that the network takes from what runs beside it.
    """
    if not steady.segments:
        return "a steady layer of the program"
    batches = steady.schedule.micro_batches
    same = batches if all(segment.count % batches == 0 for segment in steady.segments) else 1
    text = " + ".join(_term(segment, segment.count // same, slowed=slowed) for segment in steady.segments)
    return f"{same}·[{text}]" if same > 1 else text


def _term(segment: Segment, count: int, *, slowed: bool) -> str:
    compute, network = _sum(segment.compute), _sum(segment.network)
    if not (compute and network):
        text = compute or network
        return f"{count}·({text})" if count > 1 else text
    if segment.pair:
        text = f"max({network}, {compute}{f' + s·{network}' if slowed else ''})"
    else:
        text = f"[{network} ∥ {compute}]"
    return f"{count}·{text}" if count > 1 else text


def _sum(amounts: Amounts) -> str:
    terms = [f"{amount:g}·{LETTERS[stage]}" if amount != 1.0 else LETTERS[stage] for stage, amount in amounts]
    return " + ".join(sorted(terms, key=lambda term: term.rpartition("·")[2]))
