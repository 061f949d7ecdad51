"""One family of errors: every fault in the text, near names suggested."""

from __future__ import annotations

import re

import pytest

from moeplan import errors
from moeplan.errors import Fault, Infeasible, InputError, MoeplanError, UnknownName, Unsupported, suggestion


def test_a_fault_says_where_what_and_what_to_write() -> None:
    assert str(Fault("memory.capacity", "is zero", "give the real figure")) == (
        "memory.capacity: is zero — give the real figure"
    )
    assert str(Fault("batch", "is 0")) == "batch: is 0"


@pytest.mark.parametrize(("count", "head"), [(1, "file: 1 fault\n"), (3, "file: 3 faults\n")])
def test_every_fault_has_its_line(count: int, head: str) -> None:
    faults = [Fault(f"key{i}", f"problem {i}", f"fix {i}") for i in range(count)]
    error = InputError("file", faults)
    assert str(error).startswith(head)
    assert str(error).splitlines()[1:] == [f"  key{i}: problem {i} — fix {i}" for i in range(count)]
    assert error.faults == tuple(faults)
    assert error.where == "file"


def test_an_unknown_name_suggests_near_ones() -> None:
    error = UnknownName("gpu", "H8000", ["h800", "h100", "l40s"])
    assert isinstance(error, InputError)
    assert "unknown name 'H8000'" in str(error)
    assert "did you mean h800" in str(error)
    assert "l40s" not in str(error)


def test_an_unknown_name_with_nothing_near_lists_all() -> None:
    text = str(UnknownName("gpu", "zzz", ["h800", "a100"]))
    assert "known: a100, h800" in text


def test_suggestions_ignore_case_and_stop_at_three() -> None:
    assert suggestion("BANDWITH", ["bandwidth", "capacity"]) == "did you mean bandwidth?"
    assert suggestion("qqq", ["bandwidth"]) == ""
    assert suggestion("a1", []) == ""
    assert suggestion("gpu", ["gpu1", "gpu2", "gpu3", "gpu4"]).count("gpu") == 3


def test_the_family_is_the_one_drawn_in_the_docstring() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__)) | {"MoeplanError"}
    defined = {
        name
        for name, item in vars(errors).items()
        if isinstance(item, type) and issubclass(item, BaseException) and item.__module__ == errors.__name__
    }
    assert drawn == defined
    assert issubclass(Unsupported, InputError)
    assert issubclass(InputError, MoeplanError)
    assert issubclass(Infeasible, MoeplanError)
    assert not issubclass(Infeasible, InputError)


def failing(*faults: Fault) -> None:
    raise InputError("somewhere", faults)


def test_together_names_the_faults_of_all_readings_once() -> None:
    one, two = Fault("a", "is bad"), Fault("b", "is worse")
    errors.together("options", lambda: None)
    with pytest.raises(InputError) as caught:
        errors.together("options", lambda: failing(one), lambda: None, lambda: failing(two), lambda: failing(one))
    assert (caught.value.where, caught.value.faults) == ("options", (one, two))


def test_together_raises_an_error_that_holds_all_faults_as_it_is() -> None:
    one, two = Fault("a", "is bad"), Fault("b", "is worse")

    def unknown() -> None:
        raise UnknownName("gpu", "h900", ["h800"])

    with pytest.raises(UnknownName):
        errors.together("options", unknown, unknown)
    with pytest.raises(InputError) as caught:
        errors.together("options", lambda: failing(one), lambda: failing(one, two))
    assert caught.value.where == "somewhere"
