"""Reading config.json: each family, each trap of their keys, every fault at once, never another exception."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError, Unsupported
from moeplan.specs import hf_config
from moeplan.specs.hf_config import model_from_config
from moeplan.specs.hf_fields import Fields
from moeplan.specs.loading import read_mapping
from moeplan.specs.model import Gqa, LayerGroup, Mla, ModelSpec
from moeplan.specs.parameters import kv_bytes_per_token, parameters, weight_bytes

MODELS = Path(hf_config.__file__).parents[1] / "data" / "models"
CONFIGS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(MODELS.glob("*.json"))
}
INT4 = {
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"group_size": 32, "num_bits": 4, "strategy": "group", "symmetric": True, "type": "int"},
        }
    },
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "quant_method": "compressed-tensors",
}
NVFP4_FILE = {
    "producer": {"name": "modelopt"},
    "quantization": {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "group_size": 16,
        "exclude_modules": ["lm_head", "*self_attn*"],
    },
}


def read(slug: str, *, without: tuple[str, ...] = (), **changes: Any) -> ModelSpec:
    config = {key: value for key, value in {**CONFIGS[slug], **changes}.items() if key not in without}
    return model_from_config(config, name=slug)


def faults(slug: str, *, without: tuple[str, ...] = (), **changes: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        read(slug, without=without, **changes)
    return {fault.path: f"{fault.problem} — {fault.fix}" for fault in caught.value.faults}


def kimi_k2_5() -> dict[str, Any]:
    """Lay out Kimi-K2 as Kimi-K2.5 does: the language model and its int4 experts in text_config."""
    text = {key: value for key, value in CONFIGS["kimi-k2"].items() if key != "tie_word_embeddings"}
    text["quantization_config"] = copy.deepcopy(INT4)
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "dtype": "bfloat16",
        "model_type": "kimi_k25",
        "text_config": text,
        "tie_word_embeddings": False,
        "vision_config": {"vt_hidden_size": 1152},
    }


# --- families ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", CONFIGS)
def test_built_in_is_read_and_says_where_it_is_from(slug: str) -> None:
    config = CONFIGS[slug]
    spec = model_from_config(config, name=config["_name"], repository=config["_repository"])
    assert (spec.name, spec.repository) == (config["_name"], config["_repository"])
    assert spec.name.lower() == slug
    assert spec.family == config["model_type"]
    assert spec.max_position == config["max_position_embeddings"]
    assert config["_repository"] in config["_source"] or "RECONSTRUCTED" in config["_source"]


@pytest.mark.parametrize("slug", CONFIGS)
def test_built_in_holds_only_keys_that_are_read(slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[Fields] = []
    original = Fields.__init__

    def recording(self: Fields, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        readers.append(self)

    monkeypatch.setattr(Fields, "__init__", recording)
    read(slug)
    assert {reader.path for reader in readers} == {""} | {"quantization_config"} & CONFIGS[slug].keys()
    for reader in readers:
        assert {key for key in reader.content if not key.startswith("_")} <= reader.asked.keys()


def test_aliases_are_lower_case_unique_and_of_built_ins() -> None:
    index = read_mapping(MODELS / "index.yaml")
    assert index.keys() == CONFIGS.keys()
    names = [*CONFIGS, *(alias for aliases in index.values() for alias in aliases)]
    assert len(names) == len(set(names))
    assert names == [name.lower() for name in names]
    for slug, aliases in index.items():
        repository = CONFIGS[slug]["_repository"].lower()
        assert {repository, repository.split("/")[1]} <= {slug, *aliases}


def test_deepseek_v3() -> None:
    spec = read("deepseek-v3")
    assert spec.attention == Mla(
        heads=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, q_lora_rank=1536
    )
    assert spec.layers == (LayerGroup(count=3, ffn="dense"), LayerGroup(count=58, ffn="moe"))
    assert spec.experts is not None
    assert (spec.experts.count, spec.experts.top_k, spec.experts.width) == (256, 8, 2048)
    assert (spec.experts.n_group, spec.experts.topk_group, spec.experts.shared_width) == (8, 4, 2048)
    assert spec.experts.selection_bias
    assert (spec.mtp_layers, spec.dense_width, spec.hidden, spec.vocab) == (1, 18432, 7168, 129280)


def test_deepseek_v2_has_no_selection_bias_and_lite_no_query_rank() -> None:
    full, lite = read("deepseek-v2"), read("deepseek-v2-lite")
    assert full.experts is not None
    assert not full.experts.selection_bias
    assert full.experts.shared_width == 2 * 1536
    assert full.mtp_layers == 0
    assert isinstance(lite.attention, Mla)
    assert lite.attention.q_lora_rank is None


def test_kimi_k2_ships_no_mtp_and_has_one_dense_layer() -> None:
    spec = read("kimi-k2")
    assert (spec.family, spec.mtp_layers, spec.layer_count, spec.moe_layer_count) == ("kimi_k2", 0, 61, 60)
    assert spec.experts is not None
    assert (spec.experts.count, spec.experts.n_group) == (384, 1)


def test_qwen3_moe() -> None:
    spec = read("qwen3-30b-a3b")
    assert spec.attention == Gqa(heads=32, kv_heads=4, head_dim=128, qk_norm="head")
    assert spec.layers == (LayerGroup(count=48, ffn="moe"),)
    assert spec.dense_width == 0  # intermediate_size is in the config, but no layer uses it
    assert spec.experts is not None
    assert spec.experts.width == 768


def test_qwen3_moe_dense_layers() -> None:
    spec = read("qwen3-30b-a3b", decoder_sparse_step=2, mlp_only_layers=[1, 3], intermediate_size=6144)
    assert spec.layers == (LayerGroup(count=26, ffn="dense"), LayerGroup(count=22, ffn="moe"))
    assert spec.dense_width == 6144
    assert "intermediate_size" in faults("qwen3-30b-a3b", mlp_only_layers=[0])
    assert "none of 48" in faults("qwen3-30b-a3b", mlp_only_layers=list(range(48)))["decoder_sparse_step"]


def test_qwen3_window_only_where_it_is_used() -> None:
    assert read("qwen3-8b", sliding_window=4096, use_sliding_window=False).layers == (
        LayerGroup(count=36, ffn="dense"),
    )
    assert read("qwen3-8b", sliding_window=None, use_sliding_window=True).layers[0].window is None
    used = read("qwen3-8b", sliding_window=4096, use_sliding_window=True, max_window_layers=28)
    assert used.layers == (LayerGroup(count=28, ffn="dense"), LayerGroup(count=8, ffn="dense", window=4096))
    sparse = read("qwen3-30b-a3b", sliding_window=4096, use_sliding_window=True)
    assert sparse.layers == (LayerGroup(count=48, ffn="moe", window=4096),)


def test_mixtral_derives_the_head_size() -> None:
    spec = read("mixtral-8x7b")
    assert spec.attention == Gqa(heads=32, kv_heads=8, head_dim=128)
    assert spec.experts is not None
    assert (spec.experts.count, spec.experts.top_k, spec.experts.width) == (8, 2, 14336)
    assert read("mixtral-8x7b", sliding_window=4096).layers[0].window == 4096


def test_glm_biases_and_norms() -> None:
    assert read("glm-4.5").attention == Gqa(heads=96, kv_heads=8, head_dim=128, qkv_bias=True, qk_norm="head")
    air = read("glm-4.5-air")
    assert air.attention == Gqa(heads=96, kv_heads=8, head_dim=128, qkv_bias=True)
    assert air.layers == (LayerGroup(count=1, ffn="dense"), LayerGroup(count=45, ffn="moe"))
    assert air.experts is not None
    assert air.experts.selection_bias
    assert air.mtp_layers == 1


def test_minimax_counts_no_mtp_though_its_config_names_some() -> None:
    spec = read("minimax-m2", use_mtp=True, num_mtp_modules=3, attn_type_list=[1] * 62)
    assert spec.mtp_layers == 0
    assert spec.attention == Gqa(heads=48, kv_heads=8, head_dim=128, qk_norm="layer")
    assert spec.experts is not None
    assert (spec.experts.width, spec.experts.shared_width) == (1536, 0)
    assert "linear attention" in faults("minimax-m2", attn_type_list=[0, 1])["attn_type_list"]
    assert "qk_norm_type" in faults("minimax-m2", qk_norm_type="per_token")


def test_gpt_oss_windows_biases_and_sinks() -> None:
    spec = read("gpt-oss-120b")
    assert spec.layers == (LayerGroup(count=18, ffn="moe", window=128), LayerGroup(count=18, ffn="moe"))
    assert spec.attention == Gqa(heads=64, kv_heads=8, head_dim=64, qkv_bias=True, out_bias=True, sinks=True)
    assert spec.experts is not None
    assert spec.experts.router_bias
    assert spec.experts.expert_bias


def test_gpt_oss_contradictions() -> None:
    found = faults("gpt-oss-120b", experts_per_token=5, layer_types=["full_attention"])
    assert "num_experts_per_tok 4" in found["experts_per_token"]
    assert "lists 1 layers" in found["layer_types"]
    assert "sliding_window" in faults("gpt-oss-120b", sliding_window=None)
    assert "did you mean full_attention" in faults("gpt-oss-120b", layer_types=["ful_attention"] * 36)["layer_types"]


def test_llama_and_its_tied_embeddings() -> None:
    spec = read("llama-3.1-8b")
    assert spec.attention == Gqa(heads=32, kv_heads=8, head_dim=128)
    assert not spec.is_moe
    tied = read("llama-3.1-8b", tie_word_embeddings=True)
    assert parameters(spec).total - parameters(tied).total == 128256 * 4096
    assert "mlp_bias" in faults("llama-3.1-8b", mlp_bias=True)


def test_explicit_head_dim_wins() -> None:
    for slug in ("llama-3.1-8b", "mixtral-8x7b", "qwen3-32b"):
        attention = read(slug, head_dim=80).attention
        assert isinstance(attention, Gqa)
        assert attention.head_dim == 80
    assert "do not divide hidden_size" in faults("llama-3.1-8b", num_attention_heads=24)["head_dim"]
    assert isinstance(read("llama-3.1-8b", num_attention_heads=24, head_dim=128).attention, Gqa)


def test_dense_prefix_and_frequency() -> None:
    assert read("deepseek-v3", first_k_dense_replace=0).moe_layer_count == 61
    assert read("deepseek-v3", moe_layer_freq=2).moe_layer_count == 29  # 4, 6, …, 60
    assert "none of 61" in faults("deepseek-v3", first_k_dense_replace=61)["first_k_dense_replace"]


def test_nested_text_config() -> None:
    spec = model_from_config(kimi_k2_5(), name="Kimi-K2.5")
    flat = read("kimi-k2")
    assert (spec.family, spec.layers, spec.attention, spec.experts) == (
        flat.family,
        flat.layers,
        flat.attention,
        flat.experts,
    )
    assert weight_bytes(spec) == 594_205_351_936  # independent count: routed experts int4 with scales, rest bf16
    tied = model_from_config({**kimi_k2_5(), "tie_word_embeddings": True}, name="Kimi-K2.5")
    assert tied.tied_embeddings
    broken = kimi_k2_5()
    del broken["text_config"]["kv_lora_rank"]
    with pytest.raises(InputError, match=r"text_config\.kv_lora_rank: is missing"):
        model_from_config(broken, name="Kimi-K2.5")


def test_quantization_config_beside_text_config() -> None:
    config = kimi_k2_5()
    config["quantization_config"] = config["text_config"].pop("quantization_config")
    assert model_from_config(config, name="Kimi-K2.5") == model_from_config(kimi_k2_5(), name="Kimi-K2.5")


def test_architecture_stands_in_for_a_missing_model_type() -> None:
    assert read("deepseek-v3", without=("model_type",)) == read("deepseek-v3")
    assert read("qwen3-8b", without=("architectures",)) == read("qwen3-8b")
    assert "model_type is 'qwen3'" in faults("qwen3-8b", architectures=["Qwen3MoeForCausalLM"])["architectures"]


# --- formats of weights --------------------------------------------------------------------------------------------


def formats(slug: str, **changes: Any) -> tuple[str, str, str, str]:
    found = read(slug, **changes).formats
    return found.experts, found.linear, found.attention, found.embedding


def test_formats_of_the_built_ins() -> None:
    for slug in ("deepseek-v3", "deepseek-r1", "kimi-k2", "qwen3-235b-a22b-fp8", "minimax-m2"):
        assert formats(slug) == ("fp8_block", "fp8_block", "fp8_block", "bf16")
    for slug in ("deepseek-v2", "qwen3-235b-a22b", "glm-4.5", "mixtral-8x7b", "llama-3.1-8b"):
        assert formats(slug) == ("bf16", "bf16", "bf16", "bf16")
    assert formats("gpt-oss-120b") == ("mxfp4", "bf16", "bf16", "bf16")
    assert formats("deepseek-v3.1-nvfp4") == ("nvfp4", "nvfp4", "bf16", "bf16")
    special = read("deepseek-v3.1-nvfp4").formats
    assert (special.attention_output, special.mtp) == ("nvfp4", "bf16")


def test_fp8_without_blocks_and_with_others() -> None:
    assert formats("glm-4.5", quantization_config={"quant_method": "fp8"}) == ("fp8", "fp8", "fp8", "bf16")
    odd = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    assert "[64, 64]" in faults("glm-4.5", quantization_config=odd)["quantization_config.weight_block_size"]


def test_int4_experts() -> None:
    assert formats("kimi-k2", quantization_config=INT4) == ("int4_g32", "bf16", "bf16", "bf16")


def test_compressed_tensors_fp8_and_unknown() -> None:
    def scheme(**weights: Any) -> dict[str, Any]:
        group = {"targets": ["Linear"], "weights": weights}
        return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}

    fp8 = scheme(num_bits=8, type="float", strategy="channel", group_size=None)
    assert formats("glm-4.5", quantization_config=fp8) == ("fp8", "fp8", "fp8", "bf16")
    block = scheme(num_bits=8, type="float", strategy="block", block_structure=[128, 128])
    assert formats("glm-4.5", quantization_config=block)[0] == "fp8_block"
    odd = faults("glm-4.5", quantization_config=scheme(num_bits=3, type="int", strategy="group", group_size=64))
    assert "int3 per group of 64" in odd["quantization_config.config_groups.group_0.weights.num_bits"]
    two = {**fp8, "config_groups": {"a": {}, "b": {}}}
    assert "quantization_config.config_groups" in faults("glm-4.5", quantization_config=two)


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "", None, 8])
def test_unknown_method_is_never_16_bits(method: object) -> None:
    found = faults("qwen3-30b-a3b", quantization_config={"quant_method": method, "bits": 4})
    assert "mxfp4" in found["quantization_config.quant_method"] or "did you mean" in str(found)


def test_mxfp4_of_a_dense_model_is_a_fault() -> None:
    assert (
        "no experts"
        in faults("qwen3-8b", quantization_config={"quant_method": "mxfp4"})["quantization_config.quant_method"]
    )


def test_unknown_dtype_is_a_fault() -> None:
    assert formats("llama-3.1-8b", torch_dtype="float32") == ("fp32", "fp32", "fp32", "fp32")
    assert formats("llama-3.1-8b", torch_dtype="float16")[0] == "bf16"  # two bytes alike
    assert formats("llama-3.1-8b", without=("torch_dtype",), dtype="torch.bfloat16")[0] == "bf16"
    assert "torch_dtype" in faults("llama-3.1-8b", torch_dtype="float8_e4m3fn")


def test_hf_quant_config_of_nvidia() -> None:
    config = {key: value for key, value in CONFIGS["deepseek-v3"].items() if key != "quantization_config"}
    found = model_from_config(config, name="NVFP4", hf_quant_config=NVFP4_FILE).formats
    assert (found.experts, found.linear, found.attention, found.attention_output) == ("nvfp4", "nvfp4", "bf16", None)
    with pytest.raises(InputError, match=r"contradicts hf_quant_config\.json"):
        model_from_config(CONFIGS["deepseek-v3"], name="NVFP4", hf_quant_config=NVFP4_FILE)
    with pytest.raises(InputError, match=r"hf_quant_config\.quant_method: is missing"):
        model_from_config(config, name="NVFP4", hf_quant_config={"producer": {}})


@pytest.mark.parametrize(
    "ignore", [["self_attn"], ["re:.*self_attn.*"], ["model.layers.*.self_attn"], ["*self_attn*"], ["q_proj", "k_proj"]]
)
def test_exclusions_are_bare_names_regexes_or_globs(ignore: list[str]) -> None:
    config = {"quant_method": "fp8", "modules_to_not_convert": ignore}
    if "q_proj" in ignore:  # but not v_proj
        found = faults("glm-4.5", quantization_config=config)
        assert "not all modules of that kind" in found["quantization_config.modules_to_not_convert"]
    else:
        assert formats("glm-4.5", quantization_config=config) == ("fp8", "fp8", "bf16", "bf16")


def test_exclusion_of_some_layers_and_broken_patterns_are_faults() -> None:
    some = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0"]}
    assert "layers.0" in faults("glm-4.5", quantization_config=some)["quantization_config.modules_to_not_convert"]
    broken = {"quant_method": "fp8", "modules_to_not_convert": ["re:("]}
    assert "no regular" in faults("glm-4.5", quantization_config=broken)["quantization_config.modules_to_not_convert"]


# --- faults --------------------------------------------------------------------------------------------------------


def test_every_missing_key_is_named_at_once() -> None:
    gone = ("hidden_size", "vocab_size", "kv_lora_rank", "num_experts_per_tok", "n_group", "first_k_dense_replace")
    found = faults("deepseek-v3", without=gone)
    assert found.keys() == set(gone)
    assert all(text.startswith("is missing — add") for text in found.values())


@pytest.mark.parametrize("slug", CONFIGS)
def test_config_with_only_its_type_names_every_key_that_the_family_needs(slug: str) -> None:
    with pytest.raises(InputError) as caught:
        model_from_config({"model_type": CONFIGS[slug]["model_type"]}, name=slug)
    named = {fault.path for fault in caught.value.faults}
    assert {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"} <= named
    assert named <= CONFIGS[slug].keys()


def test_misspelt_key() -> None:
    found = faults("llama-3.1-8b", without=("hidden_size",), hiden_size=4096)
    assert found["hidden_size"] == "is missing — is 'hiden_size' meant as hidden_size? rename it"
    found = faults("llama-3.1-8b", without=("tie_word_embeddings",), tie_word_embedding=True)
    assert found["tie_word_embedding"] == "is an unknown key — did you mean tie_word_embeddings?"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-1, "is negative"),
        (0, "less than 1"),
        (math.nan, "wanted a whole number"),
        (math.inf, "wanted a whole number"),
        (7168.0, "write 7168"),
        ("7168", "write 7168 without quotes"),
        ("many", "wanted a whole number"),
        (True, "wanted a whole number"),
        (None, "wanted a whole number"),
        ([7168], "wanted a whole number"),
        (10**30, "beyond any real model"),
        (10**5000, "beyond any real model"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_junk_for_a_number(value: object, words: str) -> None:
    found = faults("deepseek-v3", hidden_size=value)
    assert found.keys() == {"hidden_size"}
    assert words in found["hidden_size"]


def test_rules_between_keys() -> None:
    found = faults("deepseek-v3", num_experts_per_tok=257, n_group=7, topk_group=9)
    assert "257 of 256" in found["num_experts_per_tok"]
    assert "do not divide" in found["n_group"]
    assert "9 of 7" in found["topk_group"]
    assert "do not divide" in faults("qwen3-8b", num_key_value_heads=5)["num_key_value_heads"]
    assert "MLA" in faults("deepseek-v3", attention_bias=True)["attention_bias"]


def test_empty_and_no_mapping() -> None:
    with pytest.raises(InputError, match="is empty"):
        model_from_config({}, name="nothing")
    junk: Any = ["a list"]
    with pytest.raises(InputError, match="wanted a mapping"):
        model_from_config(junk, name="nothing")
    with pytest.raises(InputError, match="model_type: is missing — supported: deepseek_v2"):
        model_from_config({"hidden_size": 4096}, name="nothing")


def test_unknown_architecture_names_the_nearest_and_all() -> None:
    with pytest.raises(Unsupported, match=r"'deepseek_v32'.*did you mean deepseek_v3.*supported: deepseek_v2, .*qwen3"):
        read("deepseek-v3", model_type="deepseek_v32")
    with pytest.raises(Unsupported, match=r"'Qwen3NextForCausalLM'.*supported: .*MixtralForCausalLM"):
        read("qwen3-8b", without=("model_type",), architectures=["Qwen3NextForCausalLM"])


# --- whatever is done to a config ----------------------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(), st.integers(0, 300), st.floats(), st.sampled_from([10**400, -(10**400)]))
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=6,
)
NESTED = {**CONFIGS, "kimi-k2.5": kimi_k2_5()}


def paths(content: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in content.items():
        yield (*above, key)
        if isinstance(value, Mapping):
            yield from paths(value, (*above, key))


def mutate(content: dict[str, Any], path: tuple[str, ...], junk: object, *, drop: bool) -> None:
    for key in path[:-1]:
        inner = content.get(key)
        if not isinstance(inner, dict):
            return
        content = inner
    if drop:
        content.pop(path[-1], None)
    else:
        content[path[-1]] = junk


@settings(max_examples=400, deadline=None)
@given(data=st.data(), slug=st.sampled_from(sorted(NESTED)), times=st.integers(1, 3))
def test_any_mutation_gives_a_model_or_an_input_error(data: st.DataObject, slug: str, times: int) -> None:
    config = copy.deepcopy(NESTED[slug])
    keys = [path for path in paths(config) if not path[-1].startswith("_")]
    for _ in range(times):
        path = data.draw(st.sampled_from(keys))
        mutate(config, path, data.draw(JUNK), drop=data.draw(st.booleans()))
    try:
        spec = model_from_config(config, name=slug)
    except InputError:
        return
    assert 0 < parameters(spec).active <= parameters(spec).total < math.inf
    assert 0 < weight_bytes(spec, mtp=True) < math.inf
    assert kv_bytes_per_token(spec) >= 0


@given(junk=st.dictionaries(st.text(max_size=20), JUNK, max_size=5))
def test_any_mapping_gives_an_input_error(junk: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        model_from_config(junk, name="junk")
