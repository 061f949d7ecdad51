"""What the article takes as given: chips in binary units, revisions, the grid; and the switches it offers."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from msgspec import Struct

from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import AttentionOverlap, Gpu, Memory
from moeplan.specs.loading import build, read_mapping

GI, TI = 2.0**30, 2.0**40


class Chip(Struct, frozen=True, kw_only=True):
    """A GPU as the article models it: Ti bytes/s, Ti FLOP/s, SMs × 16 × Gi clock for the vector unit."""

    memory: float
    fp8: float
    sms: int
    clock: float
    overlap: AttentionOverlap
    weak: bool  # takes FlashMLA's factor of H20
    bf16: float | None = None

    def gpu(self, name: str, *, decimal: bool = False) -> Gpu:
        """The same chip in SI units, as the operators want it; decimal: its figures read as 1e12 and 1e9."""
        giga, tera = (1e9, 1e12) if decimal else (GI, TI)
        rates = {"fp8": self.fp8 * tera} | ({"bf16": self.bf16 * tera} if self.bf16 is not None else {})
        return Gpu(
            name=name,
            vendor="",
            architecture="",
            memory=Memory(capacity=1.0, bandwidth=self.memory * tera),
            compute=rates,
            vector_rate=self.sms * 16 * self.clock * giga,
            attention_overlap=self.overlap,
        )


class Revision(Struct, frozen=True, kw_only=True):
    """One version of the article: its chips, EP sizes, and what it corrects for."""

    chips: tuple[str, ...]
    ep: tuple[int, ...]
    least_rows: int
    mfu: bool
    flash_factor: bool
    chunk: int | None
    per_q: bool


class Grid(Struct, frozen=True, kw_only=True):
    """Everything that the article tries."""

    batch: dict[str, int]
    bytes: tuple[tuple[int, ...], ...]
    q_len: tuple[int, ...]
    pipelines: tuple[str, ...]
    min_tps: tuple[int, ...]

    @property
    def batches(self) -> tuple[int, ...]:
        """128, 120, … 16 requests per card."""
        return tuple(range(self.batch["from"], self.batch["to"] - 1, -self.batch["step"]))


class ArticleProfile(Struct, frozen=True, kw_only=True):
    """data/article/throughput_article.yaml."""

    source: str
    chips: dict[str, Chip]
    nics: dict[str, float]
    revisions: dict[str, Revision]
    grid: Grid
    context: int
    layers: int
    acceptance: float
    thread_all_reduce: Annotated[float, "s"]


class Switches(Struct, frozen=True, kw_only=True):
    """What the article lets one turn; None keeps the revision's own.

    expert_mfu: DeepGEMM's factors for the experts. gemm_mfu: the A100 curve for the other GEMMs. overlap: three-stage
    is its ideal chip. chunk: tokens of a FlashMLA chunk that the SRAM holds; each chunk costs a thread all-reduce and
    a rescale of the output. thread_all_reduce: seconds.
    """

    expert_mfu: bool | None = None
    gemm_mfu: bool | None = None
    overlap: AttentionOverlap | None = None
    chunk: int | None = None
    thread_all_reduce: float | None = None


class Corrections(Struct, frozen=True, kw_only=True):
    """The article's shortcuts put right, one by one; all False is the article.

    decimal_units: rates as datasheets mean them. true_query: 7168 → 1536 → 24576. rows_per_slot: a card's rows shared
    by its experts. naive_q_len: the naive pipeline's experts see q_len too. bf16_combine: combine in 2 bytes always.
    """

    decimal_units: bool = False
    true_query: bool = False
    rows_per_slot: bool = False
    naive_q_len: bool = False
    bf16_combine: bool = False


@lru_cache(maxsize=4)
def article_profile(catalog: Catalog) -> ArticleProfile:
    """Read the article's data file."""
    path = catalog.data_file("article", "throughput_article.yaml")
    return build(ArticleProfile, read_mapping(path), str(path))
