"""How SGLang is asked for all-to-alls: every name is one that exists, every choice one that its flags take."""

from __future__ import annotations

import csv
from pathlib import Path

from moeplan.engines.rules.exchange_backends import exchange_backends
from moeplan.specs.exchange import exchange, exchange_names
from moeplan.specs.hf_families import FAMILIES
from moeplan.specs.schedule import schedule

FLAGS = Path(__file__).with_name("sglang_0_5_23_flags.tsv")


def choices(flag: str) -> set[str]:
    with FLAGS.open(encoding="utf-8") as file:
        rows = csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t")
        return next(set(row["choices"].split()) for row in rows if row["flag"] == flag)


def test_every_name_is_known() -> None:
    found = exchange_backends()
    assert set(found.exchanges) < set(exchange_names())
    assert {item.backend for item in found.exchanges.values()} <= choices("--moe-a2a-backend")
    assert {item.mode for item in found.exchanges.values()} - {""} <= choices("--deepep-mode")
    backends = {item.backend for item in found.exchanges.values()}
    assert {name for names in found.architectures.values() for name in names} <= backends
    assert set(found.families) <= backends
    assert {family for families in found.families.values() for family in families} <= set(FAMILIES)
    for name, overlap in found.overlaps.items():
        assert schedule(name).name == name
        assert set(overlap.backends) <= backends
        assert set(overlap.families) <= set(FAMILIES)
    for source in (found.exchanges_source, found.families_source, found.overlaps_source):
        assert "sglang 0.5.23" in source


def test_the_mode_follows_the_kernels() -> None:
    for name, item in exchange_backends().exchanges.items():
        if item.mode:
            assert item.mode == exchange(name).mode.replace("-", "_")


def test_a_backend_runs_where_its_architecture_is_listed() -> None:
    found = exchange_backends()
    assert found.known_on("Blackwell sm_120") == ()
    assert "flashinfer" in found.known_on("Blackwell Ultra")
    assert found.known_on("Ada") == ()
    assert found.exchanges_on("CDNA3") == ["mori-low-latency", "mori-normal"]
    assert found.takes("deepep", "any")
    assert not found.takes("deepep_v2", "glm4_moe")
