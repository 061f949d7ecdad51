"""The throughput article to its last printed digit: stage times, published rows, winners."""

import csv
from pathlib import Path

import numpy as np
import pytest

from moeplan.article.model import ArticleModel, Configuration, nic_rate
from moeplan.article.profile import Switches, article_profile
from moeplan.article.search import Row, walk
from moeplan.kernels.library import article_figures
from moeplan.specs.catalog import Catalog

CATALOG = Catalog.standard()
PROFILE = article_profile(CATALOG)
V0, V1 = "V0 (2025-03-15)", "V1.0 (2025-03-16)"
CX7, E810 = "CX7 400Gbps", "E810 100Gbps"

STAGES = (
    "q_down q_up q_absorb kv_compress attention_front flash_scores flash_values flash_vector flash_mla v_absorb "
    "out_proj attention_back dispatch shared routed combine front layer"
).split()
# Microseconds of one micro-batch (layer: the whole layer), the article's stages in the order of STAGES; then tokens per
# second per user and per card.
GOLDEN = {
    "G1": (
        (V1, "H800", CX7, dict(ep=144, batch=128, kv_bytes=1, linear_bytes=2, q_len=1, dual=True)),
        "0.2406 3.8490 10.2640 5.0518 19.4054 88.2768 78.4683 62.3205 166.7451 10.2640 94.6151 271.6242 "
        "85.4492 17.7025 "
        "82.4354 170.8984 85.4492 879.0176",
        (18.6497315, 2387.1656),
    ),
    "G2": (
        (V1, "H20", CX7, dict(ep=144, batch=32, kv_bytes=1, linear_bytes=1, q_len=2, dual=False)),
        "0.8042 12.8669 34.3117 16.8878 64.8705 180.1758 160.1562 67.3116 340.3320 34.3117 316.2892 690.9329 "
        "85.4492 "
        "118.3553 308.3101 85.4492 118.3553 1267.9180",
        (23.9194245, 765.4216),
    ),
    "G3": (
        (V1, "A100", E810, dict(ep=72, batch=32, kv_bytes=1, linear_bytes=1, q_len=2, dual=False)),
        "0.3815 6.1035 16.2760 8.0109 30.7719 129.8032 115.3806 64.0970 309.2809 16.2760 150.0346 475.5915 "
        "341.7969 "
        "56.1429 292.4993 341.7969 341.7969 1482.4565",
        (20.4578472, 654.6511),
    ),
    "G4": (
        (V0, "H800", CX7, dict(ep=144, batch=128, kv_bytes=1, linear_bytes=2, q_len=1, dual=True)),
        "0.1716 2.6054 7.5138 2.5490 12.8398 71.0586 63.1632 112.5128 183.5714 7.5138 65.5651 256.6503 "
        "85.4492 13.0950 "
        "44.3955 170.8984 85.4492 772.9900",
        (21.2078334, 2714.6027),
    ),
    "G5": (
        (V0, "L40S", CX7, dict(ep=320, batch=112, kv_bytes=1, linear_bytes=1, q_len=1, dual=True)),
        "0.3356 6.3656 17.9432 4.9527 29.5970 83.9337 74.6078 84.6550 243.1965 14.9762 128.4458 386.6185 "
        "74.7681 50.7478 "
        "73.6802 74.7681 80.3449 1081.2871",
        (15.1610446, 1698.0370),
    ),
    "G6": (
        (V0, "L40S", E810, dict(ep=320, batch=32, kv_bytes=1, linear_bytes=1, q_len=2, dual=False)),
        "0.3532 6.7905 19.2148 5.0245 31.3829 95.9243 85.2660 64.7486 245.9389 15.8239 128.7107 390.4735 "
        "341.7969 49.3438 "
        "62.4480 341.7969 341.7969 1167.8982",
        (25.9679036, 415.4865),
    ),
    "G7": (
        (V1, "L20", CX7, dict(ep=72, batch=16, kv_bytes=1, linear_bytes=1, q_len=2, dual=False)),
        "0.9960 15.9355 42.4948 20.9154 80.3417 169.4502 150.6224 25.8101 345.8827 42.4948 594.9268 983.3043 "
        "42.7246 "
        "146.5823 646.7703 42.7246 146.5823 1899.7232",
        (15.9643624, 255.4298),
    ),
}


