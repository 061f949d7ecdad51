"""Expert loads from files: .npy, .csv, .json, and the .pt of SGLang's recorder; large ones in pieces."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moeplan.errors import Fault, InputError
from moeplan.kinds import Array
from moeplan.routing.expert_loads import ExpertLoads, folded
from moeplan.routing.torch_file import read_torch

SUFFIXES = (".npy", ".csv", ".json", ".pt")
FORMATS = f"give {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} (SGLang's recorder); docs/balance.md says what is in them"
UNREADABLE = (OSError, UnicodeDecodeError, EOFError, csv.Error, RecursionError)
LONGEST_LINE = 1 << 20  # characters of a log that are looked at together
MOST_LAYERS = 100_000  # a layer's number; a placement has a row for each up to the largest
_BALANCEDNESS = re.compile(r"EPLB step.*?balancedness=([0-9]+\.?[0-9]*)")


def read_loads(paths: Sequence[Path]) -> ExpertLoads:
    """One file of one or many windows, or several of the same shape in the order of time.

    A .npy is mapped, not read; a .csv is read line by line; both are summed over windows where there are many. Raises
    InputError for a file that cannot be read, another shape than the first, and for what `ExpertLoads` refuses.
    """
    records = [path for path in paths if path.suffix.lower() == ".pt"]
    if records and len(records) == len(paths):
        layers, windows = None, iter(_recorded(records))
    else:
        layers = _layers_of(paths)
        windows = (window for path in paths for window in _windows(path))
    found, merged = folded(_alike(windows, paths))
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    numbers = layers if layers is not None else tuple(range(found.shape[1]))
    return ExpertLoads(windows=found, layers=numbers, source=name, merged=merged)


def _layers_of(paths: Sequence[Path]) -> tuple[int, ...] | None:
    """The numbers that the files give their layers, the same in all that give any; None where none does."""
    known: dict[Path, tuple[int, ...]] = {}
    for path in paths:
        reader = {".csv": _csv_layers, ".json": _json_layers}.get(path.suffix.lower())
        found = reader(path) if reader is not None else None
        if found is not None:
            known[path] = found
    if not known:
        return None
    first, layers = next(iter(known.items()))
    other = next((path for path, found in known.items() if found != layers), None)
    if other is not None:
        problem = f"is of the layers {_named(known[other])}, {first} of {_named(layers)}"
        raise InputError(str(other), [Fault(str(other), problem, "give windows of the same layers, in the same order")])
    return layers


def _named(layers: Sequence[object]) -> str:
    return ", ".join(str(layer) for layer in layers[:6]) + (", …" if layers[6:] else "")


def _alike(windows: Iterator[Array], paths: Sequence[Path]) -> Iterator[Array]:
    shape: tuple[int, ...] | None = None
    for number, window in enumerate(windows):
        if shape is not None and window.shape != shape:
            problem = f"window {number} has layers × experts {window.shape}, the first has {shape}"
            raise InputError(str(paths[0]), [Fault("loads", problem, "give windows of one model")])
        shape = window.shape
        yield window


def _windows(path: Path) -> Iterator[Array]:
    """(layers, experts) one after another."""
    reader = {".npy": _npy, ".csv": _csv, ".json": _json, ".pt": _one_recording}.get(path.suffix.lower())
    try:
        if reader is not None:
            yield from reader(path)
            return
        _refuse_log(path)
    except UNREADABLE as error:
        raise _unreadable(path, error) from error
    raise InputError(str(path), [Fault(str(path), "is of no kind known", FORMATS)])


def _unreadable(path: Path, error: Exception) -> InputError:
    problem = f"cannot be read: {getattr(error, 'strerror', None) or error or 'it ends too early'}"
    return InputError(str(path), [Fault(str(path), problem, FORMATS)])


def _stacked(array: Any, path: Path) -> Array:
    """As (windows, layers, experts); raise InputError for what is no such array."""
    fix = "give numbers: windows × layers × experts, layers × experts, or one layer's experts"
    try:
        found = array if isinstance(array, np.ndarray) else np.asarray(_numbers(array), dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(str(path), [Fault(str(path), "is no array of numbers", fix)]) from error
    if found.dtype.kind not in "iuf" or not 1 <= found.ndim <= 3 or not found.size:
        raise InputError(str(path), [Fault(str(path), f"holds {found.dtype} of the shape {found.shape}", fix)])
    return found.reshape((1,) * (3 - found.ndim) + found.shape)


def _numbers(array: Any) -> Any:
    """The lists of a JSON as they are; raise TypeError for text, truth values and dicts, which NumPy would convert."""
    if isinstance(array, list):
        return [_numbers(each) for each in array]
    if array is not None and (isinstance(array, bool) or not isinstance(array, (int, float))):
        raise TypeError(f"{array!r} is no number")
    return array


def _npy(path: Path) -> Iterator[Array]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise InputError(str(path), [Fault(str(path), "is no array of numbers", "np.save one")]) from error
    for window in _stacked(array, path):
        yield np.asarray(window, dtype=float)


def _json(path: Path) -> Iterator[Array]:
    """Lists, {"loads": lists}, SGLang's {"logical_count": lists}, or {layer: {expert: tokens}}."""
    content = _json_content(path)
    if isinstance(content, dict):
        rows = _in_order(content, path, "layer")
        content = [_in_order(row, path, "expert") if isinstance(row, dict) else row for row in rows]
    yield from (np.asarray(window, dtype=float) for window in _stacked(content, path))


