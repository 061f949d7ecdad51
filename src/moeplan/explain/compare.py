"""Two steps, or a step and a measured profile, operator by operator: where the difference comes from."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from moeplan.errors import Fault, InputError, suggestion
from moeplan.explain.operators import step_operators
from moeplan.predict import Prediction


class Difference(Struct, frozen=True, kw_only=True):
    """Seconds per step of one operator on both sides, None where a side has none."""

    operator: str
    first: float | None
    second: float | None

    @property
    def seconds(self) -> float:
        """Second less first, absent ones as 0."""
        return (self.second or 0.0) - (self.first or 0.0)


def compare_steps(first: Prediction, second: Prediction) -> list[Difference]:
    """Exposed seconds per step of every operator of either; their differences add up to the steps' difference."""
    left = {item.name: item.exposed for item in step_operators(first)}
    right = {item.name: item.exposed for item in step_operators(second)}
    return _differences(left, right)


def compare_profile(step: Prediction, profile: Mapping[str, float]) -> list[Difference]:
    """Busy seconds per step of the operators that the profile names, predicted and measured.

    Raises InputError naming every operator of the profile that the step does not have.
    """
    predicted = {item.name: item.seconds for item in step_operators(step)}
    faults = [
        Fault(name, "no such operator in this step", suggestion(name, predicted) or f"known: {', '.join(predicted)}")
        for name in profile
        if name not in predicted
    ]
    if faults:
        raise InputError("profile", faults)
    return _differences({name: predicted[name] for name in profile}, profile)


def read_profile(path: Path) -> dict[str, float]:
    """Read a CSV with the columns operator and seconds (per step); rows of one operator add up.

    Raises InputError naming every fault.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header, rows = reader.fieldnames or [], list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(str(path), [Fault(str(path), f"cannot be read: {error}")]) from error
    faults = [
        Fault("header", f"column {name!r} is missing", "write the columns operator,seconds")
        for name in ("operator", "seconds")
        if name not in header
    ]
    result: dict[str, float] = {}
    for number, row in enumerate(rows if not faults else [], 2):
        try:
            seconds = float(row["seconds"])
        except (TypeError, ValueError):
            seconds = math.nan
        if not (row["operator"] and math.isfinite(seconds) and seconds >= 0):
            faults.append(Fault(f"line {number}", f"holds {row['operator']!r}, {row['seconds']!r}", "name, seconds"))
        result[row["operator"]] = result.get(row["operator"], 0.0) + seconds
    if not rows and not faults:
        faults.append(Fault("rows", "there are none", "give at least one operator"))
    if faults:
        raise InputError(str(path), faults)
    return result


def _differences(left: Mapping[str, float], right: Mapping[str, float]) -> list[Difference]:
    names = list(dict.fromkeys([*left, *right]))
    found = [Difference(operator=name, first=left.get(name), second=right.get(name)) for name in names]
    return sorted(found, key=lambda item: -abs(item.seconds))
