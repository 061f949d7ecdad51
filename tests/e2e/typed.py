"""What a typed command gives, run in this process: the same main(), without the start of an interpreter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moeplan.cli import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str, str]:
    """Exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return stop.value.code, out, err


def document(capsys: pytest.CaptureFixture[str], *words: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """The JSON document; codes: the exit codes that are right."""
    code, out, err = run(capsys, *words, "--json")
    assert code in codes, err
    content: dict[str, Any] = json.loads(out)
    return content
