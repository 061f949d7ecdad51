"""Writing a file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from moeplan.errors import Fault, InputError


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the target and rename, so that an interruption leaves the old file or the new one.

    Raises InputError when the folder is missing or cannot be written, or the target is no regular file: a rename would
    replace a device such as /dev/null by a file.
    """
    path = Path(os.path.realpath(path))  # a link stays, its target is replaced
    if os.path.lexists(path) and not os.path.isfile(path):
        raise InputError(str(path), [Fault(str(path), "is no regular file", "give the name of a file")])
    import tempfile

    try:
        handle, temporary = tempfile.mkstemp(dir=path.resolve().parent, prefix=".moeplan-")
    except OSError as error:
        raise InputError(str(path), [Fault(str(path), f"cannot be written: {error.strerror}")]) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(str(path), [Fault(str(path), f"cannot be written: {error.strerror}")]) from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
