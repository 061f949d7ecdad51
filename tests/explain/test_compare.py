"""Comparisons: differences that add up, profiles whose faults are all named."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.errors import InputError
from moeplan.explain.compare import Difference, compare_profile, compare_steps, read_profile
from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision

CATALOG = Catalog.standard()


@cache
def step(model: str = "deepseek-v3", gpu: str = "h800", ep: int = 32, batch: int = 64, drafts: int = 0) -> Prediction:
    spec = CATALOG.model(model)
    deployment = Deployment(
        batch=batch,
        ep=ep,
        context=4096,
        drafts=drafts if spec.mtp_layers else 0,
        precision=Precision.of(spec),
        acceptance=Acceptance.geometric(0.85, 3, "this test"),
    )
    return Predictor.of(spec, cluster_of(CATALOG, gpu, "cx7", None), CATALOG).predict(deployment)


STEPS = st.builds(
    step,
    st.sampled_from(("deepseek-v3", "qwen3-30b-a3b", "llama-3.1-8b")),
    st.sampled_from(("h800", "h20", "b200")),
    st.sampled_from((1, 16, 144)),
    st.sampled_from((1, 32, 200)),
    st.integers(0, 2),
)


@given(STEPS, STEPS)
@settings(max_examples=40, deadline=None)
def test_the_differences_add_up(first: Prediction, second: Prediction) -> None:
    found = compare_steps(first, second)
    change = float(second.seconds) - float(first.seconds)
    total = float(first.seconds) + float(second.seconds)
    assert sum(item.seconds for item in found) == pytest.approx(change, abs=1e-9 * total)
    assert sum(item.first or 0.0 for item in found) == pytest.approx(float(first.seconds))
    assert sum(item.second or 0.0 for item in found) == pytest.approx(float(second.seconds))
    sizes = [abs(item.seconds) for item in found]
    assert sizes == sorted(sizes, reverse=True)
    assert len({item.operator for item in found}) == len(found)
    swapped = {item.operator: item for item in compare_steps(second, first)}
    for item in found:
        assert swapped[item.operator] == Difference(operator=item.operator, first=item.second, second=item.first)


def test_what_one_side_lacks_is_none_not_zero() -> None:
    found = {item.operator: item for item in compare_steps(step(), step("llama-3.1-8b", ep=1))}
    assert found["mla_core"].second is None
    assert found["gqa_core"].first is None
    assert found["dispatch"].second is None
    assert found["mla_core"].seconds == -(found["mla_core"].first or 0)
    assert found["gqa_core"].seconds == found["gqa_core"].second
    assert found["lm_head"].first is not None
    assert found["lm_head"].second is not None


def test_a_step_and_itself() -> None:
    assert all(item.seconds == 0 for item in compare_steps(step(), step()))


def busy(found: Prediction, name: str) -> float:
    """Seconds of an operator over all layers, added up from the layers."""
    return sum(
        group.group.count * group.timeline.micro_batches * float(cost.seconds)
        for group in found.groups
        for stage in group.layer.stages.values()
        for cost in stage.costs
        if cost.name == name
    )


def test_a_profile_is_set_beside_the_busy_time() -> None:
    found = step()
    profile = {"mla_core": 0.020, "dispatch": 0.001, "o_proj": 0.0}
    differences = {item.operator: item for item in compare_profile(found, profile)}
    assert set(differences) == set(profile)
    for name, measured in profile.items():
        assert differences[name].first == pytest.approx(busy(found, name))
        assert differences[name].second == measured
        assert differences[name].seconds == pytest.approx(measured - busy(found, name))


def test_every_unknown_operator_of_a_profile_is_named() -> None:
    with pytest.raises(InputError) as stop:
        compare_profile(step(), {"mla_cor": 1.0, "o_proj": 1.0, "attention": 1.0})
    faults = {fault.path: fault.fix for fault in stop.value.faults}
    assert set(faults) == {"mla_cor", "attention"}
    assert "mla_core" in faults["mla_cor"]
    assert faults["attention"]


# --- reading --------------------------------------------------------------------------------------------------------


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "profile.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_rows_of_one_operator_add_up(tmp_path: Path) -> None:
    content = 'operator,seconds\nmla_core,0.5\n"o_proj",1e-3\nmla_core,0.25\n'
    assert read_profile(written(tmp_path, content)) == {"mla_core": 0.75, "o_proj": 1e-3}


def test_other_columns_other_orders_and_spreadsheets_are_read(tmp_path: Path) -> None:
    assert read_profile(written(tmp_path, "note,seconds,operator\nx,2,a\n")) == {"a": 2.0}
    assert read_profile(written(tmp_path, b"\xef\xbb\xbfoperator,seconds\r\na,2\r\n")) == {"a": 2.0}
    assert read_profile(written(tmp_path, "operator,seconds\n\na,0\n")) == {"a": 0.0}


def test_every_wrong_row_is_named(tmp_path: Path) -> None:
    rows = ["a,1", "b,-1", "c,", ",2", "d,nan", "e,inf", "f,x", "g", "h,1e-3 s", "i,2"]
    with pytest.raises(InputError) as stop:
        read_profile(written(tmp_path, "\n".join(["operator,seconds", *rows])))
    assert [fault.path for fault in stop.value.faults] == [f"line {number}" for number in (3, 4, 5, 6, 7, 8, 9, 10)]
    assert all(fault.fix for fault in stop.value.faults)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", ["operator", "seconds"]),
        ("operator\na\n", ["seconds"]),
        ("Operator;Seconds\na;1\n", ["operator", "seconds"]),
        ("operator,seconds\n", ["there are none"]),
        (b"operator,seconds\n\xff,1\n", ["cannot be read"]),
        ("operator,seconds\n" + "x" * 200_000 + ",1\n", ["cannot be read"]),
    ],
    ids=["empty", "column", "semicolons", "no rows", "no utf-8", "endless cell"],
)
def test_what_is_no_profile(content: str | bytes, named: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as stop:
        read_profile(written(tmp_path, content))
    for word in named:
        assert word in str(stop.value)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.csv", tmp_path, Path("a\0b")):
        with pytest.raises(InputError, match="cannot be read"):
            read_profile(path)


def test_a_wrong_profile_of_a_right_step_is_refused_as_a_whole() -> None:
    with pytest.raises(InputError):
        compare_profile(replace(step()), {"mla_core": 0.1, "nope": 0.1})
