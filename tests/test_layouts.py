"""Layouts as steps: memory and work are shared out, exchanges cost what they move, one GPU is all layouts at once."""

from __future__ import annotations

import numpy as np
import pytest

from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Cluster
from moeplan.specs.deployment import ALL_GATHER, ALL_REDUCE, Acceptance, Deployment, Precision
from moeplan.specs.parameters import replicated_bytes, weight_bytes

CATALOG = Catalog.standard()


def predictor(model: str = "deepseek-v3", gpu: str = "h200", nics: int = 8) -> Predictor:
    cluster = Cluster(gpu=CATALOG.gpu(gpu), nic=CATALOG.nic("cx7"), gpus_per_node=8, nics_per_node=nics)
    return Predictor.of(CATALOG.model(model), cluster, CATALOG)


def step(asked: Predictor, **sizes: object) -> Prediction:
    defaults: dict[str, object] = {"batch": 8, "context": 4000, "ep": 8}
    deployment = Deployment(
        precision=Precision.of(asked.model),
        acceptance=Acceptance.geometric(0.8, 1, "given"),
        **(defaults | sizes),  # type: ignore[arg-type]
    )
    return asked.evaluate(deployment)


def costs(prediction: Prediction, ffn: str = "moe") -> dict[str, float]:
    group = next(group for group in prediction.groups if group.group.ffn == ffn)
    return {cost.name: float(cost.seconds) for stage in group.layer.stages.values() for cost in stage.costs}


def test_tp_deals_out_all_weights_but_what_every_rank_needs() -> None:
    model = CATALOG.model("deepseek-v3")
    whole, dealt = replicated_bytes(model, mtp=False), replicated_bytes(model, mtp=False, tp=8, shared_tp=8)
    # Whole on every rank: router, norms, and the projections down to the latents, (1536 + 576) x 7168 a layer.
    kept = 61 * 7168 * (1536 + 576) + 58 * 256 * 7168 * 2
    assert dealt == pytest.approx(kept + (whole - kept) / 8, rel=2e-3)
    everything = step(predictor(), ep=1, moe_tp=8, tp=8, exchange=ALL_REDUCE).memory
    assert 8 * (everything.replicated_weights + everything.expert_weights) > weight_bytes(model)


def test_kv_heads_beyond_the_last_are_copies() -> None:
    model = CATALOG.model("qwen3-235b-a22b")  # 4 KV heads of 128
    by = {tp: replicated_bytes(model, mtp=False, tp=tp, shared_tp=tp) for tp in (4, 8)}
    one_head = 2 * 4096 * 128 * 2.0 * model.layer_count  # K and V of one head, bf16
    norms = 94 * (2 * 4096 + 2 * 128) * 2.0 + 4096 * 2.0 + 94 * 128 * 4096 * 2.0
    assert by[8] - norms == pytest.approx((by[4] - norms) / 2 + one_head / 2, rel=1e-6)


def test_a_latent_is_cached_on_every_rank_and_kv_heads_are_dealt() -> None:
    for model, share in (("deepseek-v3", 1.0), ("qwen3-235b-a22b", 0.25)):
        asked = predictor(model)
        alone = step(asked, ep=8, batch=8).memory.kv_cache
        shared = step(asked, ep=8, tp=8, exchange=ALL_REDUCE, batch=8).memory.kv_cache
        assert shared == pytest.approx(share * alone)


def test_the_sums_of_a_layer_are_there_and_nothing_is_sent() -> None:
    found = costs(step(predictor(), tp=8, exchange=ALL_REDUCE))
    assert {"attention_sum", "experts_sum", "routed_experts"} <= found.keys()
    assert not {"dispatch", "combine", "gather_tokens"} & found.keys()
    assert "dense_sum" in costs(step(predictor(), tp=8, exchange=ALL_REDUCE), "dense")


def test_gathering_moves_every_token_everywhere() -> None:
    few, many = (costs(step(predictor(), batch=batch, exchange=ALL_GATHER)) for batch in (256, 512))
    rate = 7 / 8 * 8 * 256 * 7168 * 2 / (many["gather_tokens"] - few["gather_tokens"])
    assert 0.6 < rate / 450e9 < 0.95  # of the link in one direction


def test_an_attention_rank_of_two_gathers_what_it_scattered() -> None:
    found = costs(step(predictor(), tp=2, batch=16))
    assert {"attention_sum", "dispatch", "combine", "gather_rank"} <= found.keys()
    alone = costs(step(predictor(), batch=8))
    assert found["dispatch"] == pytest.approx(alone["dispatch"])  # as many tokens per GPU
    assert found["mla_core"] < 2 * alone["mla_core"]


def test_layouts_agree_on_arrays_and_scalars() -> None:
    asked = predictor()
    for sizes in (
        {"tp": 8, "exchange": ALL_REDUCE},
        {"exchange": ALL_GATHER},
        {"tp": 2},
        {"ep": 1, "moe_tp": 8, "exchange": ALL_GATHER},
    ):
        batches = np.array([1.0, 7.0, 64.0, 300.0])
        together = step(asked, batch=batches, **sizes).seconds
        apart = [float(step(asked, batch=float(batch), **sizes).seconds) for batch in batches]
        assert together == pytest.approx(apart, rel=1e-12)


def test_throughput_counts_every_gpu_of_a_rank() -> None:
    one = step(predictor(), tp=8, exchange=ALL_REDUCE, batch=64)
    assert float(one.tps_per_gpu) == pytest.approx(64 / 8 / float(one.tpot))


def test_heads_or_requests_first_one_then_the_other() -> None:
    """With few requests a rank of all GPUs is the faster, with many each GPU for itself, at any measured efficiency."""
    asked = predictor()
    for total, wins in ((1 * 8, "tep"), (256 * 8, "dep")):
        by_heads = step(asked, tp=8, exchange=ALL_REDUCE, batch=total)
        by_requests = step(asked, batch=total // 8)
        faster = "tep" if by_heads.seconds < by_requests.seconds else "dep"
        assert faster == wins


def test_across_nodes_a_sum_crosses_the_nics() -> None:
    sizes = {"tp": 16, "ep": 16, "exchange": ALL_REDUCE, "batch": 512}
    inside = costs(step(predictor(), tp=8, ep=8, exchange=ALL_REDUCE, batch=512))["experts_sum"]
    eight, one = (costs(step(predictor(nics=nics), **sizes))["experts_sum"] for nics in (8, 1))
    assert inside < eight < one
    card = CATALOG.nic("cx7").effective_rate
    assert one > 2 * (1 / 2) * 512 * 7168 * 2 / card  # half of it, out and back, through the one card
