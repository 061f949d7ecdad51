"""How many redundant expert slots a deployment does best with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from moeplan.predict import Prediction
from moeplan.specs.deployment import Deployment, fewest_redundant, most_redundant

MOST_EXTRA = 8  # slots of a rank beyond the fewest


def fastest_redundancy(deployment: Deployment, experts: int, predict: Callable[[Deployment], Prediction]) -> Prediction:
    """The step with the number of redundant slots that is fastest and fits; the fewest where none fits.

    Slots are added to every rank while that makes the step faster: each evens the ranks out less than the one before.
    """
    ep = int(deployment.ep)
    first, most = int(fewest_redundant(experts, ep)), int(most_redundant(experts, ep))
    best = predict(replace(deployment, redundant=first))
    for number in range(first + ep, min(first + MOST_EXTRA * ep, most) + 1, ep):
        other = predict(replace(deployment, redundant=number))
        if not bool(np.all(other.fits)) or float(other.seconds) >= float(best.seconds):
            break
        best = other
    return best
