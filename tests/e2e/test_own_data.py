"""Schedules and all-to-alls of one's own: known by name with --data, priced, searched, refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typed

from moeplan.specs.catalog import ENVIRONMENT
from moeplan.specs.exchange import exchange
from moeplan.specs.own_data import PACKAGED, named_files, own_folder, use_own
from moeplan.specs.schedule import schedule, schedule_names

STEP = "predict deepseek-v3 --gpu h200 --nic cx7 --gpus 16 --batch 64 --context 2k"
PLAN = "plan deepseek-v3 --gpu h200 --nic cx7 --gpus 16 --context 2k --min-tps 20 --max-batch 32 --mtp 0 --kv bf16"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A schedule whose shared expert comes last, an all-to-all that takes 8 SMs instead of 20."""
    naive = (PACKAGED / "schedules" / "naive.yaml").read_text(encoding="utf-8")
    own = naive.replace("name: naive", "name: shared-late").replace("[none, hook, single-batch-hook]", "[late]")
    write(tmp_path / "schedules" / "shared-late.yaml", own.replace("shared, routed", "routed, shared"))
    normal = (PACKAGED / "exchanges" / "deepep-normal.yaml").read_text(encoding="utf-8")
    own = normal.replace("name: deepep-normal", "name: my-a2a").replace("[deepep-ht, normal]", "[mine]")
    write(tmp_path / "exchanges" / "my-a2a.yaml", own.replace("sms: 20", "sms: 8"))
    yield tmp_path
    use_own(None)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def run(capsys: pytest.CaptureFixture[str], line: str, *more: str) -> tuple[object, str, str]:
    code, out, err = typed.run(capsys, *line.split(), *more)
    return code, " ".join(out.split()), " ".join(err.split())


@pytest.mark.parametrize("name", ["shared-late", "late"])
def test_a_step_runs_a_schedule_of_ones_own(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"{STEP} --schedule {name}", "--data", str(folder))
    assert code == 0
    assert "shared-late, context 2,000" in out


def test_a_step_takes_an_all_to_all_of_ones_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"{STEP} --schedule naive --exchange mine", "--data", str(folder))
    assert code == 0
    assert "EP16 = DP16 by my-a2a" in out
    assert exchange("my-a2a").sms == 8


def test_a_plan_searches_both_and_no_engine_is_said_to_run_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--schedule naive,late --exchange deepep-ll,my-a2a --layout dep"
    code, out, _ = run(capsys, f"{PLAN} {words}", "--data", str(folder))
    assert code == 0
    assert "with shared-late" in out
    assert "with my-a2a" in out
    _, out, _ = run(capsys, f"{PLAN} --schedule late --layout dep", "--data", str(folder))
    assert "SGLang cannot run it: schedule: no switch of SGLang 0.5.23 gives shared-late" in out


def test_the_environment_names_the_folder_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(folder))
    assert run(capsys, f"{STEP} --schedule late")[0] == 0


def test_without_the_folder_they_are_unknown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, f"{STEP} --schedule late", "--data", str(folder))[0] == 0
    code, _, err = run(capsys, f"{STEP} --schedule late")
    assert code == 2
    assert "unknown name 'late'" in err
    assert own_folder() is None
    assert "shared-late" not in schedule_names()


def test_a_file_of_a_packaged_name_comes_first(folder: Path) -> None:
    source = (PACKAGED / "schedules" / "two-batch.yaml").read_text(encoding="utf-8")
    write(folder / "schedules" / "two-batch.yaml", source.replace("meaning: while", "meaning: mine, while"))
    use_own(folder)
    assert schedule("two-batch").meaning.startswith("mine")
    assert schedule("two-batch-best").compute == schedule("two-batch").compute
    assert named_files("schedules")["naive"].parent == PACKAGED / "schedules"
    use_own(None)
    assert not schedule("two-batch").meaning.startswith("mine")


@pytest.mark.parametrize(
    ("kind", "name", "old", "new", "said"),
    [
        ("schedules", "shared-late", "name: shared-late", "name: other", "write 'shared-late', as the file is called"),
        ("schedules", "shared-late", "micro_batches: 1", "micro_batches: 2", "batch 2: runs attention_front 0 times"),
        ("exchanges", "my-a2a", "mode: normal", "mode: nrmal", "did you mean normal"),
    ],
)
def test_a_slip_in_ones_own_file_is_named(
    kind: str, name: str, old: str, new: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / kind / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    write(path, text.replace(old, new))
    option = "--schedule" if kind == "schedules" else "--exchange"
    code, _, err = run(capsys, f"{STEP} {option} {name}", "--data", str(folder))
    assert code == 2
    assert said in err
