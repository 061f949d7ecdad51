"""YAML to struct: every fault at once, with its path; nothing but InputError for any input."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, field

from moeplan.errors import Fault, InputError
from moeplan.specs.gpu import Gpu
from moeplan.specs.loading import build, parse_mapping, read_mapping, scalar

QUICK = settings(max_examples=60, deadline=None)

GOOD = """
name: Test-GPU
vendor: nobody
architecture: Testing
memory: {capacity: 80 GiB, bandwidth: 3 TB/s}
compute: {bf16: 1000 TFLOP/s}
vector_rate: 4 Top/s
attention_overlap: none
"""


class Wheel(Struct, frozen=True, kw_only=True):
    radius: float
    spokes: int = 3


class Cart(Struct, frozen=True, kw_only=True):
    name: str
    weight: Annotated[float, "B"]
    colour: Literal["red", "green"] = "red"
    covered: bool = False
    wheels: tuple[Wheel, ...] = ()
    loads: Annotated[dict[str, float], "B/s"] = field(default_factory=dict)
    spare: Wheel | None = None
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "ghost":
            raise InputError("cart", [Fault("name", "is no cart", "call it something else")])


Result = TypeVar("Result")


def attempt(call: Callable[[], Result]) -> Result | InputError:
    """What the call returns, or the error that it may raise, which has a fault for sure."""
    try:
        return call()
    except InputError as error:
        caught = error
    assert caught.faults
    return caught


def faults_of(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        build(Gpu, parse_mapping(text, "test.yaml"), "test.yaml")
    return [str(fault) for fault in caught.value.faults]


def test_a_good_file_is_read_in_si_units() -> None:
    gpu = build(Gpu, parse_mapping(GOOD, "test.yaml"), "test.yaml")
    assert gpu.memory.capacity == 80 * 2.0**30
    assert gpu.memory.bandwidth == 3e12
    assert gpu.compute == {"bf16": 1e15}
    assert gpu.vector_rate == 4e12
    assert gpu.scale_up is None


def test_three_faults_come_in_one_error_with_path_and_suggestion() -> None:
    text = GOOD.replace("bandwidth: 3 TB/s", "bandwith: 3 TB/s").replace("none", "two-stages")
    faults = faults_of(text)
    assert len(faults) == 3
    assert any("memory.bandwith: unknown key" in f and "did you mean bandwidth?" in f for f in faults)
    assert any(f.startswith("memory.bandwidth: is missing") and "TB/s" in f for f in faults)
    assert any(f.startswith("attention_overlap: holds 'two-stages'") and "did you mean two-stage" in f for f in faults)


def test_the_message_names_the_file_and_counts() -> None:
    with pytest.raises(InputError, match=r"^mine\.yaml: 2 faults\n"):
        build(Wheel, {"radius": "wide", "tyre": 1}, "mine.yaml")


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        (("80 GiB", "80"), "memory.capacity", "no unit"),
        (("80 GiB", "80 TB/s"), "memory.capacity", "wanted B"),
        (("80 GiB", "-80 GiB"), "memory.capacity", "negative"),
        (("80 GiB", "0 GiB"), "memory.capacity", "is zero"),
        (("80 GiB", ".nan"), "memory.capacity", "not finite"),
        (("80 GiB", "yes"), "memory.capacity", "no number"),
        (("80 GiB", "[80 GiB]"), "memory.capacity", "wanted a number with a unit"),
        (("80 GiB", "1e30 B"), "memory.capacity", "beyond any real figure"),
        (("1000 TFLOP/s", "1000 TB/s"), "compute.bf16", "wanted FLOP/s"),
        (("{bf16: 1000 TFLOP/s}", "{}"), "compute", "is empty"),
        (("{bf16: 1000 TFLOP/s}", "fast"), "compute", "wanted a mapping"),
        (("{capacity: 80 GiB, bandwidth: 3 TB/s}", "big"), "memory", "wanted a mapping"),
        (("name: Test-GPU", "name: 5"), "name", "wanted text"),
        (("vendor: nobody", "vendor: nobody\nscale_up: {bandwidth: 9 GB/s, domain: 8.5}"), "scale_up.domain", "whole"),
        (("vendor: nobody", "vendor: nobody\nscale_up: {bandwidth: 9 GB/s, domain: 0}"), "scale_up.domain", "is zero"),
        (("vendor: nobody", "vendor: nobody\ngpus_per_node: -8"), "gpus_per_node", "negative"),
        (("vendor: nobody", "vendor: nobody\ngpus_per_node: true"), "gpus_per_node", "wanted a whole number"),
        (("vendor: nobody", "vendor: nobody\nsubstitutes: {fp8: int8}"), "substitutes.fp8", "does not list"),
    ],
)
def test_each_fault_has_its_path(change: tuple[str, str], path: str, words: str) -> None:
    assert GOOD.count(change[0]) == 1
    faults = faults_of(GOOD.replace(*change))
    assert len(faults) == 1
    assert faults[0].startswith(f"{path}: ")
    assert words in faults[0]


def test_a_nested_structure_is_built_and_its_faults_have_an_index() -> None:
    content = {
        "name": "cart",
        "weight": "2 kB",
        "wheels": [{"radius": 1}, {"radius": 0.5, "spokes": 7}],
        "loads": {"up": "1 GB/s"},
        "spare": None,
        "covered": True,
    }
    cart = build(Cart, content, "cart.yaml")
    assert cart.wheels == (Wheel(radius=1.0), Wheel(radius=0.5, spokes=7))
    assert cart.weight == 2000.0
    assert cart.loads == {"up": 1e9}
    bad = content | {"wheels": [{"radius": 1}, {"radius": -1, "spoke": 2}], "covered": 1, "loads": {"up": "1 GB"}}
    with pytest.raises(InputError) as caught:
        build(Cart, bad, "cart.yaml")
    assert sorted(fault.path for fault in caught.value.faults) == [
        "covered",
        "loads.up",
        "wheels[1].radius",
        "wheels[1].spoke",
    ]


def test_a_rule_between_fields_keeps_its_path() -> None:
    with pytest.raises(InputError, match="name: is no cart"):
        build(Cart, {"name": "ghost", "weight": "1 B"}, "cart.yaml")


def test_a_nested_null_is_no_mapping_where_none_is_not_allowed() -> None:
    with pytest.raises(InputError, match="memory: holds None, wanted a mapping"):
        build(Gpu, parse_mapping(GOOD.replace("{capacity: 80 GiB, bandwidth: 3 TB/s}", ""), "x"), "x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "key 'a' appears twice"),
        ("m:\n  b: 1\n  b: 2", "line 3, column 3"),
        ('{"a": 1, "a": 2}', "appears twice"),
        ("- 1\n- 2", "holds a list"),
        ("just text", "holds a str"),
        ("5", "holds a int"),
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("a: [1, 2", "is not valid YAML or JSON"),
        ("a: b: c", "line 1, column 5"),
        ("a: *nowhere", "undefined alias"),
        ("a: 1\n---\nb: 2", "another document"),
        ("? [x]\n: 1", "unhashable key"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: 2001-02-30", "day is out of range"),
        ("a: \x00", "not valid"),
        ("a: " + "[" * 5000, "not valid"),
        ("a: " + "[" * 5000 + "]" * 5000, "nesting"),
        ("{a: " * 5000, "nesting"),
        ("a: " + "9" * 5000, "not valid"),
        ("a: 0x" + "f" * 5000, "beyond any real figure"),
        ('a: !!int ""', "not valid"),
        ('a: !!float ""', "not valid"),
        ("a: !!bool perhaps", "not valid"),
        ("a: !!timestamp tomorrow", "not valid"),
    ],
)
def test_text_that_is_no_mapping(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_mapping(text, "test.yaml")
    assert str(caught.value).startswith("test.yaml: 1 fault\n")
    assert words in str(caught.value)


def test_json_is_read_too() -> None:
    assert parse_mapping('{"a": [1, 2.5, null, true], "b": {"c": "d"}}', "x") == {
        "a": [1, 2.5, None, True],
        "b": {"c": "d"},
    }


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("name: é".encode("latin-1"))
    for path in (tmp_path / "missing.yaml", tmp_path, latin, Path("\0")):
        with pytest.raises(InputError, match="cannot be read"):
            read_mapping(path)


@QUICK
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=80))
def test_any_text_is_a_mapping_or_an_input_error(text: str) -> None:
    assert isinstance(attempt(lambda: parse_mapping(text, "junk")), dict | InputError)


YAML_WORDS = st.sampled_from(
    "a|: |\n|- |[|]|{|}|!!|int|float|set|binary|&x|*x|<<|0x|1|.nan|\"|'|?|>|#|~|---|\t|2001-01-01|e|  |true|%".split(
        "|"
    )
)


@settings(max_examples=150, deadline=None)
@given(st.lists(YAML_WORDS, max_size=14).map("".join))
def test_text_that_looks_like_yaml_raises_nothing_else(text: str) -> None:
    content = attempt(lambda: parse_mapping(text, "junk"))
    if isinstance(content, dict):
        assert isinstance(attempt(lambda: build(Gpu, content, "junk")), Gpu | InputError)


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(10**300, 10**320),
        st.floats(),
        st.text(max_size=6),
        st.dates(),
        st.binary(max_size=4),
        st.sampled_from(["80 GB", "3 TB/s", "1 TFLOP/s", "none", "two-stage", "1 Top/s", "2 ms"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(), st.none()), inner, max_size=3),
        st.sets(st.integers(), max_size=2),
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from([*Gpu.__struct_fields__, *Cart.__struct_fields__, "capacity", "bandwidth", "domain"])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.one_of(FIELDS, st.text(max_size=4)), JUNK, max_size=8), st.sampled_from([Gpu, Cart]))
def test_any_mapping_is_built_or_refused(content: dict[str, Any], cls: type) -> None:
    assert isinstance(attempt(lambda: build(cls, content, "junk")), (cls, InputError))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["name", "memory", "compute", "vector_rate", "scale_up", "tdp", "gpus_per_node"]), JUNK)
def test_one_junk_value_in_a_good_file(key: str, value: object) -> None:
    content = parse_mapping(GOOD, "good") | {key: value}
    gpu = attempt(lambda: build(Gpu, content, "junk"))
    if isinstance(gpu, InputError):
        assert all(fault.path.split(".")[0].split("[")[0] == key for fault in gpu.faults)
        return
    assert 0 < gpu.memory.capacity < math.inf
    assert 0 < gpu.memory.bandwidth < math.inf
    assert gpu.compute
    assert all(0 < rate < math.inf for rate in gpu.compute.values())
    assert 0 < gpu.vector_rate < math.inf


class Figures(Struct, frozen=True, kw_only=True):
    rate: float
    count: int
    note: str


@pytest.mark.parametrize(("text", "value"), [("1e1", 10), ("2E+3", 2000), (".5e1", 5), ("5.e0", 5), ("6", 6)])
def test_a_number_with_an_exponent_is_one_where_a_number_is_wanted(text: str, value: int) -> None:
    """YAML 1.1 takes 1e9 for text, and so it is where text is wanted."""
    found = build(Figures, parse_mapping(f"rate: {text}\ncount: {text}\nnote: '{text}'", "here"), "here")
    assert (found.rate, found.count, found.note) == (value, value, text)
    assert type(found.rate) is float
    assert type(found.count) is int
    assert scalar(text) in (text, value)


@pytest.mark.parametrize("text", ["1e", "e9", "1.5e0", "1e9x", "1e30"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="count"):
        build(Figures, parse_mapping(f"rate: 1\ncount: {text}\nnote: x", "here"), "here")
