"""How popular experts are: the probability that one token goes to each, Σ = top_k."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.errors import Fault, InputError, suggestion
from moeplan.kinds import Array

SPREAD = 200.0  # most over least popular of power_law: 2 / 0.01, the loads that benchmark tools draw for few tokens
LAWS = ("uniform", "zipf", "power_law")


class Popularity(Struct, frozen=True, kw_only=True, eq=False):
    """Probability p_e that one token goes to expert e: (experts,), each in [0, 1], Σ p_e = top_k exactly.

    clipped: experts whose weight asked for more than every token; they stand at 1, and what is over went to the others
    in proportion. labelled: the index names a real expert; in a law by formula it is only the order of heat.
    """

    name: str
    top_k: int
    probability: Array
    clipped: int = 0
    labelled: bool = False

    @property
    def experts(self) -> int:
        """How many experts there are."""
        return len(self.probability)

    @property
    def is_uniform(self) -> bool:
        """Whether all experts are alike."""
        return bool(np.ptp(self.probability) == 0.0)

    @property
    def variation(self) -> float:
        """Standard deviation over the mean, CV_e of the batch article (EPLB)."""
        return float(self.probability.std() / self.probability.mean())

    @property
    def note(self) -> str:
        """What was done to the weights, or an empty string."""
        if not self.clipped:
            return ""
        noun = "expert" if self.clipped == 1 else "experts"
        return f"{self.clipped} {noun} hotter than a row per token: held at every token, the rest shared in proportion"

    def shuffled(self, seed: int = 0) -> Popularity:
        """The same heat on other experts, by a fixed permutation."""
        order = np.random.default_rng(seed).permutation(self.experts)
        return replace(self, name=f"{self.name}, shuffled", probability=self.probability[order])


def uniform(*, experts: int, top_k: int) -> Popularity:
    """p_e = k/E."""
    return _of_weights("uniform", np.ones(max(experts, 0)), experts=experts, top_k=top_k)


def zipf(exponent: float, *, experts: int, top_k: int) -> Popularity:
    """Weights i^−s for the i-th hottest expert."""
    _check_exponent("zipf", exponent)
    return _of_weights(f"zipf:{exponent:g}", _powers(experts, exponent), experts=experts, top_k=top_k)


def power_law(exponent: float, *, experts: int, top_k: int, spread: float = SPREAD) -> Popularity:
    """Weights whose density falls as x^−a between 1 and `spread`, at the mid-quantiles (i − ½)/E, hottest first.

    Benchmark tools draw loads of this law at random, with spread 0.8 · tokens, or 200 when tokens · top_k ≤ experts.
    """
    _check_exponent("power_law", exponent)
    if not (math.isfinite(spread) and spread >= 1):
        raise InputError("popularity", [Fault("power_law", f"spread {spread:g}", "give a number from 1 up")])
    name = f"power_law:{exponent:g}" + (f":{spread:g}" if spread != SPREAD else "")
    quantile = 1.0 - (np.arange(max(experts, 0)) + 0.5) / max(experts, 1)
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        weights = spread**quantile
    else:
        weights = (1.0 + quantile * np.expm1(power * math.log(spread))) ** (1.0 / power)
    return _of_weights(name, weights, experts=experts, top_k=top_k)


def weighted(weights: Sequence[float] | Array, *, experts: int, top_k: int, name: str = "given") -> Popularity:
    """Probabilities in proportion to weights of any scale, or to the counts of a recorded load, one per expert.

    Raises InputError with every fault: wrong length, NaN, negatives, fewer than top_k above zero, top_k above experts.
    """
    try:
        values = np.asarray(weights, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError("popularity", [Fault(name, "holds something that is no number", "give numbers")]) from error
    return replace(_of_weights(name, values, experts=experts, top_k=top_k), labelled=True)


def recorded(counts: Sequence[float] | Array, *, experts: int, top_k: int, name: str = "recorded") -> Popularity:
    """Probabilities of a recorded load: top_k · count / Σ counts."""
    return weighted(counts, experts=experts, top_k=top_k, name=name)


def popularity(law: str | Sequence[float] | Array, *, experts: int, top_k: int) -> Popularity:
    """Read «uniform», «zipf:1.2», «power_law:1.2», «power_law:1.2:800» (its spread), or weights, one per expert.

    Raises InputError with every fault.
    """
    if not isinstance(law, str):
        return weighted(law, experts=experts, top_k=top_k)
    name, *figures = law.strip().lower().split(":")
    name = name.replace("-", "_")
    wanted = {"uniform": (0, 0), "zipf": (1, 1), "power_law": (1, 2)}
    if name not in wanted:
        raise InputError("popularity", [Fault("popularity", f"unknown law {law!r}", suggestion(name, LAWS) or _FORMS)])
    least, most = wanted[name]
    if not least <= len(figures) <= most or not all(_is_number(figure) for figure in figures):
        raise InputError("popularity", [Fault("popularity", f"cannot read {law!r}", _FORMS)])
    numbers = [float(figure) for figure in figures]
    if name == "uniform":
        return uniform(experts=experts, top_k=top_k)
    if name == "zipf":
        return zipf(numbers[0], experts=experts, top_k=top_k)
    return power_law(numbers[0], experts=experts, top_k=top_k, spread=numbers[1] if numbers[1:] else SPREAD)


_FORMS = "write uniform, zipf:1.2, power_law:1.2 or one weight per expert"


def _of_weights(name: str, weights: Array, *, experts: int, top_k: int) -> Popularity:
    faults = [*_size_faults(experts, top_k), *_weight_faults(name, weights, experts, top_k)]
    if faults:
        raise InputError("popularity", faults)
    probability, clipped = _shared_out(weights, top_k)
    return Popularity(name=name, top_k=top_k, probability=probability, clipped=clipped)


def _shared_out(weights: Array, top_k: int) -> tuple[Array, int]:
    """p_e = min(1, c·w_e) with the one c that makes Σ p_e = top_k; and how many were cut to 1."""
    scaled = weights / weights.max()
    descending = np.sort(scaled)[::-1]
    rest = np.cumsum(descending[::-1])[::-1]  # of the i-th hottest and all colder
    left = top_k - np.arange(top_k)
    # The first i for which the hottest of the rest asks for no more than all tokens, were the i hotter ones at 1.
    fits = left * descending[:top_k] <= rest[:top_k] * (1.0 + 1e-12)
    clipped = int(np.argmax(fits))  # the last always fits
    share = np.minimum(scaled, rest[clipped]) / rest[clipped]  # at most 1: the rest may be as small as a float can be
    return np.minimum(share * (top_k - clipped), 1.0), clipped


def _size_faults(experts: int, top_k: int) -> list[Fault]:
    if experts < 1:
        return [Fault("experts", f"is {experts}", "give at least 1")]
    if not 1 <= top_k <= experts:
        return [Fault("top_k", f"is {top_k} of {experts} experts", "1 ≤ top_k ≤ experts")]
    return []


def _weight_faults(name: str, weights: Array, experts: int, top_k: int) -> list[Fault]:
    if weights.ndim != 1:
        return [Fault(name, f"has {weights.ndim} axes", "give one weight per expert")]
    faults = []
    if len(weights) != experts:
        faults.append(Fault(name, f"has {len(weights)} weights for {experts} experts", "give one weight per expert"))
    unreal, negative = ~np.isfinite(weights), weights < 0
    for bad, what in ((unreal, "not finite"), (negative & ~unreal, "negative")):
        if bad.any():
            first = int(np.argmax(bad))
            faults.append(Fault(f"{name}[{first}]", f"is {weights[first]:g}; {bad.sum()} are {what}", "give 0 or more"))
    positive = int(np.count_nonzero(weights > 0))
    if not positive:
        faults.append(Fault(name, "no weight is above zero", "give some expert a weight"))
    elif 1 <= top_k <= experts and positive < top_k and not faults:
        fix = f"a token needs {top_k} different experts"
        faults.append(Fault(name, f"only {positive} weights are above zero", fix))
    elif not faults and np.count_nonzero(weights / weights.max()) < top_k:
        faults.append(Fault(name, "the weights span more than a float holds", f"bring the {top_k} largest closer"))
    return faults


def _powers(experts: int, exponent: float) -> Array:
    result: Array = np.arange(1, max(experts, 0) + 1, dtype=float) ** -exponent
    return result


def _check_exponent(law: str, exponent: float) -> None:
    if not (math.isfinite(exponent) and 0 <= exponent <= 20):
        raise InputError("popularity", [Fault(law, f"exponent {exponent:g}", "give a number from 0 to 20")])


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
