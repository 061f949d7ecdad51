"""quantization_config of a Hugging Face checkpoint -> formats of its weights, module lists and all.

A method or scheme that is not known is a fault, never 16 bits.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from moeplan.specs.hf_families import Architecture
from moeplan.specs.hf_fields import Fields, short
from moeplan.specs.model import Mla, WeightFormats

_DTYPES: Final = {"bfloat16": "bf16", "float16": "bf16", "float32": "fp32"}
_BLOCK: Final = (128, 128)
_ROOTS: Final = ("model", "language_model.model", "model.language_model")


def base_format(fields: Fields) -> str:
    """Return the format of unquantised weights, from dtype or torch_dtype; bf16 where neither is given (gpt-oss)."""
    key = "dtype" if fields.has("dtype") else "torch_dtype"
    names = (*_DTYPES, *(f"torch.{name}" for name in _DTYPES))
    return _DTYPES[fields.word(key, names, default="bfloat16").removeprefix("torch.")]


class Scheme(Struct, frozen=True, kw_only=True, eq=False):
    """A storage format, the modules that keep the base format, and the key that lists them."""

    weights: str
    excluded: tuple[str, ...] = ()
    key: str = "ignore"


def weight_formats(config: Fields | None, architecture: Architecture, base: str) -> WeightFormats:
    """Return the format of each kind of weight; norms, router, embedding and head stay unquantised.

    config: the reader of quantization_config (or of NVIDIA's hf_quant_config.json), or None; faults go to it. Modules
    that the checkpoint excludes keep `base`; a kind excluded in some layers only is a fault, for one format per kind is
    all that is modelled.
    """
    plain = WeightFormats(experts=base, linear=base, attention=base, embedding=base)
    if config is None:
        return plain
    nested = config.section("quantization")  # hf_quant_config.json
    reader, method = (nested, "modelopt") if nested else (config, config.word("quant_method", tuple(_METHODS)))
    if not config.sound("quant_method"):
        return plain
    scheme = _METHODS[method](reader)
    reader.finish()
    if method == "mxfp4":  # transformers and the engines quantise the experts of gpt-oss only, whatever the list says
        if architecture.experts is None:
            config.fault("quant_method", "is 'mxfp4', but the model has no experts", "mxfp4 is a format of experts")
        return replace(plain, experts=scheme.weights)
    return _apply(reader, scheme, architecture, plain)


def _apply(reader: Fields, scheme: Scheme, architecture: Architecture, plain: WeightFormats) -> WeightFormats:
    matches = _matcher(reader, scheme)
    formats = dict.fromkeys(("experts", "linear"), scheme.weights)
    for kind, names in _modules(architecture).items():
        kept = [matches(name) for name in names]
        formats[kind] = plain.embedding if all(kept) else scheme.weights
        if any(kept) and not all(kept):
            problem = f"excludes {names[kept.index(True)]} but not all modules of that kind"
            reader.fault(scheme.key, problem, "one format per kind of weight is supported")
    output, mtp = formats["attention_output"], None
    if architecture.mtp_layers and matches(f"layers.{len(architecture.layers)}.mlp.experts.0.down_proj"):
        mtp = plain.embedding
    return WeightFormats(
        experts=formats["experts"],
        linear=formats["linear"],
        attention=formats["attention"],
        attention_output=output if output != formats["attention"] else None,
        mtp=mtp,
        embedding=plain.embedding,
    )


def _exclusions(config: Fields, *keys: str) -> dict[str, Any]:
    """Return the first of the keys that is there, and what it lists."""
    key = next((key for key in keys if config.has(key)), keys[0])
    return {"key": key, "excluded": config.words(key)}


def _fp8(config: Fields) -> Scheme:
    config.word("fmt", ("e4m3", "float8_e4m3fn"), default="e4m3")
    rest = _exclusions(config, "modules_to_not_convert", "ignored_layers")
    if not config.has("weight_block_size"):
        return Scheme(weights="fp8", **rest)
    _expect_block(config, "weight_block_size")
    return Scheme(weights="fp8_block", **rest)


def _mxfp4(config: Fields) -> Scheme:
    return Scheme(weights="mxfp4", **_exclusions(config, "modules_to_not_convert"))


def _modelopt(config: Fields) -> Scheme:
    rest = _exclusions(config, "exclude_modules", "ignore")
    if config.word("quant_algo", ("NVFP4", "FP8")) == "FP8":
        return Scheme(weights="fp8", **rest)
    config.expect("group_size", 16, "but NVFP4 has one scale per 16")
    return Scheme(weights="nvfp4", **rest)


def _compressed_tensors(config: Fields) -> Scheme:
    rest = _exclusions(config, "ignore")
    groups = config.section("config_groups")
    if groups is None or len(groups.content) != 1:
        config.fault("config_groups", "is not exactly one group of modules", "one scheme per model is supported")
        return Scheme(weights="bf16", **rest)
    group = groups.section(next(iter(groups.content)))
    weights = group.section("weights") if group else None
    if group is None or weights is None:
        config.fault("config_groups", "says nothing about weights", "give its one group «weights: …»")
        return Scheme(weights="bf16", **rest)
    if set(group.words("targets")) - {"Linear"}:
        group.fault("targets", "names modules one by one", "only «Linear» with an ignore list is supported")
    return Scheme(weights=_tensor_scheme(weights), **rest)


_METHODS: Final[dict[str, Callable[[Fields], Scheme]]] = {
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": _mxfp4,
}
_TENSORS: Final = {  # compressed-tensors: type, num_bits, strategy, group_size -> format
    ("float", 8, "tensor", None): "fp8",
    ("float", 8, "channel", None): "fp8",
    ("float", 8, "block", None): "fp8_block",
    ("int", 8, "channel", None): "int8",
    ("int", 4, "group", 32): "int4_g32",
    ("float", 4, "tensor_group", 16): "nvfp4",
    ("float", 4, "group", 32): "mxfp4",
}


def _tensor_scheme(weights: Fields) -> str:
    bits, kind = weights.whole("num_bits", most=64), weights.word("type", ("int", "float"))
    strategy = weights.word("strategy", ("tensor", "channel", "block", "group", "tensor_group"))
    size = weights.whole_or_null("group_size", least=-1)
    if strategy == "block":
        _expect_block(weights, "block_structure")
    found = _TENSORS.get((kind, bits, strategy, size))
    if found is None and weights.sound("num_bits", "type", "strategy", "group_size"):
        text = f"{kind}{bits} per {strategy}" + (f" of {size}" if size else "")
        weights.fault("num_bits", f"{text} is no known format", f"known: {', '.join(sorted(set(_TENSORS.values())))}")
    return found or "bf16"


def _expect_block(config: Fields, key: str) -> None:
    if config.wholes(key, most=1 << 20) != _BLOCK:
        config.fault(key, f"holds {short(config.content.get(key))}", "only blocks of [128, 128] are supported")


def _modules(architecture: Architecture) -> dict[str, list[str]]:
    """Names of modules by kind, one of each sort and layer, as written after the root («model.»)."""
    inputs: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    if isinstance(architecture.attention, Mla):
        query = ("q_proj",) if architecture.attention.q_lora_rank is None else ("q_a_proj", "q_b_proj")
        inputs = (*query, "kv_a_proj_with_mqa", "kv_b_proj")
    kinds: dict[str, list[str]] = {"attention": [], "attention_output": []}
    shared = architecture.experts is not None and architecture.experts.shared_width > 0
    for index, layer in enumerate(architecture.layers):
        kinds["attention"] += [f"layers.{index}.self_attn.{name}" for name in inputs]
        kinds["attention_output"].append(f"layers.{index}.self_attn.o_proj")
        if layer.ffn == "dense":
            kinds.setdefault("linear", []).append(f"layers.{index}.mlp.down_proj")
            continue
        kinds.setdefault("experts", []).append(f"layers.{index}.mlp.experts.0.down_proj")
        if shared:
            kinds.setdefault("linear", []).append(f"layers.{index}.mlp.shared_experts.down_proj")
    return kinds


def _matcher(reader: Fields, scheme: Scheme) -> Callable[[str], bool]:
    """Return whether a module (its name after the root) is excluded.

    An entry is a regex («re:…», Kimi), a glob (gpt-oss), a full name (Qwen) or a bare part of one (MiniMax).
    """
    regexes = [entry.removeprefix("re:") for entry in scheme.excluded if entry.startswith("re:")]
    globs = [entry for entry in scheme.excluded if "*" in entry and not entry.startswith("re:")]
    regexes += [fnmatch.translate(entry + tail) for entry in globs for tail in ("", ".*")]
    try:
        patterns = [re.compile(regex) for regex in regexes]
    except (re.error, RecursionError, OverflowError) as error:
        reader.fault(scheme.key, f"holds a pattern that is no regular expression: {error}")
        patterns = []
    plain = frozenset(scheme.excluded)
    if not plain:
        return lambda _name: False

    def matches(name: str) -> bool:
        names = [f"{root}.{form}" for root in _ROOTS for form in (name, name.replace(".mlp.", ".block_sparse_moe."))]
        return any(not plain.isdisjoint(_parts(full)) or any(p.match(full) for p in patterns) for full in names)

    return matches


def _parts(name: str) -> list[str]:
    """Every run of whole components of a dotted name."""
    words = name.split(".")
    return [".".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