def _json_content(path: Path) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(str(path), [Fault(str(path), f"is no JSON: {error}", FORMATS)]) from error
    return content.get("loads", content.get("logical_count", content)) if isinstance(content, dict) else content


def _json_layers(path: Path) -> tuple[int, ...] | None:
    """The numbers that a JSON of {layer: …} names."""
    try:
        content = _json_content(path)
    except UNREADABLE as error:
        raise _unreadable(path, error) from error
    if not isinstance(content, dict):
        return None
    _in_order(content, path, "layer")
    return _whole_layers(sorted(content, key=lambda key: (len(key), key)))


def _in_order(content: dict[str, Any], path: Path, what: str) -> list[Any]:
    """The values by the numbers that are their keys; of experts all from 0, for a list's places stand for them."""
    keys = sorted(content, key=lambda key: (len(key), key))
    good = [
        bool(re.fullmatch("[0-9]+", key)) and (what == "layer" or key == str(place)) for place, key in enumerate(keys)
    ]
    if not all(good):
        fix = 'number layers, and experts from 0: {"0": {"0": tokens, …}, …}; or write {"loads": lists}'
        raise InputError(str(path), [Fault(str(path), f"has the {what} {keys[good.index(False)]!r}", fix)])
    return [content[key] for key in keys]


def _csv(path: Path) -> Iterator[Array]:
    """A row per layer; with a `layer` column, a layer that comes again begins the next window."""
    rows: list[Array] = []
    window: dict[str, Array] = {}
    layers: list[str] | None = None
    for label, values in _csv_rows(path):
        if label is None:
            rows.append(values)
            continue
        if label in window:
            layers = layers or list(window)
            yield _of_layers(window, layers, path)
            window = {}
        window[label] = values
    if not (rows or window):
        raise InputError(str(path), [Fault(str(path), "has no row of loads", "give a row per layer")])
    yield _of_layers(window, layers or list(window), path) if window else np.stack(rows)


def _of_layers(window: dict[str, Array], layers: list[str], path: Path) -> Array:
    """The rows of a window in the order of the first one's layers."""
    if window.keys() != set(layers):
        problem = f"a window has the layers {_named(list(window))}, the first has {_named(layers)}"
        raise InputError(str(path), [Fault("layer", problem, "give every window every layer once")])
    return np.stack([window[layer] for layer in layers])


