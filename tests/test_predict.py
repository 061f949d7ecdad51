"""One decode step: true shapes, sums by hand, what each choice changes, and rules that are refused together."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.errors import InputError, Unsupported
from moeplan.kernels.origin import Origin, worst
from moeplan.ops.cost import Cost
from moeplan.ops.gemm import gemm
from moeplan.predict import GroupTime, Prediction, Predictor, by_stage
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision, ScheduleName

CATALOG = Catalog.standard()
DEEPSEEK = CATALOG.model("deepseek-v3")
ACCEPTANCE = Acceptance.geometric(0.85, 3, "this test")


def predictor(model: str = "deepseek-v3", cluster: str = "h800-cx7") -> Predictor:
    return Predictor.of(CATALOG.model(model), CATALOG.cluster(cluster), CATALOG)


def deployment(model: str = "deepseek-v3", **changes: object) -> Deployment:
    base = Deployment(
        batch=128,
        ep=144,
        context=5000,
        precision=Precision.of(CATALOG.model(model)),
        acceptance=ACCEPTANCE,
    )
    return replace(base, **changes)


def predict(model: str = "deepseek-v3", cluster: str = "h800-cx7", **changes: object) -> Prediction:
    return predictor(model, cluster).predict(deployment(model, **changes))


def costs(group: GroupTime) -> dict[str, Cost]:
    return {cost.name: cost for stage in group.layer.stages.values() for cost in stage.costs}


def shape(cost: Cost) -> tuple[float, ...]:
    return tuple(float(cost.terms[name][0]) for name in ("m", "n", "k"))


def test_the_products_of_a_sparse_layer_of_deepseek_have_their_true_shapes() -> None:
    """Config: hidden 7168, 128 heads of 128 + 64, ranks 1536 and 512, experts of 2048."""
    found = costs(predict().groups[1])
    products = {
        "q_a_kv_a_proj": (128, 1536 + 512 + 64, 7168),
        "q_b_proj": (128, 128 * 192, 1536),
        "q_absorb": (128, 512, 128),
        "v_absorb": (128, 128, 512),
        "o_proj": (128, 7168, 128 * 128),
        "router": (128, 256, 7168),
        "shared_gate_up": (128, 2 * 2048, 7168),
        "shared_down": (128, 7168, 2048),
    }
    for name, expected in products.items():
        assert shape(found[name]) == expected, name
    assert found["q_absorb"].terms["copies"][0] == 128
    for name, n, k in (("routed_gate_up", 4096, 7168), ("routed_down", 7168, 2048)):
        assert shape(found[name])[1:] == (n, k)


def test_expert_rows_of_ep144() -> None:
    """128·144 tokens to 8 of 288 slots, 2 per rank: 512 rows each, and the fullest rank a little more."""
    step = predict()
    assert step.slots is not None
    assert step.load is not None
    assert (step.slots.total, step.slots.per_full_rank) == (288, 2)
    assert step.load.mean_rows_per_slot == 512
    assert step.load.rows == pytest.approx(1024 + 2.62 * np.sqrt(1024), rel=3e-3)  # the largest of 144 normal numbers
    even = predict(load="even")
    assert even.load is not None
    assert even.load.rows == 1024
    assert even.seconds < 1.01 * step.seconds  # within a wave, rows are free


def test_a_dense_layer_has_a_dense_ffn_and_no_all_to_all() -> None:
    dense, sparse = predict().groups
    assert (dense.group.count, sparse.group.count) == (3, 58)
    assert set(dense.layer.stages) == {"attention_front", "attention_back", "dense"}
    assert shape(costs(dense)["dense_gate_up"]) == (128, 2 * 18432, 7168)
    assert set(sparse.layer.stages) == {
        "attention_front",
        "attention_back",
        "dispatch",
        "shared",
        "routed",
        "combine",
    }


@pytest.mark.parametrize("drafts", [0, 1])
def test_a_naive_step_adds_up(drafts: int) -> None:
    step = predict(drafts=drafts)

    def seconds(group: GroupTime, name: str) -> float:
        stage = {str(key): stage for key, stage in group.layer.stages.items()}[name]
        return sum(float(cost.seconds) for cost in stage.costs)

    dense, sparse = step.groups
    layer = {name: seconds(sparse, name) for name in map(str, sparse.layer.stages)}
    one = layer["attention_front"] + layer["attention_back"] + max(layer["dispatch"], layer["shared"])
    one += layer["routed"] + layer["combine"]
    three = 3 * sum(seconds(dense, name) for name in map(str, dense.layer.stages))
    outside = sum(float(cost.seconds) for cost in step.outside)
    assert float(sparse.timeline.seconds) == pytest.approx(one)
    assert step.seconds == pytest.approx(three + 58 * one + outside + float(step.drafting))
    assert sum(float(part) for part in by_stage(sparse).values()) == pytest.approx(one)


def test_one_draft_costs_a_sparse_layer_a_projection_and_a_head() -> None:
    step = predict(drafts=1)
    head = next(cost for cost in step.outside if cost.name == "lm_head")
    weights = step.deployment.precision.linear
    join = gemm("join", predictor().machine, m=256, n=7168, k=2 * 7168, weights=weights)
    layer = step.groups[1].timeline.seconds
    assert float(step.drafting) == pytest.approx(float(layer) + float(head.seconds) + float(join.seconds))
    assert predict().drafting == 0


def test_a_second_draft_takes_one_token_per_request_through_the_module() -> None:
    two, one_token = predict(drafts=2), predict(drafts=0)
    head = next(cost for cost in one_token.outside if cost.name == "lm_head")
    weights = two.deployment.precision.linear
    join = gemm("join", predictor().machine, m=128, n=7168, k=2 * 7168, weights=weights)
    second = float(one_token.groups[1].timeline.seconds) + float(head.seconds) + float(join.seconds)
    first_head = next(cost for cost in two.outside if cost.name == "lm_head")
    first_join = gemm("join", predictor().machine, m=384, n=7168, k=2 * 7168, weights=weights)
    first = float(two.groups[1].timeline.seconds) + float(first_head.seconds) + float(first_join.seconds)
    assert float(two.drafting) == pytest.approx(first + second)


def test_two_batches_run_sparse_layers_with_half_and_dense_ones_whole() -> None:
    step, half, whole = predict(schedule="two-batch"), predict(batch=64), predict()
    dense, sparse = step.groups
    assert float(dense.seconds) == pytest.approx(float(whole.groups[0].seconds))
    for name, stage in sparse.layer.stages.items():
        assert float(stage.seconds) == pytest.approx(float(half.groups[1].layer.stages[name].seconds))
    t = {str(name): float(stage.seconds) for name, stage in sparse.layer.stages.items()}
    taken = {name: float(sparse.layer.stages[name].sm_share) * t[name] for name in ("dispatch", "combine")}
    layer = max(t["dispatch"], t["attention_front"] + t["shared"] + taken["dispatch"]) + t["routed"]
    layer += max(t["combine"], t["attention_back"] + taken["combine"])
    assert float(sparse.timeline.seconds) == pytest.approx(2 * layer)
    assert [float(c.seconds) for c in step.outside] == [float(c.seconds) for c in whole.outside]


def test_speed_and_throughput() -> None:
    step = predict(drafts=1)
    assert step.tokens_per_step == pytest.approx(1.85)
    assert float(step.tps_per_user) == pytest.approx(1.85 / float(step.seconds))
    assert float(step.tpot) == pytest.approx(float(step.seconds) / 1.85)
    assert float(step.tps_per_gpu) == pytest.approx(128 * 1.85 / float(step.seconds))
    assert predict(drafts=2).tokens_per_step == pytest.approx(1 + 0.85 + 0.85**2)


def test_the_whole_step_is_near_what_deepseek_reports() -> None:
    """DeepSeek's report: about 20 to 22 tokens/s per user and 14.8k tokens/s per node of 8 with MTP, EP144."""
    step = predict(schedule="two-batch", drafts=1)
    assert 8 * float(step.tps_per_gpu) == pytest.approx(14_800, rel=0.5)


