"""A Hugging Face config.json -> ModelSpec: every fault at once, an unknown architecture or format never guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from moeplan.errors import Fault, InputError, Unsupported, suggestion
from moeplan.specs.hf_families import FAMILIES, Architecture
from moeplan.specs.hf_fields import Fields
from moeplan.specs.hf_quantization import base_format, weight_formats
from moeplan.specs.model import LayerGroup, ModelSpec, WeightFormats

_WHERE: Final = "config.json"


def model_from_config(
    config: Mapping[str, Any],
    *,
    name: str,
    repository: str = "",
    hf_quant_config: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """Read the config.json of a language model (of the families in `FAMILIES`).

    hf_quant_config: the content of hf_quant_config.json, which NVIDIA ships instead of quantization_config. A config
    that nests the language model in text_config (Kimi-K2.5) is read there; vision parts are not counted. Keys that
    start with «_» are comments. Counts and widths are plain numbers, as in the file.

    Raises InputError that names every missing, ill-typed, out-of-range or contradictory key with its path;
    Unsupported for an architecture that is not modelled, with the nearest that is.
    """
    where = f"{_WHERE} of {name}"
    if not isinstance(config, Mapping) or not config:
        problem = "is empty" if isinstance(config, Mapping) else f"is a {type(config).__name__}, wanted a mapping"
        raise InputError(where, [Fault(_WHERE, problem, "give the model's published config.json")])
    top = Fields(config)
    text = top if "num_hidden_layers" in config else top.section("text_config") or top
    family = _family(where, text)
    architecture = FAMILIES[family].read(text)
    hidden, vocab = text.whole("hidden_size"), text.whole("vocab_size")
    max_position = text.whole_or_null("max_position_embeddings")
    tied = (top if top.has("tie_word_embeddings") else text).flag("tie_word_embeddings", default=False)
    formats = _formats(text, top, architecture, hf_quant_config)
    text.finish()
    if text is not top:
        top.finish()
    if top.faults:
        raise InputError(where, top.faults)
    return ModelSpec(
        name=name,
        family=family,
        repository=repository,
        hidden=hidden,
        vocab=vocab,
        layers=_grouped(architecture.layers),
        attention=architecture.attention,
        dense_width=architecture.dense_width,
        experts=architecture.experts,
        formats=formats,
        mtp_layers=architecture.mtp_layers,
        tied_embeddings=tied,
        max_position=max_position,
    )


def _family(where: str, fields: Fields) -> str:
    """Return the model_type; `architectures` stands in where it is missing and must not contradict it."""
    named = fields.words("architectures")
    model_type = fields.content.get("model_type") if fields.has("model_type") else None
    if model_type is None and named:
        known = {family.architecture: key for key, family in reversed(FAMILIES.items())}
        found = next((known[name] for name in named if name in known), None)
        if found is None:
            raise _unsupported(where, fields, "architectures", named[0], known)
        return found
    if not isinstance(model_type, str):
        problem = "is missing" if model_type is None else f"holds a {type(model_type).__name__}, wanted text"
        fields.fault("model_type", problem, f"supported: {', '.join(sorted(FAMILIES))}")
        raise InputError(where, fields.faults)
    if model_type not in FAMILIES:
        raise _unsupported(where, fields, "model_type", model_type, FAMILIES)
    expected = FAMILIES[model_type].architecture
    if named and expected not in named:
        problem = f"holds {named[0]!r}, but model_type is {model_type!r}"
        fields.fault("architectures", problem, f"a {model_type} model is a {expected}")
    return model_type


def _unsupported(where: str, fields: Fields, key: str, name: str, known: Mapping[str, object]) -> Unsupported:
    near = suggestion(name, known)
    fix = f"{near} supported: {', '.join(sorted(known))}".strip()
    path = f"{fields.path}.{key}" if fields.path else key
    return Unsupported(where, [Fault(path, f"{name!r:.80} is not an architecture that is modelled", fix)])


def _formats(
    text: Fields, top: Fields, architecture: Architecture, hf_quant_config: Mapping[str, Any] | None
) -> WeightFormats:
    """Read quantization_config (beside the text model's keys or at top level) and hf_quant_config.json."""
    base = base_format(text if text.has("dtype") or text.has("torch_dtype") else top)
    holder = text if text.has("quantization_config") else top
    section = holder.section("quantization_config")
    formats = weight_formats(section, architecture, base)
    if hf_quant_config is None:
        return formats
    wrapped = Fields({"hf_quant_config": hf_quant_config}, faults=top.faults)
    other = weight_formats(wrapped.section("hf_quant_config"), architecture, base)
    if section is not None and other != formats:
        holder.fault("quantization_config", "contradicts hf_quant_config.json", "give the one that the weights follow")
    return other


def _grouped(layers: Sequence[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Merge equal layers into groups, in the order of their first members."""
    every = list(layers)
    return tuple(replace(layer, count=every.count(layer)) for layer in dict.fromkeys(every))
