"""What the article's shortcuts cost, and its TP argument."""

import pytest

from moeplan.article.model import ArticleModel, Configuration, nic_rate
from moeplan.article.profile import Corrections, Switches, article_profile
from moeplan.article.quirks import POINTS, quirks
from moeplan.article.tensor_parallel import half_batch, two_way
from moeplan.kernels.library import article_figures
from moeplan.ops.machine import Machine
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster

CATALOG = Catalog.standard()
V1 = "V1.0 (2025-03-16)"


def model(gpu: str, corrections: Corrections) -> ArticleModel:
    profile = article_profile(CATALOG)
    rate = nic_rate(profile, "CX7 400Gbps")
    figures = article_figures(CATALOG)
    return ArticleModel(profile, figures, profile.chips[gpu], profile.revisions[V1], rate, Switches(), corrections)


POINT = Configuration(batch=128, ep=144, q_len=1, kv_bytes=1, linear_bytes=1, dual=True)


def test_decimal_units_slow_every_stage_by_the_ratio_of_its_unit() -> None:
    published, decimal = (model("H800", c).stages(POINT) for c in (Corrections(), Corrections(decimal_units=True)))
    tera, giga = 2**40 / 1e12, 2**30 / 1e9
    assert float(decimal["routed"]) / float(published["routed"]) == pytest.approx(tera, rel=1e-12)
    assert float(decimal["flash_scores"]) / float(published["flash_scores"]) == pytest.approx(tera, rel=1e-12)
    assert float(decimal["dispatch"]) / float(published["dispatch"]) == pytest.approx(giga, rel=1e-12)


def test_shared_rows_halve_the_rows_of_two_local_experts() -> None:
    """EP144: two experts a card; each gets 4·b rows instead of 8·b."""
    shared = model("H800", Corrections(rows_per_slot=True)).stages(POINT)
    rows, peak, memory = 256, 1979 * 2**40, 3.3 * 2**40
    gate_up = max(2 * rows * 7168 * 4096 / (peak * 932 / 1979), (rows * 7168 + 7168 * 4096 + rows * 4096 * 4) / memory)
    down = max(2 * rows * 2048 * 7168 / (peak * 815 / 1979), (rows * 2048 + 2048 * 7168 + rows * 7168 * 4) / memory)
    assert float(shared["routed"]) == pytest.approx(2 * (gate_up + down), rel=1e-12)


def test_bf16_combine_doubles_it_for_one_byte_weights_only() -> None:
    corrected = model("H800", Corrections(bf16_combine=True)).stages(POINT)
    assert float(corrected["combine"]) == pytest.approx(8 * 64 * 7168 * 2 / (40 * 2**30), rel=1e-12)


def test_naive_experts_see_both_tokens() -> None:
    naive = Configuration(batch=32, ep=144, q_len=2, kv_bytes=1, linear_bytes=1, dual=False)
    published, corrected = (model("H20", c).stages(naive) for c in (Corrections(), Corrections(naive_q_len=True)))
    doubled = Configuration(batch=64, ep=144, q_len=1, kv_bytes=1, linear_bytes=1, dual=False)
    assert float(corrected["routed"]) == pytest.approx(float(model("H20", Corrections()).stages(doubled)["routed"]))
    assert float(corrected["routed"]) > float(published["routed"])


def test_the_table_has_a_column_per_point_and_all_together_is_not_the_sum() -> None:
    found = quirks(CATALOG)
    assert len(found) == 6
    assert {len(quirk.changes) for quirk in found} == {len(POINTS)}
    decimal = found[0]
    assert all(-0.0995 < change < -0.06 for change in decimal.changes)  # 2^40/1e12 is 1.0995, 2^30/1e9 is 1.0737


def machine(gpu: str) -> Machine:
    cluster = Cluster(gpu=CATALOG.gpu(gpu), nic=CATALOG.nic("cx7"), gpus_per_node=8, nics_per_node=8)
    return Machine.of(cluster, CATALOG)


def test_tp_two_halves_the_output_projection_and_reduces_its_result() -> None:
    v3 = CATALOG.model("deepseek-v3")
    two = {cost.name: cost for cost in two_way(machine("h20"), v3, batch=128, q_len=1, context=5000).costs}
    assert two["o_proj"].flops == 2 * 128 * 7168 * 8192
    assert two["q_a_kv_a_proj"].flops == 2 * 128 * 2112 * 7168  # the latent projections are whole on both
    assert two["mla_core"].bytes_ == 128 * 5000 * 576 * 2  # and so is the cache
    wire = 128 * 7168 * 2
    assert 2.5e-6 + wire / 450e9 < float(two["all_reduce"].seconds) < 12e-6 + wire / (450e9 * 0.6)


def test_where_the_argument_holds_and_where_it_turns() -> None:
    """On H20 TP 2 wins at 32 requests and loses at 128; on H800 it loses from 64 on."""
    v3 = CATALOG.model("deepseek-v3")

    def change(gpu: str, batch: int) -> float:
        half = half_batch(machine(gpu), v3, batch=batch, q_len=1, context=5000).seconds
        return two_way(machine(gpu), v3, batch=batch, q_len=1, context=5000).seconds / half - 1

    assert change("h20", 32) < -0.05
    assert change("h20", 128) > 0
    assert change("h800", 32) < 0 < change("h800", 64)
