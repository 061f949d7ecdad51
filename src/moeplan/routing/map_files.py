"""Expert maps in files: SGLang's --init-expert-location, a dict with physical_to_logical_map [layers][slots]."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from moeplan.errors import Fault, InputError
from moeplan.files import write_whole
from moeplan.routing.expert_map import ExpertMap, Whole

KEY = "physical_to_logical_map"
FIX = f'give SGLang\'s JSON: {{"{KEY}": [[expert of each slot, rank by rank], … a row per layer]}}'


def write_map(path: Path, placed: ExpertMap, *, rows: tuple[int, ...], layers: int) -> None:
    """Write SGLang's file: a row for every layer of the model, the engine's own order where there are no experts.

    rows: the layer of each of the map's rows; layers: of the whole model. SGLang passes on every key: there is one.
    """
    whole = np.tile(np.arange(placed.slots) % placed.experts, (layers, 1))
    whole[list(rows)] = placed.expert
    write_whole(path, (json.dumps({KEY: whole.tolist()}) + "\n").encode())


def read_map(path: Path, *, rows: tuple[int, ...], experts: int, ranks: int) -> ExpertMap:
    """Read it back: the rows of these layers, or all where there are as many.

    Raises InputError for a file that is none, or a map that does not hold these experts on these ranks.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        whole = np.array(content[KEY] if isinstance(content, dict) else content)
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(path), [Fault(str(path), f"cannot be read: {error}", FIX)]) from error
    except (KeyError, ValueError, TypeError) as error:
        problem = f"holds no {KEY}" if isinstance(error, KeyError) else f"holds no table of whole numbers: {error}"
        raise InputError(str(path), [Fault(str(path), problem, FIX)]) from error
    if whole.ndim != 2 or whole.dtype.kind not in "iu":
        what = "whole numbers" if whole.dtype.kind in "iu" else f"{whole.dtype}, no whole numbers,"
        raise InputError(str(path), [Fault(str(path), f"its map holds {what} of the shape {whole.shape}", FIX)])
    picked: Whole = whole.astype(np.int64)
    if len(whole) != len(rows):
        if max(rows) >= len(whole):
            problem = f"has {len(whole)} rows; the loads name layer {max(rows)}"
            raise InputError(str(path), [Fault(str(path), problem, "give a row per layer")])
        picked = picked[list(rows)]
    try:
        return ExpertMap(expert=picked, experts=experts, ranks=ranks)
    except InputError as error:
        raise InputError(str(path), error.faults) from error
