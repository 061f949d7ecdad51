"""Expert loads by formula, where nothing was recorded: how hot the i-th hottest expert is, dealt at random."""

from __future__ import annotations

import math

import numpy as np

from moeplan.errors import Fault, InputError, suggestion
from moeplan.kinds import Array
from moeplan.routing.expert_loads import ExpertLoads
from moeplan.routing.popularity import power_law, uniform, zipf

LAWS = ("uniform", "zipf", "power_law", "lognormal", "hot")
FORMS = (
    "write uniform, zipf:1.2, power_law:1.2, lognormal:1 (its σ), or hot:4 or hot:4:10 (4 experts, 10 times the rest)"
)
HEAT = 10.0


def law_loads(text: str, *, layers: int, experts: int, seed: int = 0) -> ExpertLoads:
    """Loads of a law; which expert is hot differs from layer to layer, by the seed.

    Raises InputError for an unknown law or figures that it cannot have.
    """
    name, *rest = text.strip().lower().split(":")
    name = name.replace("-", "_")
    if name not in LAWS:
        raise InputError("--load", [Fault("law", f"unknown {text!r}", suggestion(name, LAWS) or FORMS)])
    try:
        figures = [float(one) for one in rest]
    except ValueError:
        figures = [math.nan]
    wanted = {"uniform": (0,), "hot": (1, 2)}.get(name, (1,))
    if len(figures) not in wanted or not all(math.isfinite(one) for one in figures):
        raise InputError("--load", [Fault("law", f"cannot read {text!r}", FORMS)])
    faults = [
        Fault(size, f"is {value}", "give at least 1")
        for size, value in (("layers", layers), ("experts", experts))
        if value < 1
    ]
    if faults:
        raise InputError("--load", faults)
    rng = np.random.default_rng(seed)
    heat = [rng.permutation(_heat(name, figures, experts, rng)) for _ in range(layers)]
    return ExpertLoads(windows=np.stack(heat)[None], layers=tuple(range(layers)), source=f"{text}, seed {seed}")


def _heat(name: str, figures: list[float], experts: int, rng: np.random.Generator) -> Array:
    if name == "uniform":
        return uniform(experts=experts, top_k=1).probability
    if name == "zipf":
        return zipf(figures[0], experts=experts, top_k=1).probability
    if name == "power_law":
        return power_law(figures[0], experts=experts, top_k=1).probability
    if name == "lognormal":
        if not 0 <= figures[0] <= 10:
            raise InputError("--load", [Fault("lognormal", f"σ is {figures[0]:g}", "give 0 to 10")])
        return rng.lognormal(0.0, figures[0], experts)
    count, times = figures[0], figures[1] if figures[1:] else HEAT
    if not (0 <= count <= experts and count.is_integer() and times >= 0):
        raise InputError("--load", [Fault("hot", f"{count:g} of {experts} experts, {times:g} times", FORMS)])
    return np.where(np.arange(experts) < count, times, 1.0)
