"""The batch article's formulas, the four chains and the operating point, against worked numbers and brute force."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.errors import InputError
from moeplan.explain.batch_article import (
    BatchArticle,
    batch_article,
    distinct_target_ranks,
    gain_of_balancing,
    gain_of_hiding,
    sampling_floor,
    statistical_skew,
    target_ranks,
    tile_waste,
    turning_point,
    turning_tile,
    within,
)
from moeplan.explain.expert_shapes import expert_shapes
from moeplan.explain.four_chains import (
    eager_step,
    experts_covered,
    four_chains,
    full_weight_bytes,
    operators_of,
    weight_traffic,
)
from moeplan.explain.operating_point import LARGEST, MEMORY, PROMISE, TURNING, budget, operating_point
from moeplan.kernels.sources import KernelSources, read_sources
from moeplan.predict import Predictor, dispatchable
from moeplan.routing.coverage import GroupLimit
from moeplan.routing.group_shapes import group_shapes
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision, ScheduleName
from moeplan.specs.parameters import parameters, weight_bytes

CATALOG = Catalog.standard()
HOST = 100e-6  # seconds per operator, for these tests


def article() -> BatchArticle:
    return batch_article(CATALOG)


@cache
def predictor(model: str = "deepseek-v3", gpu: str = "h800", sources: KernelSources | None = None) -> Predictor:
    cluster = cluster_of(CATALOG, gpu, "cx7", None)
    return Predictor.of(CATALOG.model(model), cluster, CATALOG, sources or read_sources("table,fitted,assumed"))


def deployment(target: Predictor, *batches: int, ep: int = 32, context: int = 5000, drafts: int = 0) -> Deployment:
    return Deployment(
        batch=np.array(batches or (1,), dtype=float),
        ep=ep,
        context=context,
        drafts=drafts,
        precision=Precision.of(target.model),
        acceptance=Acceptance.geometric(0.85, 3, "this test"),
    )


# Formulas


def test_the_turning_tile_on_h20() -> None:
    """Batch article: 37 rows at 296 TFLOP/s and 4.0 TB/s, 42 at the measured 280 and 3.33."""
    given = article()
    assert turning_tile(given.peak / given.peak_bandwidth, 1.0) == 37
    assert turning_tile(given.effective_peak / given.bandwidth, 1.0) == pytest.approx(42, abs=0.05)
    gpu = CATALOG.gpu("h20")
    assert turning_tile(gpu.peak("fp8") / gpu.memory.bandwidth, 1.0) == 37


def test_the_turning_point_balances_reading_and_multiplying() -> None:
    """At B* tokens, 2·N_active·B*/F equals W·bpp/bandwidth: 74 · 397 / (2 · 17) = 864 for the article's model."""
    tokens = turning_point(74, 397e9, 17e9)
    assert tokens == pytest.approx(864.06, abs=0.01)
    assert 2 * 17e9 * tokens / 296e12 == pytest.approx(397e9 / 4.0e12)


@pytest.mark.parametrize(("rows", "tile", "waste"), [(5, 64, 12.8), (5, 16, 3.2), (5, 8, 1.6), (64, 64, 1.0)])
def test_tile_waste(rows: float, tile: int, waste: float) -> None:
    """Batch article: ⌈M_e/BM⌉·BM/M_e at M_e = 5."""
    assert tile_waste(rows, tile) == pytest.approx(waste)


def test_target_ranks_of_a_token() -> None:
    """Batch article: 7.18 of EP32 and 3.60 of EP4 (measured there 3.44 to 3.61); for distinct experts 7.27 and 3.61."""
    ranks = np.array([32.0, 4.0])
    assert target_ranks(ranks, 8) == pytest.approx([7.18, 3.60], abs=0.005)
    assert [distinct_target_ranks(rank, 8, 256) for rank in ranks] == pytest.approx([7.27, 3.61], abs=0.005)
    assert distinct_target_ranks(256.0, 8, 256) == pytest.approx(8)  # an expert a rank: none shared
    assert distinct_target_ranks(1.0, 8, 256) == 1


@pytest.mark.parametrize("ep", [1, 2, 4, 8, 16, 64, 256])
def test_target_ranks_under_a_group_limit(ep: int) -> None:
    """DeepSeek-V3: at most 4 of 8 groups, so at EP8 at most 4 ranks; the law of its picks agrees."""
    limit = GroupLimit(count=8, taken=4)
    law = group_shapes(batch=1, ep=ep, experts=256, top_k=8, limit=limit)
    assert distinct_target_ranks(float(ep), 8, 256, limit) == pytest.approx(law.targets)
    assert ep != 8 or 3.6 < float(law.targets) < 4