def _csv_rows(path: Path) -> Iterator[tuple[str | None, Array]]:
    """The layer and the loads of each line; columns e0, e1, …, or no header and nothing but numbers."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(line for line in file if not line.startswith("#"))
        first = next(reader, [])
        names = [cell.strip().lower() for cell in first]
        plain = bool(names) and all(_is_float(cell) for cell in names)
        columns = list(range(len(names))) if plain else _expert_columns(names, path)
        layer = names.index("layer") if not plain and "layer" in names else None
        for number, row in enumerate(_with(first, reader, plain=plain)):
            if not row:
                continue
            try:
                if any(cell.strip() for cell in row[len(names) :]):
                    raise ValueError("more cells than columns")
                values = np.array([float(row[column]) for column in columns])
                yield None if layer is None else row[layer].strip(), values
            except (ValueError, IndexError) as error:
                where = f"row {number + (1 if plain else 2)}"
                fix = f"give as many cells as the first row has, {len(names)}, with numbers for the experts"
                raise InputError(str(path), [Fault(where, f"is not {len(columns)} numbers", fix)]) from error


def _with(first: list[str], reader: Iterator[list[str]], *, plain: bool) -> Iterator[list[str]]:
    if plain:
        yield first
    yield from reader


def _expert_columns(names: list[str], path: Path) -> list[int]:
    columns = [
        (int(match[1]), place) for place, name in enumerate(names) if (match := re.fullmatch(r"e([0-9]+)", name))
    ]
    found = dict(columns)
    lacks = next((expert for expert in range(len(found)) if expert not in found), None)
    if not found or lacks is not None or len(found) < len(columns):
        problem = "has no columns e0, e1, …" if not found else "names an expert twice"
        problem = problem if lacks is None else f"lacks the column e{lacks}"
        raise InputError(str(path), [Fault(str(path), problem, "name one column per expert: e0, e1, …")])
    return [found[expert] for expert in range(len(found))]


def _csv_layers(path: Path) -> tuple[int, ...] | None:
    """The numbers in the `layer` column of the first window."""
    labels: list[str] = []
    try:
        for label, _ in _csv_rows(path):
            if label is None:
                return None
            if label in labels:
                break
            labels.append(label)
    except UNREADABLE as error:
        raise _unreadable(path, error) from error
    try:
        return _whole_layers(labels)
    except InputError as error:
        raise InputError(str(path), error.faults) from error


def _whole_layers(labels: Sequence[str]) -> tuple[int, ...]:
    wrong = next((label for label in labels if not re.fullmatch("[0-9]{1,9}", label) or int(label) > MOST_LAYERS), None)
    if wrong is not None:
        raise InputError("loads", [Fault("layer", f"is {wrong!r}", f"number the layers, up to {MOST_LAYERS}")])
    return tuple(int(label) for label in labels)


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _one_recording(path: Path) -> Iterator[Array]:
    yield from _recorded([path])


def _recorded(paths: Sequence[Path]) -> list[Array]:
    """SGLang's dumps: one per record in the modes «stat», one per rank in «per_pass», whose ranks add up."""
    windows: list[Array] = []
    passes: dict[int, Array] = {}
    for path in paths:
        content = read_torch(path)
        if isinstance(content, dict) and "logical_count" in content:
            windows += [np.asarray(window, dtype=float) for window in _stacked(content["logical_count"], path)]
        elif isinstance(content, dict) and "records" in content:
            for number, count in _of_passes(content, path):
                if (known := next(iter(passes.values()), count)).shape != count.shape:
                    problem = f"has layers × experts {count.shape}, {paths[0]} has {known.shape}"
                    raise InputError(str(path), [Fault(str(path), problem, "give the files of one recording")])
                passes[number] = passes.get(number, 0.0) + count
        else:
            fix = "record with --expert-distribution-recorder-mode stat, or per_pass"
            raise InputError(str(path), [Fault(str(path), "holds no logical_count and no records", fix)])
    windows += [passes[number] for number in sorted(passes)]
    # A buffer longer than the recording ends in steps of nothing.
    return [window for window in windows if np.any(window != 0)] or windows[:1]


def _of_passes(content: dict[str, Any], path: Path) -> Iterator[tuple[int, Array]]:
    """Tokens by expert of every forward pass, from those by slot."""
    fix = "record with --expert-distribution-recorder-mode stat, or per_pass"
    try:
        place = np.asarray(content["last_physical_to_logical_map"], dtype=np.int64)
        if place.ndim != 2 or not place.size or place.min() < 0:
            raise ValueError(f"no map of layers × slots, but {place.shape}")
        for record in content["records"]:
            by_slot = np.asarray(record["global_physical_count"], dtype=float)
            if by_slot.shape != place.shape:
                raise ValueError(f"counts of {by_slot.shape} slots, a map of {place.shape}")
            count = np.zeros((len(place), int(place.max()) + 1))
            np.add.at(count, (np.arange(len(place))[:, None], place), by_slot)
            yield int(record["forward_pass_id"]), count
    except KeyError as error:
        raise InputError(str(path), [Fault(str(path), f"its records hold no {error.args[0]}", fix)]) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(str(path), [Fault(str(path), f"its records cannot be read: {error}", fix)]) from error


def _refuse_log(path: Path) -> None:
    """Say what a log of vLLM tells, which is no loads."""
    found = []
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(LONGEST_LINE):  # whatever it is, of whatever size
            found += [float(one) for one in _BALANCEDNESS.findall(line)]
    if found:
        mean = float(np.mean([one for one in found if one > 0] or [1.0]))
        problem = (
            f"is a log of vLLM: {len(found)} lines of balancedness, in the mean {mean:.3f} "
            f"(max over mean {1 / mean:.3f}), summed over layers; loads per expert are not in it"
        )
        fix = (
            "record loads: with SGLang's recorder, or save expert_load_window of vLLM's EplbState as .npy; "
            "vLLM before August 2026 logged balancedness over the wrong axis"
        )
        raise InputError(str(path), [Fault(str(path), problem, fix)])
