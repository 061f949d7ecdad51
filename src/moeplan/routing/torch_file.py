"""Tensors out of a .pt file without torch: a zip with a pickle, of which nothing but tensors and containers is taken.

The layout is that of torch.save since 1.6: NAME/data.pkl refers to NAME/data/0, 1, … by storage type, key and length.
"""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError

CONVERT = (
    "convert it where torch is: import torch, numpy; d = torch.load('x.pt', weights_only=True); "
    "numpy.save('x.npy', d['logical_count'].cpu().numpy())"
)
_STORAGES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "u2",  # widened below: numpy has no such type
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "u1",
}


class _Refused(Exception):
    """The pickle asks for something that is no tensor."""


def read_torch(path: Path) -> Any:
    """Containers, numbers, text and numpy arrays of a .pt file.

    Raises InputError for an unreadable file, one of the format before torch 1.6, or one that would run code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise _Refused("it holds no data.pkl")
            folder = pickles[0].removesuffix("data.pkl")
            big = folder + "byteorder" in archive.namelist() and archive.read(folder + "byteorder") == b"big"
            return _Reader(archive, folder, ">" if big else "<").load()
    except (
        _Refused,
        pickle.UnpicklingError,
        KeyError,
        ValueError,
        TypeError,
        EOFError,
        IndexError,
        AttributeError,
    ) as error:
        raise InputError(str(path), [Fault(str(path), f"cannot be read: {error}", CONVERT)]) from error
    except zipfile.BadZipFile as error:
        problem = "is no zip of torch.save (before torch 1.6 it wrote another format)"
        raise InputError(str(path), [Fault(str(path), problem, CONVERT)]) from error
    except OSError as error:
        raise InputError(str(path), [Fault(str(path), f"cannot be read: {error.strerror}")]) from error


class _Storage:
    """The type of a storage; calling the class is what a pickle cannot do with it."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class _Reader(pickle.Unpickler):
    """Builds tensors and ordered dicts; every other global is refused before it is looked up."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, order: str) -> None:
        super().__init__(io.BytesIO(archive.read(folder + "data.pkl")))
        self._archive, self._folder, self._order = archive, folder, order

    def find_class(self, module: str, name: str) -> Any:
        """The few things that a dump of tensors needs."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and name in _STORAGES:
            return _Storage(name)
        raise _Refused(f"it asks for {module}.{name}, which is no tensor")

    def persistent_load(self, pid: Any) -> NDArray[Any]:
        """A storage as a flat array, whatever device it was on."""
        kind, storage, key, _device, length = pid
        if kind != "storage" or not isinstance(storage, _Storage) or not str(key).isalnum():
            raise _Refused(f"it refers to {kind!r}")
        content = self._archive.read(f"{self._folder}data/{key}")
        flat = np.frombuffer(content, dtype=self._order + _STORAGES[storage.dtype])
        if len(flat) != length:
            raise _Refused(f"storage {key} holds {len(flat)} numbers, not {length}")
        if storage.dtype == "BFloat16Storage":
            return (flat.astype(np.uint32) << 16).view(np.float32)
        return flat


def _tensor(
    storage: NDArray[Any], offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_rest: Any
) -> NDArray[Any]:
    """A tensor's view of its storage, copied; what reaches outside is refused."""
    reach = offset + sum((one - 1) * step for one, step in zip(size, stride, strict=True))
    if offset < 0 or any(one < 0 for one in (*size, *stride)) or (0 not in size and reach >= len(storage)):
        raise _Refused("a tensor reaches outside its storage")
    width = storage.itemsize
    view = np.lib.stride_tricks.as_strided(storage[offset:], size, [step * width for step in stride], writeable=False)
    return view.copy()