def test_target_ranks_by_drawing() -> None:
    """Distinct experts, dealt in blocks to 16 ranks."""
    draws = np.argsort(np.random.default_rng(1).random((20_000, 64)), axis=1)[:, :6]
    seen = np.mean([len(set(row)) for row in draws // 4])
    assert distinct_target_ranks(16.0, 6, 64) == pytest.approx(seen, abs=0.02)


def test_balance() -> None:
    """Batch article, EPLB: 1.326 at EP32, CV_e .35, 8 experts; floor 13.4 % at 48 requests; 1.18 on .6 gives 1.10."""
    assert statistical_skew(32, 0.35, 8) == pytest.approx(1.326, abs=0.0005)
    assert float(sampling_floor(32, 48 * 8)) == pytest.approx(0.134, abs=0.0005)
    assert statistical_skew(32, 0.35, 8) / 1.12 == pytest.approx(1.18, abs=0.005)
    assert float(gain_of_balancing(0.6, 1.18)) == pytest.approx(1.10, abs=0.005)
    assert float(gain_of_balancing(0.85, 2.6)) == pytest.approx(2.10, abs=0.005)  # the article prints 2.54
    assert float(gain_of_balancing(0.85, 3.49)) == pytest.approx(2.54, abs=0.005)
    assert float(gain_of_hiding(0.5)) == 2


# The article's measurement


def test_its_throughput_and_time_per_token_agree() -> None:
    for sample in article().samples:
        assert sample.batch / sample.graph == pytest.approx(sample.tokens_per_second, rel=0.011)


def test_limits_on_time_per_token_are_read_off_the_samples_alone() -> None:
    """30 ms: 64 meets it, 128 at 30.9 does not. 10 ms: 8 cards without MTP meet it at 8; 16 and MTP are not needed."""
    tpot = article().tpot
    found = within(tpot, 0.030)
    assert (found.meets, found.misses) == (64, 128)
    assert tpot[128] == pytest.approx(0.0309)
    found = within(tpot, 0.010)
    assert (found.meets, found.misses, article().cards) == (8, 32, 8)
    assert within(tpot, 0.001).meets is None
    assert within(tpot, 1.0).misses is None
    assert within({4: 0.02}, 0.02).meets == 4


def test_the_full_weight_floor_is_one_at_full_coverage_only() -> None:
    """397 GB / 8 / 3.33 TB/s = 14.9 ms; batch 256 at 3.1 times it; batch 1 is faster than the «floor»."""
    given = article()
    assert given.full_weight_floor == pytest.approx(14.9e-3, abs=0.05e-3)
    assert given.over_floor(256) == pytest.approx(3.1, abs=0.05)
    assert given.over_floor(1) < 1
    covered = experts_covered(CATALOG.model("deepseek-v3"), np.array([1.0, 256.0]))
    assert covered[0] < 0.04
    assert covered[1] > 0.99


def test_acceptance_on_random_tokens_is_refused() -> None:
    natural, random = article().accepted
    assert natural.tokens_per_step == pytest.approx(3.09)
    assert random.most == 3.64
    with pytest.raises(InputError, match="random tokens"):
        _ = random.tokens_per_step
    assert article().drafted_step(8) == pytest.approx(5.1 * 3.09 / 8.9)


def test_eager_is_flat_and_gives_the_host_time_of_an_operator() -> None:
    """141 to 146 ms whatever the batch, while the graph's step grows fourfold."""
    given = article()
    assert given.eager_step == pytest.approx(0.1435)
    for sample in given.samples:
        assert sample.eager is None or sample.eager == pytest.approx(given.eager_step, rel=0.02)
    assert given.host_launch == pytest.approx(0.1435 / (60 * 17 + 4))


def test_its_operators_are_counted_as_a_step_is() -> None:
    """What the host's time is divided by: a layer of grouped-query attention and FP8 experts, and a shared expert."""
    target = predictor("qwen3-235b-a22b-fp8", "h20")
    step = target.predict(replace(deployment(target, ep=8), batch=8))
    layers = target.model.layer_count
    outside = article().operators.outside
    assert operators_of(step) == layers * (article().operators.per_layer - 3) + outside


def test_shapes_tell_k_over_e_from_active_over_total() -> None:
    """DeepSeek-V3 takes 3.1 % of its experts and has 5.6 % of its parameters active; Mixtral 25 % and 27.6 %."""
    shapes = {shape.slug: shape for shape in expert_shapes(CATALOG, ["deepseek-v3"])}
    assert (shapes["deepseek-v3"].chosen, shapes["deepseek-v3"].active) == pytest.approx((8 / 256, 0.056), abs=0.0005)
    assert (shapes["mixtral-8x7b"].chosen, shapes["mixtral-8x7b"].active) == pytest.approx((0.25, 0.276), abs=0.0005)
    assert shapes["deepseek-v3"].expert_parameters == 3 * 7168 * 2048
    assert "deepseek-r1" not in shapes  # of the same shape
    assert shapes["llama-3.1-70b"].width == 28672


# The chains


def test_every_column_is_the_scalar_prediction() -> None:
    target = predictor()
    asked = deployment(target, 1, 8, 33, 64)
    chains = four_chains(target, asked, "naive", host_launch=HOST)
    for index, batch in enumerate((1, 8, 33, 64)):
        step = target.predict(replace(asked, batch=batch))
        assert chains.seconds[index] == pytest.approx(float(step.seconds))
        assert chains.tps_per_gpu[index] == pytest.approx(float(step.tps_per_gpu))
        assert chains.kv_bytes[index] == pytest.approx(float(step.memory.kv_cache))
        assert chains.kv_room[index] - chains.kv_bytes[index] == pytest.approx(float(step.memory.free))
        assert chains.weight_bytes[index] == pytest.approx(float(weight_traffic(step)))
        assert chains.eager_seconds[index] == pytest.approx(float(eager_step(step, HOST)))


def test_bytes_of_the_all_to_all_and_the_cache_by_hand() -> None:
    """58 layers, 8 messages of 7,408 B out and 14,336 B back, 31 of 32 leave; 5,056 tokens in pages of 64."""
    target = predictor()
    chains = four_chains(target, deployment(target, 1), "naive", host_launch=HOST)
    assert chains.wire_bytes[0] == pytest.approx(58 * 8 * (7408 + 14336) * 31 / 32)
    assert chains.kv_bytes[0] == 5056 * 61 * 576 * 2


def test_traffic_grows_with_coverage_from_the_experts_hit_to_all_weights() -> None:
    """[C·W_routed + W_shared]·bpp: on one GPU it ends at every weight but the embedding, and starts at k experts."""
    target = predictor("qwen3-30b-a3b", "h200")
    chains = four_chains(target, deployment(target, 1, 4, 64, 4096, ep=1), "naive", host_launch=HOST)
    model = target.model
    table = model.vocab * model.hidden * 2
    every = weight_bytes(model) - table
    assert full_weight_bytes(model) == every
    assert chains.weight_bytes[-1] == pytest.approx(every)
    assert np.all(np.diff(chains.weight_bytes) > 0)
    routed = parameters(model).routed.total * 2
    assert chains.weight_bytes[0] == pytest.approx(every - routed * (1 - 8 / 128))
    assert experts_covered(model, chains.tokens)[:2] == pytest.approx([8 / 128, 1 - (1 - 8 / 128) ** 4])


def test_micro_batches_read_the_layers_they_split_twice() -> None:
    """DeepSeek-V3: all but 3 dense layers and the head, about 22 of 24 GB at full coverage on EP128."""
    target = predictor()
    plain, split = (
        four_chains(target, deployment(target, 512, ep=128), schedule, host_launch=HOST)
        for schedule in ("naive", "two-batch")
    )
    count, layers = parameters(target.model), target.model.layer_count
    head, dense = count.head.bytes_in("bf16"), count.dense.bytes_in("fp8_block")
    attention = (count.attention.bytes_in("fp8_block") + count.norms.bytes_in("bf16")) / layers
    once = head + dense + 3 * attention
    assert split.weight_bytes[0] - once == pytest.approx(2 * (plain.weight_bytes[0] - once), rel=1e-4)
    assert split.tokens[0] == plain.tokens[0] / 2


def test_auto_takes_the_faster_schedule_where_the_batch_allows_it() -> None:
    target = predictor()
    asked = deployment(target, *range(60, 140), ep=128)
    auto, plain = (four_chains(target, asked, name, host_launch=HOST) for name in ("auto", "naive"))
    split = four_chains(target, asked, "two-batch", host_launch=HOST)
    even = auto.batch % 2 == 0
    assert split.batch == pytest.approx(auto.batch[even])
    assert auto.seconds[even] == pytest.approx(np.minimum(plain.seconds[even], split.seconds))
    assert auto.seconds[~even] == pytest.approx(plain.seconds[~even])
    assert set(auto.schedule[~even]) == {"naive"}
    assert auto.schedule[auto.at(128)] == "two-batch"
    single = four_chains(target, asked, "single-batch", host_launch=HOST)
    assert set(single.schedule) == {"single-batch"}
    assert np.all(single.seconds <= plain.seconds)
    with pytest.raises(ValueError, match="no batch of 1000"):
        auto.at(1000)
    with pytest.raises(InputError, match="even batch"):
        four_chains(target, deployment(target, 3), "two-batch", host_launch=HOST)


@pytest.mark.parametrize(("schedule", "operators"), [("naive", 3 * 15 + 58 * 22 + 4), ("two-batch", 45 + 116 * 22 + 4)])
def test_operators_of_a_step_by_hand(schedule: ScheduleName, operators: int) -> None:
    """A dense layer 7 + 4 + 4; a sparse one 7 + 4 + 3 (router) + 3 (shared) + 2 (all-to-alls) + 3; 4 outside."""
    target = predictor()
    asked = replace(deployment(target), batch=64, schedule=schedule)
    assert operators_of(target.predict(asked)) == operators
    assert operators_of(target.predict(replace(asked, drafts=2))) == operators + 2 * (22 + 2)


def test_eager_steps_are_the_hosts_until_the_kernels_take_longer() -> None:
    target = predictor()
    chains = four_chains(target, deployment(target, 1, 16, 4096), "naive", host_launch=HOST)
    assert chains.eager_seconds[:2] == pytest.approx(1325 * HOST)
    assert chains.eager_seconds[2] == chains.seconds[2]


def test_a_dense_model_has_no_expert_chains() -> None:
    target = predictor("llama-3.1-8b", "h100")
    chains = four_chains(target, deployment(target, 1, 2, ep=1), "auto", host_launch=HOST)
    assert np.isnan(chains.rows).all()
    assert (chains.wire_bytes == 0).all()
    assert experts_covered(target.model, chains.tokens).tolist() == [1, 1]
    assert chains.weight_bytes[0] == full_weight_bytes(target.model)


# The operating point


@pytest.mark.parametrize(("ep", "min_tps", "binds"), [(32, 20.0, PROMISE), (128, 20.0, TURNING), (32, 10.0, MEMORY)])
def test_limits_by_brute_force(ep: int, min_tps: float, binds: str) -> None:
    """Single predictions: the largest that keeps the promise, that fits, that the all-to-all takes."""
    target = predictor()
    asked = deployment(target, ep=ep)
    point = operating_point(target, asked, schedule="naive", min_tps=min_tps, host_launch=HOST)
    found = []
    for batch in sorted(
        {*range(1, 260, 16), *(limit + more for limit in (point.promise, point.memory) for more in (0, 1))}
    ):
        step = target.predict(replace(asked, batch=batch))
        kept = float(step.tps_per_user) >= min_tps
        assert kept == (batch <= point.promise)
        assert bool(step.fits) == (batch <= point.memory)
        assert bool(dispatchable(step)) == (batch <= point.all_to_all)
        if kept and bool(step.fits):
            found.append((float(step.tps_per_gpu), batch))
    assert point.all_to_all == target.rule.dispatch_tokens_most
    assert point.best is not None
    assert point.best.tps_per_gpu >= max(found)[0] * (1 - 1e-12)
    assert point.best.batch <= min(point.promise, point.memory)
    assert point.binds == binds
    assert point.at is not None
    assert point.at.batch == int(min(point.limits.values()))
    assert point.next[1] == pytest.approx(sorted(point.limits.values())[1] / min(point.limits.values()))


def test_the_turning_point_is_dealt_over_the_gpus_and_the_tokens_of_a_request() -> None:
    """591 · 671 GB / (2 · 36.6e9) = 5,414 tokens of the group: 169 a GPU on EP32, half of it with one draft."""
    target = predictor()
    gpu, count = target.machine.cluster.gpu, parameters(target.model)
    tokens = gpu.peak("fp8") / gpu.memory.bandwidth * full_weight_bytes(target.model)
    tokens /= 2 * count.active_without_embedding
    assert tokens == pytest.approx(5414, abs=1)
    for drafts in (0, 1):
        asked = deployment(target, drafts=drafts)
        point = operating_point(target, asked, schedule="naive", min_tps=20.0, host_launch=HOST)
        assert point.turning == pytest.approx(tokens / 32 / (1 + drafts))


def test_nothing_keeps_an_impossible_promise_or_fits() -> None:
    target = predictor()
    point = operating_point(target, deployment(target), schedule="auto", min_tps=2000.0, host_launch=HOST)
    assert (point.at, point.best, point.promise, point.binds) == (None, None, 0, PROMISE)
    assert point.next[1] == np.inf
    point = operating_point(target, deployment(target, ep=8), schedule="auto", min_tps=20.0, host_launch=HOST)
    assert (point.best, point.memory, point.binds) == (None, 0, MEMORY)


def test_without_graphs_the_promise_ends_where_the_host_does() -> None:
    """1,325 operators: 20 tok/s need 50 ms, so 37 µs per operator keep it and 38 µs do not."""
    target = predictor()
    quick, slow = (
        operating_point(target, deployment(target), schedule="naive", min_tps=20.0, host_launch=host)
        for host in (37e-6, 38e-6)
    )
    assert quick.eager_promise == quick.promise
    assert slow.eager_promise == 0


def test_every_move_is_the_model_asked_again() -> None:
    target = predictor()
    asked = deployment(target, 1, 64)
    answer = budget(target, asked, schedule="auto", min_tps=20.0, host_launch=HOST)
    moves = {move.change: move.point for move in answer.moves}
    assert list(moves) == ["EP64", "KV fp8", "attention core fp8", "one MTP draft more", "10 % more memory"]
    for change, other in (
        ("EP64", replace(asked, ep=64)),
        ("KV fp8", replace(asked, precision=Precision.of(target.model, kv="fp8"))),
        ("one MTP draft more", replace(asked, drafts=1)),
    ):
        assert moves[change] == operating_point(target, other, schedule="auto", min_tps=20.0, host_launch=HOST)
    roomier = moves["10 % more memory"]
    assert roomier is not None
    assert roomier.memory > answer.point.memory
    assert (roomier.promise, roomier.turning) == (answer.point.promise, answer.point.turning)
    assert answer.chains.batch.tolist() == [1, 64]


def test_moves_that_cannot_be_made_say_why() -> None:
    kimi = predictor("kimi-k2", "h200")
    answer = budget(kimi, deployment(kimi, ep=64), schedule="auto", min_tps=20.0, host_launch=HOST)
    assert "multi-token" in {move.change: move.reason for move in answer.moves}["one MTP draft more"]
    target = predictor()
    asked = replace(deployment(target, drafts=3), redundant=0)
    reasons = {
        move.change: move.reason
        for move in budget(target, replace(asked, ep=256), schedule="auto", min_tps=20.0, host_launch=HOST).moves
    }
    assert "3 rates for 4 drafts" in reasons["one MTP draft more"]
    assert "256 slots" in reasons["EP512"]
    strict = predictor(sources=read_sources("table,fitted,assumed", strict=True))
    reasons = {
        move.change: move.reason
        for move in budget(strict, deployment(strict, ep=128), schedule="auto", min_tps=20.0, host_launch=HOST).moves
    }
    assert "is assumed" in reasons["attention core fp8"]


def test_weights_of_16_bits_can_move_to_8() -> None:
    """Half the bytes at twice the peak: B* stays, memory gives way; on a GPU with fp4 the experts may go further."""
    target = predictor("qwen3-30b-a3b", "b200")
    moves = {
        move.change: move.point
        for move in budget(
            target, deployment(target, ep=8, context=4000), schedule="auto", min_tps=50.0, host_launch=HOST
        ).moves
    }
    point = operating_point(
        target, deployment(target, ep=8, context=4000), schedule="auto", min_tps=50.0, host_launch=HOST
    )
    narrow = moves["weights fp8"]
    assert narrow is not None
    assert narrow.memory > point.memory
    assert narrow.turning == pytest.approx(point.turning, rel=0.08)
    assert moves["experts nvfp4"] is not None


def test_a_limit_that_is_not_found_is_the_largest_batch_tried() -> None:
    target = predictor("llama-3.1-8b", "h100")
    point = operating_point(
        target, deployment(target, ep=1, context=100), schedule="auto", min_tps=0.1, host_launch=HOST
    )
    assert point.promise == point.all_to_all == LARGEST
