"""What each choice of the winner is worth: the best deployment with another one, everything else chosen anew."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from moeplan.predict import Prediction, Predictor
from moeplan.search.best import Found, best
from moeplan.search.space import Space
from moeplan.specs.deployment import Deployment
from moeplan.specs.spread import spreads

MOST_CONFIGURATIONS = 5_000_000  # in the space; each alternative searches a part of it again


class Alternative(Struct, frozen=True, kw_only=True):
    """choice: what differs from the winner, such as «KV bf16»; prediction: None where nothing feasible has it."""

    choice: str
    prediction: Prediction | None


def alternatives(predictor: Predictor, space: Space, found: Found, *, min_tps: float) -> list[Alternative]:
    """The best of every other KV format, attention core, schedule, layout, all-to-all and number of drafts.

    Raises KeyboardInterrupt when interrupted, as half a comparison would mislead.
    """
    result = []
    for choice, part in _parts(space, found.prediction):
        answer = best(predictor, part, min_tps=min_tps)
        if not answer.complete:
            raise KeyboardInterrupt
        result.append(Alternative(choice=choice, prediction=answer.prediction if isinstance(answer, Found) else None))
    return result


def _parts(space: Space, winner: Prediction) -> Iterator[tuple[str, Space]]:
    """The parts of the space in which one choice differs from the winner's."""
    chosen = winner.deployment
    for kv in dict.fromkeys(precision.kv.name for precision in space.precisions):
        if kv != chosen.precision.kv.name:
            having = tuple(precision for precision in space.precisions if precision.kv.name == kv)
            yield f"KV {kv}", replace(space, precisions=having)
    for core in dict.fromkeys(precision.core.name for precision in space.precisions):
        if core != chosen.precision.core.name:
            having = tuple(precision for precision in space.precisions if precision.core.name == core)
            yield f"attention {core}", replace(space, precisions=having)
    for schedule in space.schedules:
        if schedule != chosen.schedule and space.holds(schedule):
            yield schedule, replace(space, schedules=(schedule,))
    if space.model is not None:
        yield from _ways(space, chosen)
    yield from _placements(space, winner)
    for drafts in space.drafts:
        if drafts != int(chosen.drafts):
            yield f"{drafts} MTP draft{'s' if drafts != 1 else ''}", replace(space, drafts=(drafts,))


def _placements(space: Space, winner: Prediction) -> Iterator[tuple[str, Space]]:
    """Experts in order instead of balanced, and the other numbers of redundant slots."""
    if space.routed is None or not space.routed.balanced or winner.slots is None:
        return
    yield "experts in order", replace(space, routed=space.routed.placed(balanced=False), extras=(0,))
    chosen = int(winner.slots.redundant) // int(winner.slots.ep)  # what fills the ranks is less than one on each
    for extra in space.extras if space.redundant is None else ():
        if extra != chosen:
            name = f"{extra} more expert slot{'s' * (extra > 1)} a rank" if extra else "no more expert slots"
            yield name, replace(space, extras=(extra,))


def _ways(space: Space, chosen: Deployment) -> Iterator[tuple[str, Space]]:
    """Other layouts, and in the layout dep other all-to-alls where there are several."""
    for layout in space.layouts:
        part = _of_layout(space, layout)
        if layout != chosen.layout and part is not None:
            yield layout, part
    sent = dict.fromkeys(
        spread.exchange
        for spread in space.spreads
        if spread.layout == "dep" and any(space.counts_for(name, spread).size for name in space.schedules)
    )
    for name in sent if len(sent) > 1 else ():
        if name != chosen.exchange:
            yield name, replace(space, layouts=("dep",), reach={name: space.reach[name]})


def _of_layout(space: Space, layout: str) -> Space | None:
    """The part of one layout; None where the model allows it at none of the sizes."""
    assert space.model is not None, "layouts are of a model"
    if not spreads(space.model, space.counts, (layout,), space.tps, space.reach):
        return None
    schedules = tuple(name for name in space.schedules if name == "naive" or layout == "dep") or ("naive",)
    return replace(space, layouts=(layout,), schedules=schedules)
