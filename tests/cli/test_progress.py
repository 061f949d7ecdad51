"""Progress on standard error: silent for a second, then at most ten lines a second, and cleared."""

from __future__ import annotations

import re
import sys
import time

import pytest

from moeplan.cli.progress import PATIENCE, SearchProgress

CLEAR = "\r\x1b[K"


class Clock:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


def terminal(monkeypatch: pytest.MonkeyPatch, yes: bool) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: yes)


@pytest.mark.parametrize("yes", [True, False])
def test_a_quick_search_says_nothing(
    yes: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, yes)
    progress = SearchProgress("H800 with cx7")
    for step in range(100):
        clock.now = 1000.0 + PATIENCE * step / 100
        progress(step, 100)
    progress.close()
    assert capsys.readouterr() == ("", "")


def test_a_long_one_is_redrawn_and_cleared(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, True)
    progress = SearchProgress("H800 with cx7")
    clock.now += 2.0
    progress(250_000, 1_000_000)
    assert capsys.readouterr() == ("", f"{CLEAR}H800 with cx7: 250,000 of 1,000,000 (25%), 6 s left")
    clock.now += 1.0
    progress(1_000_000, 1_000_000)
    assert capsys.readouterr().err == f"{CLEAR}H800 with cx7: 1,000,000 of 1,000,000 (100%), 0 s left"
    progress.close()
    assert capsys.readouterr().err == CLEAR


def test_at_most_ten_times_a_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, True)
    progress = SearchProgress("x")
    for step in range(1, 3001):
        clock.now = 1000.0 + step / 1000
        progress(step, 3000)
    drawn = capsys.readouterr().err.count(CLEAR)
    assert 15 <= drawn <= 21


def test_without_a_terminal_there_is_a_line_every_ten_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, False)
    progress = SearchProgress("H20 with cx7")
    for second in range(1, 36):
        clock.now = 1000.0 + second
        progress(second, 70)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "H20 with cx7: 10 of 70 (14%), 60 s left",
        "H20 with cx7: 20 of 70 (29%), 50 s left",
        "H20 with cx7: 30 of 70 (43%), 40 s left",
    ]


def test_nothing_tried_yet(clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(monkeypatch, True)
    progress = SearchProgress("x")
    clock.now += 5
    progress(0, 10)
    assert re.search(r"x: 0 of 10 \(0%\), \d+ s left$", capsys.readouterr().err)


def test_it_says_nothing_on_standard_output(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, True)
    progress = SearchProgress("x")
    clock.now += 100
    progress(1, 2)
    progress.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(CLEAR)
