"""Tables and prose on a terminal: aligned, wrapped to its width, copied as they are where asked."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.report.tables import GAP, LEAST_WRAP, LEFT, WRAPS, Console, console, table

WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=0x3BC, exclude_categories=("C", "Z", "M")), max_size=12)


def lines(headers: tuple[str, ...], rows: list[tuple[str, ...]], width: int = 160, title: str = "") -> list[str]:
    return table(headers, rows, title=title).lines(width)


def test_a_table_as_a_whole() -> None:
    found = lines(("GPU", "batch", "tok/s", "binds"), [("H800", "128", "2,725", "memory"), ("H20", "4", "7", "speed")])
    assert found == [
        "GPU   batch  tok/s  binds",
        "H800    128  2,725  memory",
        "H20       4      7  speed",
    ]


def test_words_to_the_left_and_numbers_to_the_right() -> None:
    for header in LEFT:
        assert lines((header, "n"), [("a", "1"), ("b" * 20, "22")])[1].startswith("a ")
    assert lines(("ms", "n"), [("1", "1"), ("1000", "22")])[1] == "   1   1"


def test_no_lines_and_no_trailing_blanks() -> None:
    found = lines(("operator", "ms", "from"), [("a", "1", ""), ("", "", "measured")])
    assert all(line == line.rstrip() for line in found)
    assert not any(mark in line for line in found for mark in "|─│+=")


def test_a_title_has_a_line_of_its_own() -> None:
    found = lines(("use", "share"), [("memory", "1%")], title="What it is")
    assert "What it is" in found[0]
    assert len(found) == 3


def test_a_table_without_rows_is_its_header() -> None:
    assert lines(("GPU", "ms"), []) == ["GPU  ms"]


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        lines(("GPU", "ms"), [("H800",)])


LONG = "DeepGEMM masked grouped FP8 on H800, extrapolated from shapes of DeepSeek-V3"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_column_that_wraps_gives_way(width: int) -> None:
    found = lines(("operator", "ms", "from"), [("routed_gate_up", "1.25", LONG), ("b", "2", "measured")], width)
    assert all(len(line) <= width for line in found)
    start = len("routed_gate_up") + GAP + len("1.25") + GAP
    assert found[0][start:] == "from"
    own = [line[start:].strip() for line in found[1:-1]]
    assert " ".join(own) == LONG
    assert all(not line[:start].strip() for line in found[2:-1])  # the other cells once, in the first line
    assert found[-1] == "b".ljust(14) + "  " + "   2" + "  measured"


def test_it_never_gets_narrower_than_readable() -> None:
    found = lines(("operator", "from"), [("x" * 70, LONG), ("y", LONG)], 80)
    assert max(map(len, found)) <= 70 + GAP + LEAST_WRAP
    assert len(found) > 6


WIDE: list[tuple[str, ...]] = [("H800", "cx7", "2,569", "dep"), ("H20", "cx7", "666", "dep")]
HEADERS = ("GPU", "NIC", "tok/s", "layout")


def test_what_is_alike_in_every_row_is_said_once_where_the_table_is_too_wide() -> None:
    assert len(lines(HEADERS, WIDE, 24)[1]) == 24
    assert lines(HEADERS, WIDE, 21, title="Best") == [
        *lines(("GPU", "tok/s"), [("H800", "2,569"), ("H20", "666")], title="Best"),
        "In every row: NIC",
        "cx7, layout dep",
    ]


def test_the_first_column_and_those_that_differ_stay() -> None:
    same: list[tuple[str, ...]] = [("a" * 30, "1"), ("a" * 30, "2")]
    assert lines(("operator", "ms"), same, 20) == lines(("operator", "ms"), same, 200)


def test_a_single_row_stands_upright_where_it_is_too_wide() -> None:
    assert lines(HEADERS, WIDE[:1], 20) == ["GPU     H800", "NIC     cx7", "tok/s   2,569", "layout  dep"]
    wrapped = lines(("operator", "from"), [("x" * 70, LONG)], 80)[1:]
    assert [line[:10] for line in wrapped] == ["from      ", " " * 10]
    assert " ".join(line[10:] for line in wrapped) == LONG


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=6), st.integers(60, 200))
@settings(max_examples=100, deadline=None)
def test_every_cell_stands_in_its_column(rows: list[tuple[str, ...]], width: int) -> None:
    headers = ("operator", "ms", "share")
    sizes = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    ends = [sizes[0], sizes[0] + GAP + sizes[1], sum(sizes) + 2 * GAP]
    for line, row in zip(lines(headers, rows, width), [headers, *rows], strict=True):
        padded = line.ljust(ends[2])
        assert padded[: ends[0]].rstrip() == row[0].rstrip()
        assert padded[ends[0] + GAP : ends[1]].lstrip() == row[1]
        assert padded[ends[1] + GAP :].lstrip() == row[2]


def test_what_wraps_is_words() -> None:
    assert WRAPS <= LEFT


# --- the console ----------------------------------------------------------------------------------------------------


class Screen:
    """Standard output of a terminal that is `columns` wide."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
        monkeypatch.delenv("COLUMNS", raising=False)


def test_prose_is_wrapped_to_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Screen(monkeypatch, 40)
    console().print(LONG)
    out = capsys.readouterr().out
    assert all(len(line) <= 40 for line in out.splitlines())
    assert " ".join(out.split()) == LONG
    assert "DeepSeek-V3" in out.splitlines()[-1]  # no break at a hyphen


def test_raw_text_is_left_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Screen(monkeypatch, 20)
    command = "python -m sglang.launch_server \\\n  --tp-size 256 --enable-two-batch-overlap"
    console().print(command, raw=True)
    assert capsys.readouterr().out == command + "\n"


def test_into_a_file_there_are_160_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out = Console()
    assert out.width == 160
    out.print(" ".join(["word"] * 60))
    assert max(map(len, capsys.readouterr().out.splitlines())) in range(155, 161)


def test_an_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    console().print()
    console().print("   ")
    assert capsys.readouterr().out.split("\n")[:1] == [""]


def test_a_terminal_that_does_not_tell_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pseudo-terminal without a size says 0 columns (CI, docker -t)."""
    Screen(monkeypatch, 0)
    console().print(LONG)
    console().print(table(("operator", "from"), [("a", LONG)]))
    assert "DeepGEMM" in capsys.readouterr().out


def test_a_terminal_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> os.terminal_size:
        raise OSError(25, "Inappropriate ioctl for device")

    Screen(monkeypatch, 80)
    monkeypatch.setattr(os, "get_terminal_size", refuse)
    console().print(LONG)
    assert capsys.readouterr().out
