"""The entry: a command line or a mapping of flags -> LaunchedLayout, or every fault at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moeplan.engines.rules import EngineName
from moeplan.engines.rules.flags.book import ENGINES, flag_book, known_versions
from moeplan.engines.rules.flags.launched import LaunchedLayout
from moeplan.engines.rules.flags.parsing import Parsed, parse_mapping_of_flags, parse_words
from moeplan.engines.rules.flags.reading import Reading
from moeplan.engines.rules.flags.sglang import read_sglang
from moeplan.engines.rules.flags.trtllm import read_trtllm
from moeplan.engines.rules.flags.values import check_keys
from moeplan.engines.rules.flags.vllm import read_vllm
from moeplan.engines.rules.flags.words import Command, split_command
from moeplan.engines.rules.layout import violations
from moeplan.errors import Fault, InputError, suggestion
from moeplan.specs.catalog import Catalog
from moeplan.specs.model import ModelSpec

_FIELDS = frozenset(LaunchedLayout.__struct_fields__)


def launched(
    command: str | Mapping[str, Any],
    *,
    engine: str | None = None,
    version: str | None = None,
    config: Mapping[str, Any] | None = None,
    model: ModelSpec | None = None,
    gpus: int | None = None,
    catalog: Catalog | None = None,
) -> LaunchedLayout:
    """The layout of a server from its command line, from its flags alone, or from a mapping of flags.

    engine: sglang, vllm or trtllm, where the command does not say; version: the newest known, with a note, where none
    is given; config: the content of the file that --config names (SGLang, vLLM: flags, under those of the command;
    TensorRT-LLM: its keys, over them; a mapping as `command` may hold both); model: checks that heads, experts and
    slots divide; gpus: those that the server is to fill.
    Raises InputError with every fault: unknown flags and values, flags of another version, sizes that contradict.
    """
    catalog = catalog or Catalog.standard()
    split = split_command(command) if isinstance(command, str) else None
    name = _engine(engine, split)
    known = known_versions(catalog, name)
    book = flag_book(catalog, name, version or known[-1])
    others = [flag_book(catalog, name, other) for other in known if other != book.version]
    takes_model = split is not None and (name != "sglang" or split.serve)
    parsed = Parsed(book=book, others=others, takes_model=takes_model)
    if version is None:
        parsed.notes.append(f"version not given: {book.version} is assumed, the newest whose flags are known")
    file = _parse(command, split, config, parsed)
    reading = Reading(parsed=parsed)
    _read(reading, file, model)
    parsed.faults += _whole_faults(reading, model, gpus)
    if parsed.faults:
        raise InputError(f"{book.title} command", tuple(dict.fromkeys(parsed.faults)))
    return _layout(reading, split)


def _engine(given: str | None, split: Command | None) -> EngineName:
    """The engine that is named, by the command or beside it."""
    said = split.engine if split is not None else None
    if given is None and said is None:
        fix = f"name the engine ({', '.join(ENGINES)}), or give the whole command"
        raise InputError("engine", [Fault("engine", "the flags alone do not say which engine", fix)])
    if given is not None and given not in ENGINES:
        raise InputError(
            "engine", [Fault("engine", f"unknown {given!r}", suggestion(given, ENGINES) or ", ".join(ENGINES))]
        )
    if given is not None and said is not None and given != said:
        raise InputError("engine", [Fault("engine", f"is {given}, but the command starts {said}", "leave one out")])
    return next(name for name in ENGINES if name == (said or given))


def _parse(
    command: str | Mapping[str, Any], split: Command | None, config: Mapping[str, Any] | None, parsed: Parsed
) -> Mapping[str, Any]:
    """Parse flags; returns the content of TensorRT-LLM's file."""
    book, file = parsed.book, config or {}
    own = book.keys.get("config", "").split()
    if split is None:
        assert not isinstance(command, str)
        keys = {key: value for key, value in command.items() if book.flag(str(key).lstrip("-")) is None and key in own}
        file = {**keys, **file}
        parse_mapping_of_flags({key: value for key, value in command.items() if key not in keys}, parsed)
    else:
        if around := [word for word in split.around if word.strip()]:
            parsed.notes.append(f"not read, as it is around the server: {' '.join(around)}")
        for name in (name for name, _ in split.environment if name in book.renamed):
            parsed.notes.append(f"{name} does nothing in {book.title}: use {book.renamed[name]}")
        parse_words(split.words, parsed)
    if config is None and parsed.values.get("config") is not None:
        problem = f"names {parsed.values['config']}, whose content was not given"
        parsed.faults.append(Fault("--config", problem, "give what the file holds as config"))
    if book.engine == "trtllm":
        check_keys(file, "config", book, "config", parsed.faults)
    elif file:
        under = Parsed(book=book, others=parsed.others, faults=parsed.faults, notes=parsed.notes)
        parse_mapping_of_flags(file, under)
        parsed.broken |= under.broken - parsed.values.keys()
        parsed.variables |= {key: text for key, text in under.variables.items() if key not in parsed.values}
        parsed.values = {**under.values, **parsed.values}
    return file


def _read(reading: Reading, file: Mapping[str, Any], model: ModelSpec | None) -> None:
    if reading.parsed.book.engine == "sglang":
        read_sglang(reading)
    elif reading.parsed.book.engine == "vllm":
        read_vllm(reading)
    else:
        read_trtllm(reading, file, None if model is None or model.experts is None else model.experts.count)


def _whole_faults(reading: Reading, model: ModelSpec | None, gpus: int | None) -> Iterator[Fault]:
    """What the layout rules say of the model, and whether the server fills the GPUs; nothing where sizes lack."""
    found = reading.fields
    if not {"tp", "dp", "pp", "ep"} <= found.keys():
        return
    layout = LaunchedLayout(engine="sglang", version="", **_known(found))
    if gpus is not None and layout.gpus != gpus:
        sizes = f"tp {layout.tp} × dp {layout.dp}" + f" × cp {layout.cp}" * (layout.cp > 1)
        sizes += f" × pp {layout.pp}" * (layout.pp > 1) + f" × {layout.replicas} replicas" * (layout.replicas > 1)
        fix = "give the GPUs of the whole instance, or other sizes"
        yield Fault("gpus", f"{sizes} is {layout.gpus} GPUs, not {gpus}", fix)
    whole = layout.stage_gpus == layout.ep * layout.moe_tp * layout.moe_dp
    if model is None or (reading.parsed.faults and not whole):
        return
    yield from (
        fault for fault in violations(model, layout.layout, reading.parsed.book.engine) if fault.path != "nodes"
    )


def _known(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name in _FIELDS}


def _layout(reading: Reading, split: Command | None) -> LaunchedLayout:
    parsed, book = reading.parsed, reading.parsed.book
    names = (parsed.values.get(key) for key in ("model-path", "model"))
    return LaunchedLayout(
        engine=book.engine,
        version=book.version,
        model=parsed.model or next((str(name) for name in names if name is not None), None),
        environment=split.environment if split is not None else (),
        notes=tuple(dict.fromkeys(parsed.notes)),
        **_known(reading.fields),
    )
