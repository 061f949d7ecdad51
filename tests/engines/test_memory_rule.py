"""How an engine divides the device: the rule file, the reserve, the meaning of its fraction flag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.engines.rules.exchange_backends import exchange_backends
from moeplan.engines.rules.memory_rule import kv_budget, memory_rule
from moeplan.specs.catalog import Catalog
from moeplan.specs.hf_families import FAMILIES

CATALOG = Catalog.standard()
RULE = memory_rule(CATALOG, "sglang")


def test_the_rule_names_its_version_and_source() -> None:
    assert (RULE.engine, RULE.version) == ("sglang", "0.5.23")
    assert "sglang" in RULE.source
    assert RULE.page_size == 64
    assert RULE.dispatch_tokens_default == 128  # SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK of 0.5.23
    assert 0 < RULE.reserve_share < 0.2


def test_the_reserve_grows_by_the_graphs_bytes_per_request() -> None:
    capacity = 141e9
    assert float(RULE.reserve(capacity, 0)) == pytest.approx(RULE.reserve_share * capacity)
    for batch in (1, 160, 256, 512):
        grown = float(RULE.reserve(capacity, batch)) - float(RULE.reserve(capacity, 0))
        assert grown == pytest.approx(RULE.graph_bytes_per_request * batch)
    assert RULE.graph_bytes_per_request * 256 == pytest.approx(6.2e9, rel=0.01)  # sglang PR 5634: graphs to 256


def test_a_users_rule_overrides_the_packaged_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    (folder / "engines").mkdir()
    text = CATALOG.data_file("engines", "sglang.yaml").read_text(encoding="utf-8")
    (folder / "engines" / "sglang.yaml").write_text(text.replace("page_size: 64", "page_size: 1"), encoding="utf-8")
    assert memory_rule(Catalog.standard(folder), "sglang").page_size == 1
    assert memory_rule(CATALOG, "sglang").page_size == 64


def test_support_names_its_sources_and_known_families_only() -> None:
    support = RULE.support
    assert all("0.5.23" in source for source in (support.families_source, support.fp4_source, support.fp8_core_source))
    assert "SWITCH_HIDDEN" in support.hidden_source
    for table in (support.families, support.families_without):
        assert set(table) <= {item.backend for item in exchange_backends().exchanges.values()}
        assert {family for families in table.values() for family in families} <= set(FAMILIES)
    assert support.family_runs("deepep", "gpt_oss") is False
    assert support.family_runs("mori", "gpt_oss") is None
    assert support.fp8_core_backend("Blackwell sm_120", "gqa") is None


@given(capacity=st.floats(1e9, 1e12), share=st.floats(0, 1.5), fraction=st.floats(0.1, 1))
def test_a_share_of_the_rest_is_never_less_than_the_rest_of_a_share(
    capacity: float, share: float, fraction: float
) -> None:
    other = share * capacity
    of_free = kv_budget("trtllm", capacity=capacity, other=other, fraction=fraction)
    of_all = kv_budget("vllm", capacity=capacity, other=other, fraction=fraction)
    assert of_free >= of_all - 1e-3
    assert of_all == kv_budget("sglang", capacity=capacity, other=other, fraction=fraction)
    assert (of_free < 0) == (other > capacity)
    assert kv_budget("trtllm", capacity=capacity, other=other, fraction=1.0) == pytest.approx(
        kv_budget("vllm", capacity=capacity, other=other, fraction=1.0)
    )
