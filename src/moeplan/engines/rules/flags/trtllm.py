"""TensorRT-LLM's flags and configuration file as a layout: the file wins over the command line."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import Struct

from moeplan.engines.rules.flags.reading import Broken, Reading

DEFAULT_GRAPH = 128
DEFAULTS = {"max_batch_size": 2048, "max_num_tokens": 8192}
READ_KEYS = {  # nested keys that are read, in parts of the file whose other keys are not listed
    "moe_config": ("backend", "load_balancer"),
    "kv_cache_config": ("free_gpu_memory_fraction", "dtype"),
    "speculative_config": ("decoding_type", "num_nextn_predict_layers", "max_draft_len", "max_total_draft_tokens"),
}


class FileReading(Struct):
    """The reading of the flags under the content of the file of --config."""

    flags: Reading
    file: Mapping[str, Any]
    experts: int | None

    def value(self, key: str) -> Any:
        """What the file says, else the command line; Broken where it is not readable."""
        if self.file.get(key) is not None:
            return self.file[key]
        return self.flags.value(key) if self.flags.has(key) else None

    def whole(self, key: str, default: int) -> int:
        """A whole number from 1, or the default with a note."""
        value = self.value(key)
        if value is not None:
            return self.flags.at_least(key, value, 1)
        self.flags.note(f"{key} not given: {default} (default of {self.flags.parsed.book.title})")
        return default

    def size(self, key: str) -> int:
        """A number of GPUs, 1 where it is not given."""
        value = self.value(key)
        return 1 if value is None else self.flags.at_least(key, value, 1)

    def switch(self, key: str) -> bool:
        """Whether a key is true."""
        value = self.value(key)
        if value is not None and not isinstance(value, bool):
            self.flags.fault(key, f"holds {value!r}", "give true or false")
            raise Broken(key)
        return bool(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A part of the file, empty where it is not there."""
        value = self.file.get(key)
        return {} if value is None else self.flags.as_mapping(key, value)


def read_trtllm(reading: Reading, file: Mapping[str, Any], experts: int | None) -> None:
    """Fill the fields of a LaunchedLayout; `experts` of the model, as num_slots counts all slots."""
    both = FileReading(reading, file, experts)
    for part in (_near_misses, _parallel, _experts, _speculation, _running, _graphs, _memory):
        reading.part(lambda _, part=part: part(both))  # type: ignore[misc]  # bound now, called at once


def _near_misses(r: FileReading) -> None:
    """Parts of the file whose keys are not all known: one that nearly is a key that matters is a slip of the pen."""
    for part, keys in READ_KEYS.items():
        for key in r.mapping(part):
            near = get_close_matches(str(key), keys, n=1, cutoff=0.85)
            if near and near[0] != key:
                r.flags.fault(f"{part}.{key}", "is no key that is known", f"did you mean {near[0]}?")