def model(revision: str, gpu: str, nic: str, switches: Switches | None = None) -> ArticleModel:
    return ArticleModel(
        PROFILE,
        article_figures(CATALOG),
        PROFILE.chips[gpu],
        PROFILE.revisions[revision],
        nic_rate(PROFILE, nic),
        switches or Switches(),
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_stage_times(name: str) -> None:
    (revision, gpu, nic, point), expected, (speed, throughput) = GOLDEN[name]
    article, configuration = model(revision, gpu, nic), Configuration(**point)  # type: ignore[arg-type]
    stages = article.stages(configuration)
    got = {stage: round(float(stages[stage]) * 1e6, 4) for stage in STAGES}
    assert got == dict(zip(STAGES, map(float, expected.split()), strict=True))
    assert float(article.user_speed(configuration)) == pytest.approx(speed, rel=1e-8)
    assert float(article.throughput(configuration)) == pytest.approx(throughput, rel=2e-7)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return walk(CATALOG)


def published() -> list[dict[str, str]]:
    lines = (Path(__file__).parent / "published_rows.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_every_published_row_within_a_millionth(rows: list[Row]) -> None:
    columns = ("revision min_tps gpu nic pipeline ep kv_elem_bytes nonexpert_elem_bytes mtp_len batch_per_gpu").split()
    by_key = {tuple(str(getattr(row, name)) for name in columns): row for row in rows}
    wanted = published()
    assert len(wanted) == 47
    for line in wanted:
        row = by_key[tuple(line[name] for name in columns)]
        assert row.ux_tps == pytest.approx(float(line["ux_tps"]), rel=1e-6)
        assert row.throughput_per_gpu == pytest.approx(float(line["throughput_per_gpu"]), rel=1e-6)


def test_the_winners_are_the_published_ones(rows: list[Row]) -> None:
    """Throughput, not batch: compute-bound stages are linear in batch, so smaller batches tie exactly."""
    winners = {row.group: row for row in rows if row.winner}
    for line in published():
        group = (
            line["revision"],
            int(line["min_tps"]),
            line["gpu"],
            line["nic"],
            int(line["ep"]),
            int(line["nonexpert_elem_bytes"]),
        )
        assert winners[group].throughput_per_gpu == pytest.approx(float(line["throughput_per_gpu"]), rel=1e-6)
        assert winners[group].ux_tps >= int(line["min_tps"])


def test_the_tables_have_72_and_66_rows(rows: list[Row]) -> None:
    """The article's tables: 72 rows for V0, 66 for V1.0, both targets together."""
    winners = [row for row in rows if row.winner]
    assert {name: sum(row.revision == name for row in winners) for name in (V0, V1)} == {V0: 72, V1: 66}


def test_a_winner_is_the_best_of_its_group_by_brute_force(rows: list[Row]) -> None:
    for winner in (row for row in rows if row.winner):
        rivals = [row.throughput_per_gpu for row in rows if row.group == winner.group and row.ux_tps >= winner.min_tps]
        assert winner.throughput_per_gpu == pytest.approx(max(rivals), rel=1e-12)


def test_a_scalar_batch_equals_the_array_element() -> None:
    article = model(V1, "H800", CX7)
    base = dict(ep=144, kv_bytes=1, linear_bytes=1, q_len=2, dual=True)
    array = np.asarray(article.user_speed(Configuration(batch=np.array([16.0, 72.0, 128.0]), **base)))  # type: ignore[arg-type]
    for value, batch in zip(array, (16.0, 72.0, 128.0), strict=True):
        assert float(article.user_speed(Configuration(batch=batch, **base))) == pytest.approx(float(value), rel=1e-14)  # type: ignore[arg-type]


POINT = Configuration(batch=128.0, ep=144, q_len=1, kv_bytes=1, linear_bytes=2, dual=True)


def test_switch_expert_factors() -> None:
    """Off, the experts are at the roofline; on (V0 with it is not published), they slow down by DeepGEMM's factors."""
    off = model(V0, "H800", CX7).stages(POINT)["routed"]
    on = model(V0, "H800", CX7, Switches(expert_mfu=True)).stages(POINT)["routed"]
    flops = 2 * 512 * 7168 * 4096
    memory = (512 * 7168 + 7168 * 4096 + 512 * 4096 * 4) / (3.3 * 2**40)
    gate_up = max(flops / (1979 * 2**40 * 1040 / 1979), memory)
    down_flops, down_bytes = 2 * 512 * 2048 * 7168, 512 * 2048 + 2048 * 7168 + 512 * 7168 * 4
    down = max(down_flops / (1979 * 2**40 * 916 / 1979), down_bytes / (3.3 * 2**40))
    assert float(on) == pytest.approx(2 * (gate_up + down), rel=1e-12)
    assert float(on) > float(off)


def test_switch_a100_curve_off_leaves_the_roofline() -> None:
    plain = model(V1, "H800", CX7, Switches(gemm_mfu=False)).stages(POINT)
    bytes_ = 64 * 16384 * 2 + 16384 * 7168 * 2 + 64 * 7168 * 2
    assert float(plain["out_proj"]) == pytest.approx(bytes_ / (3.3 * 2**40), rel=1e-12)


def test_switch_three_stage_hides_all_softmax() -> None:
    ideal = model(V1, "H800", CX7, Switches(overlap="three-stage")).stages(POINT)
    longest = max(float(ideal["flash_scores"]) + float(ideal["flash_values"]), float(ideal["flash_vector"]))
    assert float(ideal["flash_mla"]) == pytest.approx(longest, rel=1e-12)
    none = model(V1, "H800", CX7, Switches(overlap="none")).stages(POINT)
    assert float(none["flash_mla"]) > float(ideal["flash_mla"])


def test_switch_chunk_pads_reduces_and_rescales() -> None:
    """A 4,096-token SRAM works 5,120 tokens as 8,192; half that SRAM as 6,144 in three chunks, with two rescales."""
    half = model(V1, "A100", CX7, Switches(chunk=2048)).stages(POINT)
    rate = 108 * 16 * 1.41 * 2**30
    vector = 3 * 128 * 6144 / rate + 3 * 0.5e-6 + 2 * 128 * 512 / rate
    assert float(half["flash_vector"]) == pytest.approx(64 * vector, rel=1e-12)
    assert float(half["flash_scores"]) == pytest.approx(64 * 2 * 128 * 6144 * 576 / (312 * 2**40 * 510 / 989), rel=1e-9)


def test_switch_thread_all_reduce() -> None:
    slow = model(V1, "A100", CX7, Switches(thread_all_reduce=2.5e-6)).stages(POINT)
    usual = model(V1, "A100", CX7).stages(POINT)
    assert float(slow["flash_mla"]) - float(usual["flash_mla"]) == pytest.approx(64 * 2e-6, rel=1e-9)