def test_acceptance() -> None:
    given = Acceptance(rates=(0.8, 0.5), source="given")
    assert given.tokens_per_step(0) == 1.0
    assert given.tokens_per_step(2) == pytest.approx(2.3)
    assert given.tokens_per_step(np.array([0, 1, 2])) == pytest.approx([1.0, 1.8, 2.3])
    with pytest.raises(InputError, match="has 2 rates for 3 drafts"):
        given.tokens_per_step(3)
    for rates in ((1.1,), (-0.1,), (float("nan"),), (0.5, 0.6)):
        with pytest.raises(InputError):
            Acceptance(rates=rates, source="given")


def test_one_gpu_sends_nothing() -> None:
    alone = predict("qwen3-30b-a3b", ep=1, batch=8)
    assert set(alone.groups[0].layer.stages) == {"attention_front", "attention_back", "routed"}
    assert alone.memory.all_to_all_buffer == 0
    assert "dispatch" in predict("qwen3-30b-a3b", ep=2, batch=8).groups[0].layer.stages


def test_a_dense_model_ignores_the_number_of_gpus() -> None:
    one, many = predict("llama-3.1-8b", ep=1, batch=8), predict("llama-3.1-8b", ep=16, batch=8)
    assert one.seconds == many.seconds
    assert one.load is None
    assert one.slots is None


def test_a_window_bounds_the_keys_that_are_seen() -> None:
    """gpt-oss: every other layer sees 128 tokens."""
    short, long = (
        predict("gpt-oss-20b", context=1000, ep=8, batch=8),
        predict("gpt-oss-20b", context=9000, ep=8, batch=8),
    )
    for step in (short, long):
        assert [group.group.window for group in step.groups] == [128, None]
        assert costs(step.groups[0])["gqa_core"].terms["context"][0] == 128
    assert short.groups[0].seconds == long.groups[0].seconds
    assert float(short.groups[1].seconds) < float(long.groups[1].seconds)


