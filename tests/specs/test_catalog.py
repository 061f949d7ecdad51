"""Names to files: a user's folder adds and overrides, aliases resolve, near names are suggested, paths are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError, UnknownName
from moeplan.specs.catalog import ENVIRONMENT, Catalog, Kind

KINDS: tuple[Kind, ...] = ("gpus", "nics", "clusters", "models")
GPU = """
name: {name}
vendor: me
architecture: Hopper
memory: {{capacity: {capacity}, bandwidth: 5 TB/s}}
compute: {{bf16: 1000 TFLOP/s, fp8: 2000 TFLOP/s}}
vector_rate: 4 Top/s
attention_overlap: two-stage
"""


def write_gpu(root: Path, slug: str, *, name: str = "Mine", capacity: str = "100 GB") -> Path:
    path = root / "gpus" / f"{slug}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(GPU.format(name=name, capacity=capacity), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)


def test_a_users_folder_adds_a_gpu_and_keeps_the_rest(tmp_path: Path) -> None:
    write_gpu(tmp_path, "mine")
    mine = Catalog.standard(tmp_path)
    assert mine.gpu("mine").memory.capacity == 100e9
    assert mine.gpu("mine").slug == "mine"
    assert mine.gpu("h800").compute["bf16"] == 989.4e12
    assert set(mine.names("gpus")) == {*Catalog.standard().names("gpus"), "mine"}
    with pytest.raises(UnknownName):
        Catalog.standard().gpu("mine")


def test_a_users_file_overrides_the_packaged_one_and_its_aliases(tmp_path: Path) -> None:
    write_gpu(tmp_path, "h800", name="My H800", capacity="96 GB")
    mine = Catalog.standard(tmp_path)
    for name in ("h800", "H800", "h800-sxm"):
        assert mine.gpu(name).name == "My H800"
        assert mine.gpu(name).memory.capacity == 96e9
    assert mine.cluster("h800-cx7").gpu.name == "My H800"
    assert mine.names("gpus") == Catalog.standard().names("gpus")
    assert Catalog.standard().gpu("h800").name == "H800-SXM5-80GB"


def test_the_environment_names_the_folder_and_the_argument_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    for root, capacity in ((first, "1 GB"), (second, "2 GB")):
        root.mkdir()
        write_gpu(root, "mine", capacity=capacity)
    monkeypatch.setenv(ENVIRONMENT, str(first))
    assert Catalog.standard().gpu("mine").memory.capacity == 1e9
    assert Catalog.standard(second).gpu("mine").memory.capacity == 2e9
    monkeypatch.setenv(ENVIRONMENT, "")
    with pytest.raises(UnknownName):
        Catalog.standard().gpu("mine")


def test_a_missing_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(InputError, match=r"--data: 1 fault\n.*is no folder"):
        Catalog.standard(missing)
    file = write_gpu(tmp_path, "mine")
    with pytest.raises(InputError, match="is no folder"):
        Catalog.standard(file)
    monkeypatch.setenv(ENVIRONMENT, str(missing))
    with pytest.raises(InputError, match=ENVIRONMENT):
        Catalog.standard()


def test_a_users_gpu_is_found_though_a_packaged_alias_has_its_name(tmp_path: Path) -> None:
    assert Catalog.standard().gpu("a100").slug == "a100-80"
    write_gpu(tmp_path, "a100", name="My A100")
    assert Catalog.standard(tmp_path).gpu("a100").name == "My A100"


def test_a_users_file_may_have_capitals(tmp_path: Path) -> None:
    write_gpu(tmp_path, "MyGPU")
    mine = Catalog.standard(tmp_path)
    assert "MyGPU" in mine.names("gpus")
    for name in mine.names("gpus"):
        assert mine.gpu(name).slug == name
    assert mine.gpu("mygpu").slug == "MyGPU"


def test_a_users_aliases(tmp_path: Path) -> None:
    write_gpu(tmp_path, "mine")
    index = tmp_path / "gpus" / "index.yaml"
    index.write_text("mine: [Best, Fast]\nh800: [old]\nh100:\n", encoding="utf-8")
    mine = Catalog.standard(tmp_path)
    assert mine.gpu("best").slug == mine.gpu("FAST").slug == "mine"
    assert mine.gpu("old").slug == "h800"
    assert mine.gpu("h800-sxm").slug == "h800"  # the packaged aliases stay
    for bad in ("h800: 5\n", "h800: old\n", "h800: {a: b}\n"):
        index.write_text(bad, encoding="utf-8")
        with pytest.raises(InputError, match="write a list of names"):
            Catalog.standard(tmp_path).gpu("h800-sxm")


@pytest.mark.parametrize(
    ("kind", "alias", "slug"),
    [
        ("gpus", "h800-sxm5-80gb", "h800"),
        ("gpus", " H20-96GB ", "h20"),
        ("nics", "connectx-7", "cx7"),
        ("clusters", "ep144", "deepseek-decode-2025"),
        ("models", "deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("models", "Qwen/Qwen3-8B", "qwen3-8b"),
    ],
)
def test_aliases_resolve(kind: Kind, alias: str, slug: str) -> None:
    assert Catalog.standard().path(kind, alias).stem == slug


@pytest.mark.parametrize("kind", KINDS)
def test_every_listed_name_resolves_to_its_own_file(kind: Kind) -> None:
    catalog = Catalog.standard()
    assert len(catalog.names(kind)) >= 7
    for name in catalog.names(kind):
        assert catalog.path(kind, name).stem == name


def test_unknown_names_suggest_near_ones() -> None:
    catalog = Catalog.standard()
    for ask, name, near in (
        (catalog.gpu, "h80", "h800"),
        (catalog.nic, "cx-7", "cx7"),
        (catalog.model, "deepsek-v3", "deepseek-v3"),
        (catalog.cluster, "h800-cx", "h800-cx7"),
    ):
        with pytest.raises(UnknownName) as caught:
            ask(name)
        assert "did you mean" in str(caught.value)
        assert near in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../gpus/h800", "..", ".", "/etc/hostname", "..\\h800", "gpus/h800", "h800.yaml", "index", "", "\0", "x" * 5000],
)
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    catalog = Catalog.standard()
    for ask in (catalog.gpu, catalog.nic, catalog.cluster):
        with pytest.raises(UnknownName):
            ask(name)


@pytest.mark.parametrize("name", ["../deepseek-v3", "./nothing.json", "/nowhere/config.json", "~/config.json"])
def test_a_models_path_that_does_not_exist(name: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        Catalog.standard().model(name)


@pytest.mark.parametrize("name", ["x" * 5000, "\0", "\ud800", ""])
def test_a_models_name_that_no_file_can_have(name: str) -> None:
    with pytest.raises(UnknownName):
        Catalog.standard().model(name)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20))
def test_any_name_is_known_or_refused(name: str) -> None:
    catalog = Catalog.standard()
    for kind in KINDS:
        try:
            path = catalog.path(kind, name)
        except UnknownName:
            continue
        assert path.is_file()
        assert path.parent.name == kind


def test_a_model_by_file_or_by_the_folder_that_holds_it(tmp_path: Path) -> None:
    packaged = Catalog.standard().path("models", "qwen3-8b")
    folder = tmp_path / "My-Qwen"
    folder.mkdir()
    (folder / "config.json").write_text(packaged.read_text(encoding="utf-8"), encoding="utf-8")
    catalog = Catalog.standard()
    for name in (str(folder), str(folder / "config.json")):
        model = catalog.model(name)
        assert (model.hidden, model.layer_count, model.experts) == (4096, 36, None)


def test_a_users_model_needs_no_path(tmp_path: Path) -> None:
    text = Catalog.standard().path("models", "qwen3-8b").read_text(encoding="utf-8")
    (tmp_path / "models").mkdir()
    changed = text.replace('"hidden_size": 4096', '"hidden_size": 2048')
    (tmp_path / "models" / "small-qwen.json").write_text(changed, encoding="utf-8")
    assert Catalog.standard(tmp_path).model("small-qwen").hidden == 2048


def test_a_broken_file_of_the_user_is_named(tmp_path: Path) -> None:
    path = write_gpu(tmp_path, "mine", capacity="100")
    with pytest.raises(InputError) as caught:
        Catalog.standard(tmp_path).gpu("mine")
    assert str(path) in str(caught.value)
    assert "memory.capacity" in str(caught.value)


def test_kernel_tables_of_the_user_come_first(tmp_path: Path) -> None:
    mine = tmp_path / "kernels" / "h800" / "gemm_fp8.csv"
    mine.parent.mkdir(parents=True)
    mine.write_text("m,n,k,seconds\n", encoding="utf-8")
    catalog = Catalog.standard(tmp_path)
    assert catalog.kernel_table("h800", "gemm_fp8") == mine
    other = catalog.kernel_table("h800", "mla_decode_bf16")
    assert other is not None
    assert tmp_path not in other.parents
    assert catalog.kernel_table("h800", "nonsense") is None
    assert catalog.kernel_table("l40s", "gemm_fp8") is None