def _parallel(r: FileReading) -> None:
    """tensor_parallel_size GPUs cut the attention, or are attention-DP ranks, all of them, with enable_attention_dp."""
    width, pp, cp = (r.size(f"{name}_parallel_size") for name in ("tensor", "pipeline", "context"))
    each = r.value("gpus_per_node")
    nodes = 1 if each is None else -(-width * pp * cp // r.flags.at_least("gpus_per_node", each, 1))
    wide = r.switch("enable_attention_dp")
    if not wide:
        r.flags.note("enable_attention_dp not given: false, the attention is cut over tensor_parallel_size")
    r.flags.fields.update(tp=1 if wide else width, dp=width if wide else 1, cp=cp, pp=pp, nodes=nodes, width=width * cp)


def _experts(r: FileReading) -> None:
    """moe_tensor_parallel_size · moe_expert_parallel_size = tensor_parallel_size; the one not given is the rest."""
    width, parts = r.flags.fields["width"], {}
    for key in ("moe_expert_parallel_size", "moe_tensor_parallel_size", "moe_cluster_parallel_size"):
        value = r.value(key)
        parts[key] = None if value in (None, -1) else r.flags.at_least(key, value, 1)
    ep, moe_tp, cluster = parts.values()
    cluster = cluster or 1
    if ep is None and moe_tp is None:
        r.flags.note(f"no moe_expert_parallel_size: each expert is cut over {width} GPUs, there is no EP")
        ep, moe_tp = 1, max(width // cluster, 1)
    elif moe_tp is None:
        assert ep is not None
        moe_tp = max(width // (ep * cluster), 1)
    elif ep is None:
        ep = max(width // (moe_tp * cluster), 1)
    if ep * moe_tp * cluster != width:
        first = "moe_expert_parallel_size" if parts["moe_expert_parallel_size"] else "moe_tensor_parallel_size"
        problem = f"EP {ep} × moe_tp {moe_tp}" + f" × cluster {cluster}" * (cluster > 1) + f" is not {width}"
        r.flags.fault(first, problem, "their product is tensor_parallel_size; give divisors")
    exchange = _exchange(r, ep)
    r.flags.fields.update(ep=ep, moe_tp=moe_tp * cluster, all_to_all=exchange, redundant=_redundant(r))
    r.flags.fields.update(eplb=bool(r.mapping("moe_config").get("load_balancer")))


def _exchange(r: FileReading, ep: int) -> str:
    if ep == 1 or r.flags.fields["dp"] == 1:
        return "none"
    backend = str(r.mapping("moe_config").get("backend") or "AUTO")
    r.flags.note(f"moe_config.backend {backend}: which all-to-all it takes depends on the GPUs, the server chooses")
    return backend.lower()


def _redundant(r: FileReading) -> int:
    balancer = r.mapping("moe_config").get("load_balancer")
    if isinstance(balancer, str):
        fix = "write its keys under moe_config.load_balancer"
        r.flags.fault("moe_config.load_balancer", f"names the file {balancer}, which is not read", fix)
        raise Broken("load_balancer")
    slots = None if balancer is None else r.flags.as_mapping("moe_config.load_balancer", balancer).get("num_slots")
    if slots is None:
        return 0
    slots = r.flags.at_least("moe_config.load_balancer.num_slots", slots, 1)
    if r.experts is None:
        problem = f"is {slots}: it counts all slots, and the model's experts are not known"
        r.flags.fault("moe_config.load_balancer.num_slots", problem, "name the model")
        raise Broken("num_slots")
    if slots < r.experts:
        r.flags.fault(
            "moe_config.load_balancer.num_slots", f"is {slots} for {r.experts} experts", "give as many or more"
        )
    return slots - r.experts


def _speculation(r: FileReading) -> None:
    """Drafts: num_nextn_predict_layers (MTP) or max_draft_len; max_total_draft_tokens counts those of a tree."""
    config = r.mapping("speculative_config")
    if not config:
        return
    kind = config.get("decoding_type")
    if kind is None:
        r.flags.fault("speculative_config.decoding_type", "is missing", "write for example decoding_type: MTP")
    layers, chain, tree = (
        None if config.get(key) is None else r.flags.at_least(f"speculative_config.{key}", config[key], 1)
        for key in ("num_nextn_predict_layers", "max_draft_len", "max_total_draft_tokens")
    )
    if layers is not None and chain is not None and layers != chain:
        r.flags.fault("speculative_config.max_draft_len", f"is {chain}, num_nextn_predict_layers {layers}", "give one")
    drafts = chain if layers is None else layers
    if drafts is None and kind == "MTP":
        drafts = 1
        r.flags.note("speculative_config of MTP without num_nextn_predict_layers: 1 (its default)")
    if drafts is None:
        r.flags.fault("speculative_config.max_draft_len", "is missing", "give the drafts of a step")
        raise Broken("drafts")
    total = tree if tree is not None else drafts
    width = -(-total // drafts)
    r.flags.fields.update(q_len=1 + total, draft_passes=0 if kind == "NGram" else drafts, tree_width=width)


def _running(r: FileReading) -> None:
    """max_batch_size is of one attention-DP rank."""
    each = r.whole("max_batch_size", DEFAULTS["max_batch_size"])
    r.flags.fields.update(max_running=each, max_running_per_rank=each)


def _graphs(r: FileReading) -> None:
    if "cuda_graph_config" in r.file and r.file["cuda_graph_config"] is None:
        r.flags.fields.update(cuda_graph=False)
        return
    config = r.mapping("cuda_graph_config")
    sizes, most = config.get("batch_sizes"), config.get("max_batch_size")
    if sizes is not None:
        largest = max(r.flags.wholes("cuda_graph_config.batch_sizes", sizes))
        if most not in (None, 0, largest):
            problem = f"is {most}, the largest of batch_sizes {largest}"
            r.flags.fault("cuda_graph_config.max_batch_size", problem, "make them equal, or leave it out")
    elif most:
        largest = r.flags.at_least("cuda_graph_config.max_batch_size", most, 1)
    else:
        largest = DEFAULT_GRAPH
        r.flags.note(f"cuda_graph_config.max_batch_size not given: {DEFAULT_GRAPH} (its default)")
    r.flags.fields.update(cuda_graph=True, graph_batch=min(largest, r.flags.fields["max_running_per_rank"]))


def _memory(r: FileReading) -> None:
    cache, context = r.mapping("kv_cache_config"), r.value("max_seq_len")
    share = cache.get("free_gpu_memory_fraction")
    path = "free_gpu_memory_fraction" if share is None else "kv_cache_config.free_gpu_memory_fraction"
    share = r.flags.share(path, r.flags.value("free_gpu_memory_fraction") if share is None else share)
    if share is None:
        share = 0.9
        r.flags.note(
            "free_gpu_memory_fraction not given: 0.9 of what is free after the weights (default of trtllm-serve)"
        )
    role = {"CONTEXT": "prefill", "GENERATION": "decode"}.get(str(r.flags.value("server_role")).upper(), "both")
    r.flags.fields.update(
        context_length=None if context is None else r.flags.at_least("max_seq_len", context, 1),
        memory_fraction=share,
        prefill_tokens=r.whole("max_num_tokens", DEFAULTS["max_num_tokens"]),
        kv_dtype=str(cache.get("dtype") or "auto"),
        role=role,
    )
