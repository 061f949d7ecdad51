"""One predicted step for people: totals, every operator, memory, formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeplan.explain.shares import measured_share
from moeplan.kinds import Real
from moeplan.ops.cost import Cost
from moeplan.predict import GroupTime, Prediction
from moeplan.report.headline import exchange_notes, headline, sureness
from moeplan.report.tables import Console, Table, digits, table
from moeplan.units import gib, si

if TYPE_CHECKING:
    from moeplan.explain.placement_gain import PlacementGain


def print_prediction(out: Console, step: Prediction, *, explain: bool = False, heading: bool = True) -> None:
    """Totals, every operator of every kind of layer, memory."""
    if heading:
        out.print(headline(step) + ".")
        out.print(
            f"step {float(step.seconds) * 1e3:.2f} ms   {float(step.tokens_per_step):.2f} tokens a step   "
            f"TPOT {float(step.tpot) * 1e3:.2f} ms   {float(step.tps_per_user):.2f} tok/s/user   "
            f"{float(step.tps_per_gpu):,.1f} tok/s/GPU (output tokens over decode GPUs)   "
            f"measured {measured_share(step):.0%}, least sure: {step.origin}"
        )
    out.print(f"{sureness(step)}.")
    out.print()
    for group in step.groups:
        out.print(_group_table(step, group))
        out.print()
    out.print(_outside_table(step))
    out.print()
    out.print(_memory_table(step))
    if step.slots is not None:
        out.print(_experts_line(step))
    for note in exchange_notes(step):
        out.print(f"Note: {note}.")
    if explain:
        out.print()
        print_formulas(out, step)


def _group_table(step: Prediction, group: GroupTime) -> Table:
    copies = group.timeline.micro_batches
    window = f", window {group.group.window}" if group.group.window else ""
    title = (
        f"{group.group.count} {group.group.ffn} layers{window}: {float(group.timeline.seconds) * 1e6:,.0f} µs each "
        f"({copies} micro-batch{'es' * (copies > 1)}), {float(group.seconds / step.seconds):.1%} of the step; "
        f"{group.timeline.formula}"
    )
    rows = []
    for name, stage in group.layer.stages.items():
        exposed = float(group.timeline.exposed[name])
        busy = float(stage.seconds) * copies
        hidden = "" if exposed >= busy * (1 - 1e-9) else f"{busy - exposed:,.1f}"
        hidden = f"{(busy - exposed) * 1e6:,.1f}" if hidden else ""
        for index, cost in enumerate(stage.costs):
            seconds = float(cost.seconds) * copies
            share = seconds * (exposed / busy if busy else 0.0) / float(group.timeline.seconds)
            rows.append(
                [
                    name if index == 0 else "",
                    cost.name,
                    f"{seconds * 1e6:,.1f}",
                    hidden if index == 0 else "",
                    f"{share:.1%}",
                    cost.bound_by,
                    _percent(cost),
                    _from(cost),
                ]
            )
    return table(
        ("stage", "operator", "µs/layer", "hidden µs", "share", "bound by", "efficiency", "from"), rows, title=title
    )


def _from(cost: Cost) -> str:
    """Where a time comes from; of a fit, the median error on rows that it had not seen."""
    sure = "" if cost.error is None else f" ±{cost.error.median:.0%}"
    return f"{cost.origin}{sure}: {cost.source}"


def _percent(cost: Cost) -> str:
    return "-" if cost.bound_by == "floor" else f"{float(cost.efficiency):.1%}"


def _outside_table(step: Prediction) -> Table:
    rows = [
        [
            cost.name,
            f"{float(cost.seconds) * 1e6:,.1f}",
            f"{float(cost.seconds / step.seconds):.1%}",
            cost.bound_by,
            _percent(cost),
            _from(cost),
        ]
        for cost in step.outside
    ]
    if float(step.drafting):
        share = float(step.drafting / step.seconds)
        rows.append(
            [
                "MTP drafts",
                f"{float(step.drafting) * 1e6:,.1f}",
                f"{share:.1%}",
                "-",
                "-",
                "a layer and a head per draft",
            ]
        )
    return table(("operator", "µs/step", "share", "bound by", "efficiency", "from"), rows, title="Outside the layers")


def _memory_table(step: Prediction) -> Table:
    memory = step.memory
    uses: list[tuple[str, Real]] = [
        ("weights but routed experts", memory.replicated_weights),
        ("routed experts", memory.expert_weights),
        ("KV cache", memory.kv_cache),
        ("all-to-all buffer", memory.all_to_all_buffer),
        ("reserve (activations, graphs)", memory.reserve),
        ("free" if float(memory.free) >= 0 else "MISSING", abs(float(memory.free))),
    ]
    rows = [[name, gib(float(size)), f"{float(size) / memory.capacity:.1%}"] for name, size in uses]
    return table(("use", "GiB", "share"), rows, title=f"Memory per GPU of {gib(memory.capacity)}")


def _experts_line(step: Prediction) -> str:
    slots, load = step.slots, step.load
    assert slots is not None
    assert load is not None
    full = int(slots.full_ranks)
    which = "every rank is full" if full == int(slots.ep) else f"ranks 0..{full - 1} are full, the others hold one less"
    return (
        f"Experts: {int(slots.total)} slots ({int(slots.redundant)} redundant), {int(slots.per_full_rank)} per rank "
        f"({which}); {float(load.mean_rows_per_slot):.1f} rows per slot on average in a micro-batch, "
        f"{float(load.rows):.0f} rows on the fullest rank over {float(load.active):.1f} active slots. "
        f"Routing: {step.deployment.routing}"
    )


def print_hand_over(out: Console, cost: Cost) -> None:
    """A request's cache on its way from a prefill instance."""
    out.print(
        f"KV hand-over from a prefill instance: {gib(float(cost.bytes_))} per request and GPU, "
        f"{float(cost.seconds) * 1e3:.1f} ms over its NIC, nothing hidden ({cost.origin}: {cost.source})"
    )


def print_placement(out: Console, found: PlacementGain) -> None:
    """What placing the experts by their loads is worth, whichever way they lie."""
    before, after = found.skews
    out.print(
        f"Balancing: experts in order {float(found.before.seconds) * 1e3:.2f} ms (busiest rank {before:.2f} × the "
        f"mean), balanced {float(found.after.seconds) * 1e3:.2f} ms ({after:.2f} ×): {found.gain:.2f} × by the step; "
        f"{found.formula:.2f} × by the formula, f = {found.share:.2f}"
    )


def print_formulas(out: Console, step: Prediction) -> None:
    """Each formula with its numbers, for one micro-batch."""
    for group in step.groups:
        out.print(f"Formulas of the {group.group.ffn} layers (one micro-batch)")
        for stage in group.layer.stages.values():
            for cost in stage.costs:
                print_formula(out, cost)
    out.print("Formulas outside the layers")
    for cost in step.outside:
        print_formula(out, cost)


def print_formula(out: Console, cost: Cost) -> None:
    """One operator: its formula, its numbers, its time."""
    terms = ", ".join(f"{name} = {_term(value, unit)}" for name, (value, unit) in cost.terms.items())
    out.print(f"  {cost.name} = {cost.formula} = {float(cost.seconds) * 1e6:,.2f} µs", raw=True)
    out.print(f"      {terms}", raw=True)


def _term(value: Real, unit: str) -> str:
    number = float(value)
    if unit in ("B", "B/s", "FLOP", "FLOP/s", "op", "op/s", "s"):
        return si(number, unit)
    return f"{digits(number)} {unit}".rstrip()
