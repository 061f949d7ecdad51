"""Which sources may answer: the option's text, and every fault of it at once."""

from __future__ import annotations

import pytest

from moeplan.errors import InputError
from moeplan.kernels.sources import ALL, ARTICLE, ENGINES, MEANING, SOURCES, KernelSources, read_sources


def test_by_default_all_but_the_article() -> None:
    assert ALL.allowed == ("table", "silicon", "fitted", "assumed")
    assert (ALL.engine, ALL.strict, ALL.article) == ("sglang", False, False)
    assert all(ALL.may(source) for source in SOURCES if source != "article")
    assert ARTICLE.article
    assert not any(ARTICLE.may(source) for source in SOURCES if source != "article")
    assert MEANING.keys() == set(SOURCES)


def test_the_order_is_that_of_asking_not_of_writing() -> None:
    assert read_sources(" assumed, fitted,table ,table") == KernelSources(allowed=("table", "fitted", "assumed"))
    assert read_sources("fitted", strict=True) == KernelSources(allowed=("fitted",), strict=True)
    assert read_sources("article") == ARTICLE


@pytest.mark.parametrize("engine", ENGINES)
def test_silicon_may_name_an_engine(engine: str) -> None:
    assert read_sources(f"silicon={engine},fitted") == KernelSources(allowed=("silicon", "fitted"), engine=engine)


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        read_sources("tabel,fitted=sglang,silicon=trtlm,,silicon=,article")
    problems = [(fault.problem, fault.fix) for fault in caught.value.faults]
    assert problems[0] == ("unknown source 'tabel'", "did you mean table?")
    assert problems[1] == ("'fitted=sglang': only silicon takes an engine", "write silicon=trtllm")
    assert problems[2] == ("unknown engine 'trtlm'", "did you mean trtllm?")
    assert problems[3][0] == "is empty"
    assert problems[4][0] == "unknown engine ''"
    assert len(problems) == 5


def test_the_article_is_not_mixed_with_others() -> None:
    with pytest.raises(InputError, match="mixes article with other sources"):
        read_sources("table,article")
