"""Reading loads: every format gives the same numbers, large files come in pieces, bad ones are named."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeplan.errors import InputError
from moeplan.routing.expert_loads import folded
from moeplan.routing.load_files import read_loads
from moeplan.routing.load_laws import law_loads
from moeplan.routing.torch_file import read_torch

LOADS = np.array([[1.0, 2, 3, 4], [5, 0, 7, 8]])


def csv_text(*, layer: bool) -> str:
    head = ("layer," if layer else "") + "note,e1,e0,e2,e3\n"
    return head + "".join(
        (f"{number + 3}," if layer else "") + f"x,{row[1]},{row[0]},{row[2]},{row[3]}\n"
        for number, row in enumerate(LOADS)
    )


def test_every_format_gives_the_same_loads(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", LOADS)
    (tmp_path / "a.csv").write_text(csv_text(layer=False))
    (tmp_path / "b.csv").write_text("# a comment\n" + csv_text(layer=True))
    (tmp_path / "c.csv").write_text("\n".join(",".join(map(str, row)) for row in LOADS))
    (tmp_path / "a.json").write_text(json.dumps(LOADS.tolist()))
    (tmp_path / "b.json").write_text(json.dumps({"loads": LOADS.tolist()}))
    (tmp_path / "c.json").write_text(
        json.dumps({str(n): {str(e): x for e, x in enumerate(row)} for n, row in enumerate(LOADS)})
    )
    for name in ("a.npy", "a.csv", "b.csv", "c.csv", "a.json", "b.json", "c.json"):
        found = read_loads([tmp_path / name])
        assert found.total.tolist() == LOADS.tolist(), name
        assert found.layers == ((3, 4) if name == "b.csv" else (0, 1))


def test_windows_from_one_file_or_several(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.stack([LOADS, 2 * LOADS]))
    np.save(tmp_path / "b.npy", 3 * LOADS)
    (tmp_path / "a.csv").write_text(csv_text(layer=True) + csv_text(layer=True).split("\n", 1)[1])
    assert read_loads([tmp_path / "a.npy", tmp_path / "b.npy"]).windows[:, 0, 0].tolist() == [1, 2, 3]
    assert read_loads([tmp_path / "a.csv"]).windows.shape == (2, 2, 4)


def test_many_windows_are_summed_over_neighbours() -> None:
    windows = (np.full((1, 2), float(number)) for number in range(1000))
    found, width = folded(windows, most=8)
    assert (len(found), width) == (8, 128)
    assert found.sum() == 2 * sum(range(1000))
    assert found[0, 0, 0] == sum(range(128))


def torch_bytes(content: Any, storages: dict[str, bytes]) -> bytes:
    """A file as torch.save writes it, made here without torch: `content` may hold Tensor and Global below."""
    buffer = io.BytesIO()
    pickler = Pickler(buffer, protocol=2)
    pickler.dump(content)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("dump/data.pkl", buffer.getvalue())
        archive.writestr("dump/byteorder", "little")
        for key, data in storages.items():
            archive.writestr(f"dump/data/{key}", data)
    return file.getvalue()


class Global:
    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Storage:
    def __init__(self, kind: str, key: str, length: int) -> None:
        self.kind, self.key, self.length = kind, key, length


class Tensor:
    def __init__(self, storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.parts = (storage, offset, size, stride, False, None)


class Pickler(pickle._Pickler):
    """Writes globals by name, as torch does, though there is no torch here."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        write, save = self.write, super().save  # type: ignore[attr-defined,misc]
        if isinstance(obj, Global):
            write(b"c" + f"{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Storage):
            self.save(("storage", Global("torch", obj.kind), obj.key, "cuda:0", obj.length))
            write(b"Q")
        elif isinstance(obj, Tensor):
            self.save(Global("torch._utils", "_rebuild_tensor_v2"))
            self.save(obj.parts)
            write(b"R")
        else:
            save(obj, save_persistent_id)


def test_a_file_of_sglangs_recorder_as_torch_wrote_it() -> None:
    """torch.save of torch 2.13: a slice of a buffer of 4 steps; the third step was never filled and is left out."""
    found = read_loads([Path(__file__).with_name("sglang_recorder_stat.pt")])
    assert found.windows.tolist() == [LOADS.tolist(), (3 * LOADS).tolist()]


def test_sglangs_recorder_without_torch(tmp_path: Path) -> None:
    """logical_count [steps, layers, experts] in int32; steps that the buffer never filled are left out."""
    counts = np.stack([LOADS, 3 * LOADS, 0 * LOADS]).astype("<i4")
    tensor = Tensor(Storage("IntStorage", "0", 24), 0, (3, 2, 4), (8, 4, 1))
    content = {"rank": 0, "logical_count": tensor, "average_utilization_rate_over_window": None}
    (tmp_path / "x.pt").write_bytes(torch_bytes(content, {"0": counts.tobytes()}))
    found = read_loads([tmp_path / "x.pt"])
    assert found.windows[:, 0, 0].tolist() == [1, 3]
    assert found.total.tolist() == (4 * LOADS).tolist()


def test_sglangs_passes_are_summed_over_ranks(tmp_path: Path) -> None:
    """Slots 0…4 hold experts 0, 1, 2, 3 and again 1; two ranks record the same pass."""
    place = np.array([[0, 1, 2, 3, 1]], dtype="<i8")
    count = np.array([[1, 2, 3, 4, 5]], dtype="<i8")
    for rank in (0, 1):
        tensors = [Tensor(Storage("LongStorage", str(key), 5), 0, (1, 5), (5, 1)) for key in (0, 1)]
        record = {"forward_pass_id": 7, "rank": rank, "gatherer_key": "primary", "global_physical_count": tensors[1]}
        content = {"records": [record], "last_physical_to_logical_map": tensors[0]}
        data = {"0": place.tobytes(), "1": count.tobytes()}
        (tmp_path / f"{rank}.pt").write_bytes(torch_bytes(content, data))
    assert read_loads([tmp_path / "0.pt", tmp_path / "1.pt"]).windows.tolist() == [[[2.0, 14.0, 6.0, 8.0]]]


def test_a_strided_and_a_bfloat16_tensor(tmp_path: Path) -> None:
    half = b"".join(struct.pack("<f", one)[2:] for one in (1.5, -2.0, 0.25, 8.0))
    content = {"a": Tensor(Storage("BFloat16Storage", "0", 4), 1, (3,), (1,)), "b": [1, "x"]}
    (tmp_path / "x.pt").write_bytes(torch_bytes(content, {"0": half}))
    found = read_torch(tmp_path / "x.pt")
    assert found["a"].tolist() == [-2.0, 0.25, 8.0]
    assert found["b"] == [1, "x"]


@pytest.mark.parametrize(
    "content",
    [
        {"x": Global("os", "system")},
        {"x": Global("builtins", "eval")},
        {"logical_count": Tensor(Storage("IntStorage", "0", 2), 1, (2,), (1,))},
        {"logical_count": Tensor(Storage("IntStorage", "0", 2), 0, (2,), (-1,))},
        {"logical_count": Tensor(Storage("IntStorage", "0", 9), 0, (2,), (1,))},
        {"logical_count": Tensor(Storage("IntStorage", "1", 2), 0, (2,), (1,))},
    ],
)
def test_what_is_no_tensor_is_refused(tmp_path: Path, content: Any) -> None:
    (tmp_path / "x.pt").write_bytes(torch_bytes(content, {"0": b"\0" * 8}))
    with pytest.raises(InputError, match=r"convert it where torch is"):
        read_loads([tmp_path / "x.pt"])


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("x.csv", "layer,note\n3,x\n", "no columns e0"),
        ("x.csv", "e0,e2\n1,2\n", "lacks the column e1"),
        ("x.csv", "e0,e1\n1,two\n", "row 2"),
        ("x.csv", "e0,e1\n1,2,3\n", "give as many cells as the first row has, 2"),
        ("x.csv", "layer,e0\n3,1\n4,2\n3,1\n5,2\n", "a window has the layers 3, 5, the first has 3, 4"),
        ("x.csv", "layer,e0\nfirst,1\n", "number the layers"),
        ("x.csv", "e0,e1\n1,nan\n2,nan\n", "layer 0, expert 1: is nan; 2 such"),
        ("x.csv", "e0,e1\n1,-2\n", "layer 0, expert 1: is -2; 1 such"),
        ("x.csv", "e0,e1\n0,0\n", "all zero"),
        ("x.csv", "e0,e1\n", "no row of loads"),
        ("x.json", "[[1, 2], [3]]", "no array of numbers"),
        ("x.json", "{", "is no JSON"),
        ("x.pt", "old", "no zip"),
        ("x.txt", "1 2", "of no kind known"),
        ("x.log", "EPLB step: 3 for model m: avg_tokens=5.00, max_tokens=10, balancedness=0.5000\n", "2.000"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, name: str, text: str, named: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as refused:
        read_loads([tmp_path / name])
    assert named in str(refused.value)


def test_layers_keep_their_numbers_and_windows_their_layers(tmp_path: Path) -> None:
    """A later window may name its layers in another order; a JSON's keys are numbers of layers."""
    (tmp_path / "a.csv").write_text("Layer,e0,e1\n3,1,2\n5,3,4\n5,30,40\n3,10,20,\n")
    found = read_loads([tmp_path / "a.csv"])
    assert found.layers == (3, 5)
    assert found.windows.tolist() == [[[1, 2], [3, 4]], [[10, 20], [30, 40]]]
    (tmp_path / "a.json").write_text('{"5": {"0": 3, "1": 4}, "3": [1, 2]}')
    assert read_loads([tmp_path / "a.json"]).layers == (3, 5)
    assert read_loads([tmp_path / "a.json"]).total.tolist() == [[1, 2], [3, 4]]
    assert read_loads([tmp_path / "a.csv", tmp_path / "a.json"]).windows.shape == (3, 2, 2)


def test_files_of_other_layers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("layer,e0\n3,1\n4,1\n")
    (tmp_path / "b.csv").write_text("layer,e0\n5,1\n6,1\n")
    with pytest.raises(InputError, match=r"is of the layers 5, 6, .* of 3, 4"):
        read_loads([tmp_path / "a.csv", tmp_path / "b.csv"])


def passes(place: Any, records: Any) -> dict[str, Any]:
    return {"last_physical_to_logical_map": place, "records": records}


RECORD = {"forward_pass_id": 7, "global_physical_count": [[1, 2]]}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"records": [RECORD]}, "hold no last_physical_to_logical_map"),
        (passes([[0, 1]], [{"forward_pass_id": 7}]), "hold no global_physical_count"),
        (passes([[0, 1]], [RECORD | {"global_physical_count": [[1, 2, 3]]}]), "counts of (1, 3) slots"),
        (passes([[0, -1]], [RECORD]), "no map of layers × slots"),
        (passes([[0, 1]], [3]), "its records cannot be read"),
        (passes([[0, 1]], 3), "its records cannot be read"),
        (passes("x", [RECORD]), "its records cannot be read"),
        (passes([[0, 1]], [RECORD | {"forward_pass_id": None}]), "its records cannot be read"),
    ],
)
def test_passes_that_cannot_be_used_are_named(tmp_path: Path, content: Any, named: str) -> None:
    (tmp_path / "x.pt").write_bytes(torch_bytes(content, {}))
    with pytest.raises(InputError) as refused:
        read_loads([tmp_path / "x.pt"])
    assert named in str(refused.value)


