"""What each of the article's shortcuts costs: throughput with it put right, over throughput as published."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from moeplan.article.model import ArticleModel, Configuration, nic_rate
from moeplan.article.profile import Corrections, Switches, article_profile
from moeplan.kernels.library import article_figures
from moeplan.specs.catalog import Catalog

REVISION = "V1.0 (2025-03-16)"
CX7, E810 = "CX7 400Gbps", "E810 100Gbps"
# Points of the article's tables, one per chip and way of being bound.
POINTS: tuple[tuple[str, str, Configuration], ...] = (
    ("H800", CX7, Configuration(batch=128, ep=144, q_len=1, kv_bytes=1, linear_bytes=2, dual=True)),
    ("H800", CX7, Configuration(batch=128, ep=144, q_len=1, kv_bytes=1, linear_bytes=1, dual=True)),
    ("H20", CX7, Configuration(batch=32, ep=144, q_len=2, kv_bytes=1, linear_bytes=1, dual=False)),
    ("A100", E810, Configuration(batch=32, ep=72, q_len=2, kv_bytes=1, linear_bytes=1, dual=False)),
    ("L20", CX7, Configuration(batch=16, ep=72, q_len=2, kv_bytes=1, linear_bytes=1, dual=False)),
)
NAMES = {
    "decimal_units": "decimal units: 1979 TFLOPS is 1979e12",
    "true_query": "true query dimensions: 7168 → 1536 → 24576",
    "rows_per_slot": "a card's rows shared by its experts",
    "naive_q_len": "naive pipeline: experts see q_len",
    "bf16_combine": "combine in BF16",
}


class Quirk(Struct, frozen=True, kw_only=True):
    """One shortcut: by point of POINTS, the change of tokens per second per card when it alone is put right."""

    name: str
    changes: tuple[float, ...]


def quirks(catalog: Catalog) -> list[Quirk]:
    """Put right every shortcut alone, then all together."""
    alone = [Corrections(**{name: True}) for name in Corrections.__struct_fields__]
    together = Corrections(**dict.fromkeys(Corrections.__struct_fields__, True))
    result = [
        Quirk(name=NAMES[name], changes=_changes(catalog, corrections))
        for name, corrections in zip(Corrections.__struct_fields__, alone, strict=True)
    ]
    return [*result, Quirk(name="all together", changes=_changes(catalog, together))]


def _changes(catalog: Catalog, corrections: Corrections) -> tuple[float, ...]:
    return tuple(_change(catalog, gpu, nic, point, corrections) for gpu, nic, point in POINTS)


def _change(catalog: Catalog, gpu: str, nic: str, point: Configuration, corrections: Corrections) -> float:
    profile = article_profile(catalog)
    revision, rate = profile.revisions[REVISION], nic_rate(profile, nic)
    published = ArticleModel(profile, article_figures(catalog), profile.chips[gpu], revision, rate, Switches())
    right = replace(published, corrections=corrections)
    return float(right.throughput(point)) / float(published.throughput(point)) - 1