def test_a_correction_by_hand_reaches_its_operator_only() -> None:
    plain, slower = predict(), predict(corrections={"o_proj": 2.0})
    o_proj = costs(plain.groups[1])["o_proj"]
    assert float(slower.seconds) - float(plain.seconds) == pytest.approx(61 * float(o_proj.seconds))
    assert costs(slower.groups[1])["o_proj"].origin is Origin.ASSUMED


def test_the_origin_is_the_worst_of_all_operators() -> None:
    step = predict()
    found = [cost.origin for group in step.groups for cost in costs(group).values()]
    assert step.origin is worst(*found, *(cost.origin for cost in step.outside))
    assert costs(step.groups[1])["o_proj"].origin is Origin.MEASURED


def test_formats_of_the_checkpoint_decide_the_wire_and_the_arithmetic() -> None:
    fp8, bf16 = predict("qwen3-235b-a22b-fp8", ep=16), predict("qwen3-235b-a22b", ep=16)
    wire = [float(costs(step.groups[0])["dispatch"].bytes_) for step in (fp8, bf16)]
    assert wire[0] / wire[1] == pytest.approx((4096 + 128 + 16) / (2 * 4096 + 16))
    peaks = [float(costs(step.groups[0])["qkv_proj"].terms["peak"][0]) for step in (fp8, bf16)]
    assert peaks == [1978.9e12, 989.4e12]


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"batch": 0}, "batch", "at least 1|from 1"),
        ({"batch": 1.5}, "batch", "whole"),
        ({"batch": float("nan")}, "batch", "whole"),
        ({"batch": 1e300}, "batch", "1e9"),
        ({"ep": -8}, "ep", "whole"),
        ({"context": float("inf")}, "context", "whole"),
        ({"context": 200_000}, "context", "at most 163840"),
        ({"drafts": -1}, "drafts", "whole"),
        ({"drafts": 0.5}, "drafts", "whole"),
        ({"redundant": -200}, "redundant", "whole"),
        ({"redundant": 1.5}, "redundant", "whole"),
        ({"redundant": 10**6}, "redundant", "at most 36608: every rank then holds every expert"),
        ({"ep": 1, "redundant": 8}, "redundant", "leave it out"),
        ({"schedule": "two-bach"}, "schedule", "did you mean two-batch"),
        ({"schedule": "two-batch", "batch": 7}, "batch", "even"),
        ({"load": "evne"}, "load", "sampled, even"),
        ({"corrections": {"o_proj": 0.0}}, "correct.o_proj", "positive"),
        ({"corrections": {"o_proj": float("nan")}}, "correct.o_proj", "positive"),
    ],
)
def test_a_broken_rule_is_named(changes: dict[str, object], path: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        predict("deepseek-v3", "h800-cx7", **changes)
    assert path in [fault.path for fault in caught.value.faults]


def test_every_broken_rule_is_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        predict("llama-3.1-8b", batch=7, ep=0, schedule="two-batch", drafts=1, context=10**6)
    paths = [fault.path for fault in caught.value.faults]
    assert sorted(paths) == ["batch", "context", "ep", "mtp", "schedule"]


def test_more_drafts_than_rates() -> None:
    with pytest.raises(InputError, match="3 rates for 4 drafts"):
        _ = predict(drafts=4).tps_per_user


def test_too_few_replicas_for_the_ranks() -> None:
    with pytest.raises(InputError, match="at least 64 redundant"):
        predict(ep=320, redundant=0)


@pytest.mark.parametrize(
    ("model", "cluster"), [("deepseek-v3.1-nvfp4", "h800-cx7"), ("deepseek-v3.1-nvfp4", "h20-cx7")]
)
def test_a_precision_that_the_gpu_lacks_is_refused_not_replaced(model: str, cluster: str) -> None:
    with pytest.raises(Unsupported, match="fp4"):
        predict(model, cluster)
    assert float(predict(model, "b200-cx7").seconds) > 0


def test_open_axes_give_the_grid_of_scalars() -> None:
    ep, batch, drafts = np.array([32, 144])[:, None, None], np.array([2, 64, 130])[None, :, None], np.array([0, 1])
    names: tuple[ScheduleName, ...] = ("naive", "two-batch")
    for schedule in names:
        grid = predictor().evaluate(deployment(ep=ep, batch=batch, drafts=drafts[None, None, :], schedule=schedule))
        assert np.shape(grid.seconds) == (2, 3, 2)
        for i, j, k in np.ndindex(2, 3, 2):
            one = predict(ep=int(ep[i, 0, 0]), batch=int(batch[0, j, 0]), drafts=int(drafts[k]), schedule=schedule)
            for together, alone in (
                (grid.seconds, one.seconds),
                (grid.tps_per_gpu, one.tps_per_gpu),
                (grid.memory.total, one.memory.total),
            ):
                value = np.broadcast_to(together, (2, 3, 2))[i, j, k]
                assert value == pytest.approx(float(alone), rel=1e-12)
