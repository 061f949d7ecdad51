"""How many redundant expert slots a deployment does best with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from moeplan.predict import Prediction
from moeplan.specs.deployment import Deployment

MOST_EXTRA = 8  # slots of a rank beyond the fewest


def fewest_slots(experts: int, ep: int) -> int:
    """Redundant slots that fill every rank."""
    return -experts % ep


def fastest_redundancy(deployment: Deployment, experts: int, predict: Callable[[Deployment], Prediction]) -> Prediction:
    """The step with the number of redundant slots that is fastest and fits; the fewest where none fits.

    Slots are added to every rank while that makes the step faster: each evens the ranks out less than the one before.
    """
    ep = int(deployment.ep)
    first = fewest_slots(experts, ep)
    best = predict(replace(deployment, redundant=first))
    for extra in range(1, MOST_EXTRA + 1 if ep > 1 else 1):
        other = predict(replace(deployment, redundant=first + extra * ep))
        if not bool(np.all(other.fits)) or float(other.seconds) >= float(best.seconds):
            break
        best = other
    return best
