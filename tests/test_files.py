"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from moeplan.errors import InputError
from moeplan.files import write_whole


def test_a_new_file_and_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    for content in (b"new", b"newer and longer", b""):
        write_whole(path, content)
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["x.yaml"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600
    assert not stat.S_IMODE(path.stat().st_mode) & 0o133


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "none" / "x")
    with pytest.raises(InputError):
        write_whole(dangling, b"x")


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, Path(os.devnull)):
        with pytest.raises(InputError, match="is no regular file"):
            write_whole(path, b"x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_missing_folder_and_a_file_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "none" / "x", tmp_path / "file" / "x"):
        with pytest.raises(InputError, match="cannot be written"):
            write_whole(path, b"x")


@pytest.mark.parametrize("failing", ["write", "replace", "chmod"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stop"])
def test_an_interruption_leaves_the_old_file_and_nothing_else(
    failing: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise error

    if failing == "write":
        original = os.fdopen

        def opened(handle: int, mode: str) -> Any:
            file = original(handle, mode)
            monkeypatch.setattr(file, "write", fail)
            return file

        monkeypatch.setattr(os, "fdopen", opened)
    else:
        monkeypatch.setattr(os, failing, fail)
    expected = InputError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]