def test_passes_of_two_recordings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(torch_bytes(passes([[0, 1]], [RECORD]), {}))
    (tmp_path / "b.pt").write_bytes(torch_bytes(passes([[0, 0]], [RECORD]), {}))
    with pytest.raises(InputError, match="give the files of one recording"):
        read_loads([tmp_path / "a.pt", tmp_path / "b.pt"])


def test_a_file_of_no_known_kind_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gigabytes of weights end in an error, not in memory."""
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 3_000_000)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("read whole"))
    with pytest.raises(InputError, match="of no kind known"):
        read_loads([tmp_path / "model.safetensors"])


def test_windows_of_two_shapes_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", LOADS)
    np.save(tmp_path / "b.npy", LOADS[:1])
    with pytest.raises(InputError, match="the first has"):
        read_loads([tmp_path / "a.npy", tmp_path / "b.npy"])


def test_laws() -> None:
    assert np.ptp(law_loads("uniform", layers=2, experts=8).total) == 0
    hot = law_loads("hot:2:30", layers=3, experts=8).total
    assert (np.sort(hot, axis=1)[:, -2:] == 30).all()
    zipf = np.sort(law_loads("zipf:1", layers=2, experts=4).total, axis=1)
    assert zipf[:, -1] / zipf[:, 0] == pytest.approx(4)
    once, again, other = (law_loads("lognormal:1", layers=2, experts=8, seed=seed).total for seed in (1, 1, 2))
    assert (once == again).all()
    assert not (once == other).any()
    for wrong in ("zipf", "zipf:x", "zip:1", "hot:9", "hot:1.5", "lognormal:11"):
        with pytest.raises(InputError):
            law_loads(wrong, layers=1, experts=8)
