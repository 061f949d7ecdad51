"""A command line as one pastes it, taken apart into the engine, the environment and the words that its parser sees."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from msgspec import Struct

from moeplan.engines.rules import EngineName
from moeplan.errors import Fault, InputError

MODULES: dict[str, EngineName] = {
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.launchers.api_server.entry": "vllm",
    "tensorrt_llm.commands.serve": "trtllm",
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_END = re.compile(r"(&&|\|\||[;|&])$|\d*[<>]|&>")
_SILENT = re.compile(r"(env|export|exec|nohup|time|python[\d.]*)$")


class Command(Struct, frozen=True, kw_only=True):
    """The words after the server's name.

    engine: None where only flags were given; serve: started by the engine's own program, not as a Python module;
    around: words that no one reads.
    """

    engine: EngineName | None
    serve: bool
    environment: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    around: tuple[str, ...]


def split_command(text: str) -> Command:
    """Split a command as a shell does: quotes, continued lines, assignments in front, nothing past a pipe or a file.

    Raises InputError for a quote that does not end and for a server that is not one of the three engines.
    """
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    try:
        words = shlex.split(re.sub(r"\\[ \t]*(\n|$)", " ", lines))
    except ValueError as error:
        fault = Fault("command", f"{error}".lower(), 'close the quote, or write \' inside "…"')
        raise InputError("command", [fault]) from error
    engine, start, length = _head(words)
    before, after = words[:start], words[start + length :]
    if engine is None:
        while after and _ASSIGNMENT.match(after[0]):
            before.append(after.pop(0))
    end = next((i for i, word in enumerate(after) if _END.match(word)), len(after))
    environment = tuple(tuple(word.split("=", 1)) for word in before if _ASSIGNMENT.match(word))
    around = [word for word in before if not (_ASSIGNMENT.match(word) or _SILENT.match(PurePosixPath(word).name))]
    return Command(
        engine=engine,
        serve=engine is not None and words[start] != "-m",
        environment=environment,  # type: ignore[arg-type]  # split("=", 1) of a match has two parts
        words=tuple(after[:end]),
        around=(*around, *after[end:]),
    )


def _head(words: list[str]) -> tuple[EngineName | None, int, int]:
    """Which engine the words start, where its name is and how many words that takes; (None, 0, 0) for flags only."""
    for i, word in enumerate(words):
        name, following = PurePosixPath(word).name, words[i + 1] if i + 1 < len(words) else ""
        if word == "-m" and following in MODULES:
            extra = following.startswith("tensorrt_llm") and words[i + 2 : i + 3] == ["serve"]
            return MODULES[following], i, 3 if extra else 2
        if word == "-m" and following.startswith(("dynamo.", "sglang.", "vllm.", "tensorrt_llm.")):
            fix = "give the engine's flags alone and name the engine"
            raise InputError("command", [Fault("command", f"{following} is no server whose flags are known", fix)])
        if name == "trtllm-serve":
            if following in ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve"):
                fix = "give the trtllm-serve command of one instance"
                raise InputError("command", [Fault("command", f"trtllm-serve {following} starts no model", fix)])
            return "trtllm", i, 2 if following == "serve" else 1
        if name in ("sglang", "vllm") and following == "serve":
            return ("sglang" if name == "sglang" else "vllm"), i, 2
    return None, 0, 0
