"""vLLM's flags as a layout: data-parallel ranks beside tensor parallelism, the experts over both."""

from __future__ import annotations

from typing import Any

from moeplan.engines.rules.flags.reading import Broken, Reading

REMOVED_BACKENDS = ("naive", "pplx")
FALLBACK = "allgather_reducescatter"
ALIASES = {"flashinfer_all2allv": "flashinfer_nvlink_two_sided"}
SUFFIX_DEPTH = 24  # drafts that suffix decoding takes at most when none are given
GRAPH_TOKENS = 512  # the largest default capture, 1,024 on Blackwell


def read_vllm(reading: Reading) -> None:
    """Fill the fields of a LaunchedLayout; faults are recorded."""
    for part in (_parallel, _experts, _speculation, _running, _graphs, _memory):
        reading.part(part)


def _parallel(r: Reading) -> None:
    """GPUs = tp · dp · pp (· prefill context ranks); --data-parallel-size counts ranks of the whole instance."""
    tp, dp = r.whole("tensor-parallel-size", 1), r.whole("data-parallel-size", 1)
    pp, cp = r.plain("pipeline-parallel-size"), r.plain("prefill-context-parallel-size")
    nodes, local = r.plain("nnodes"), r.optional_whole("data-parallel-size-local", least=0)
    dcp, world = r.plain("decode-context-parallel-size"), tp * dp * pp * cp
    if local is not None and local > dp:
        r.fault("--data-parallel-size-local", f"is {local} of {dp} ranks", "give at most --data-parallel-size")
    if r.switch("data-parallel-external-lb") and dp == 1:
        r.fault("--data-parallel-external-lb", "needs more than one rank", "give --data-parallel-size")
    if world % nodes:
        r.fault("--nnodes", f"{world} GPUs do not divide over {nodes} nodes", "use a number that they share evenly")
    if local and nodes == 1 and dp > local:
        r.note(f"--data-parallel-size-local {local} of {dp}: the other ranks are started on other nodes")
    if (cp == 1 and tp % dcp) or (cp > 1 and dcp not in (1, cp, tp * cp)):
        r.fault("--decode-context-parallel-size", f"{dcp} does not fit tp {tp} × prefill context {cp}", "use 1")
    if dcp > 1:
        r.note("decode context parallelism is not in the layout: the cache is divided, the GPUs are the same")
    r.fields.update(tp=tp, dp=dp, cp=cp, pp=pp, nodes=nodes)


def _experts(r: Reading) -> None:
    """Every rank's tokens meet in the experts: whole over tp · dp with EP, each cut over tp · dp without."""
    width = r.fields["tp"] * r.fields["dp"] * r.fields["cp"]
    on, backend = r.switch("enable-expert-parallel"), r.text("all2all-backend", FALLBACK)
    if backend in REMOVED_BACKENDS:
        r.note(f"--all2all-backend {backend} was removed: vLLM falls back to {FALLBACK}")
        backend = FALLBACK
    backend = ALIASES.get(backend, backend)
    used = on and (r.fields["dp"] > 1 or r.fields["cp"] > 1)
    if not on:
        r.note(f"--enable-expert-parallel not given: each expert is cut over {width} GPUs, there is no EP")
    elif not used:
        r.note("one data-parallel rank: no all-to-all, the experts' outputs are summed by an all-reduce")
    eplb, config = r.switch("enable-eplb"), r.mapping("eplb-config")
    redundant = r.at_least("--eplb-config.num_redundant_experts", config.get("num_redundant_experts", 0), 0)
    if eplb and not on:
        r.fault("--enable-eplb", "needs expert parallelism", "add --enable-expert-parallel")
    elif eplb and width == 1:
        r.fault("--enable-eplb", "needs more than one GPU", "give --tensor-parallel-size or --data-parallel-size")
    if redundant and not eplb:
        r.fault("--eplb-config.num_redundant_experts", f"is {redundant} without --enable-eplb", "add --enable-eplb")
    two = r.switch("enable-dbo") or (r.optional_whole("ubatch-size", least=0) or 0) > 1
    r.fields.update(ep=width if on else 1, moe_tp=1 if on else width, all_to_all=backend if used else "none")
    r.fields.update(redundant=redundant, eplb=eplb, two_batch=two)


def _speculation(r: Reading) -> None:
    """num_speculative_tokens counts the drafts: one more token is verified."""
    config = {str(key).replace("-", "_"): value for key, value in r.mapping("speculative-config").items()}
    for flag, key in (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens")):
        value = r.value(flag)
        if value is None:
            continue
        if key in config:
            r.fault(f"--{flag}", f"--speculative-config holds {key} as well", "give one of them")
        config[key] = value
    if not config:
        return
    drafts: Any = config.get("num_speculative_tokens")
    if drafts is None and config.get("method") == "suffix":
        drafts = SUFFIX_DEPTH
        r.note(f"suffix decoding without num_speculative_tokens: at most {SUFFIX_DEPTH} drafts (vLLM's tree depth)")
    if drafts is None:
        problem = "does not say num_speculative_tokens"
        r.fault("--speculative-config", problem, 'write {"method": "mtp", "num_speculative_tokens": 1}')
        raise Broken("drafts")
    drafts = r.at_least("--speculative-config.num_speculative_tokens", drafts, 1)
    if config.get("method") is None and config.get("model") is None:
        r.fault("--speculative-config", "says neither method nor model", 'add "method": "mtp"')
    if config.get("num_speculative_tokens_per_batch_size") is not None:
        r.note("num_speculative_tokens_per_batch_size is not modelled: the most drafts are taken at every batch")
    drawn = config.get("method") in ("ngram", "ngram_gpu", "suffix")
    r.fields.update(q_len=1 + drafts, draft_passes=0 if drawn else drafts)


def _running(r: Reading) -> None:
    """--max-num-seqs is of one data-parallel rank."""
    each, faster = r.optional_whole("max-num-seqs"), r.value("performance-mode") == "throughput"
    if each is None:
        twice = ", twice that with --performance-mode throughput" if faster else ""
        reason = f"1,024 per rank on GPUs of 70 GiB or more but the A100, else 256{twice} (default of vllm 0.33.0)"
        r.unknown_until_start(["--max-num-seqs"], reason)
    r.fields.update(max_running=each, max_running_per_rank=each)


def _graphs(r: Reading) -> None:
    """Captures count tokens: a decode step of q_len tokens per request fits in tokens // q_len requests."""
    config, level = r.mapping("compilation-config"), r.value("optimization-level")
    on = not r.switch("enforce-eager") and str(level) != "0"
    on = on and str(config.get("cudagraph_mode") or "").upper() != "NONE"
    sizes, most = r.value("cudagraph-capture-sizes"), r.optional_whole("max-cudagraph-capture-size")
    for flag, key, value in (
        ("--cudagraph-capture-sizes", "cudagraph_capture_sizes", sizes),
        ("--max-cudagraph-capture-size", "max_cudagraph_capture_size", most),
    ):
        if value is not None and config.get(key) is not None:
            r.fault(flag, f"--compilation-config holds {key} as well", "give one of them")
    sizes = sizes if sizes is not None else config.get("cudagraph_capture_sizes")
    most = most if most is not None else config.get("max_cudagraph_capture_size")
    if sizes is not None:
        tokens: int | None = max(r.wholes("--cudagraph-capture-sizes", sizes))
    elif most is not None:
        tokens = r.at_least("--max-cudagraph-capture-size", most, 1)
    else:
        tokens = _default_capture(r) if on else None
    q_len = r.fields.get("q_len", 1)
    r.fields.update(cuda_graph=on, graph_batch=tokens // q_len if on and tokens is not None else None)


def _default_capture(r: Reading) -> int | None:
    """min(2 · max_num_seqs · q_len, 512 or 1,024) tokens; None where the GPU decides."""
    seqs, q_len = r.fields["max_running_per_rank"], r.fields.get("q_len", 1)
    if seqs is not None and 2 * seqs * q_len <= GRAPH_TOKENS:
        r.note(f"--max-cudagraph-capture-size not given: 2 × max-num-seqs × {q_len} = {2 * seqs * q_len} tokens")
        return int(2 * seqs * q_len)
    reason = f"at most {GRAPH_TOKENS} tokens, {2 * GRAPH_TOKENS:,} on Blackwell (default of vllm 0.33.0)"
    r.unknown_until_start(["--max-cudagraph-capture-size"], reason)
    return None


def _memory(r: Reading) -> None:
    context, share = r.value("max-model-len"), r.share("--gpu-memory-utilization", r.value("gpu-memory-utilization"))
    if context is None or context == -1:
        context = None
        r.unknown_until_start(["--max-model-len"], "the model's own, or what fits")
    else:
        context = r.at_least("--max-model-len", context, 1)
    if share is None:
        share = 0.92
        r.note("--gpu-memory-utilization not given: 0.92 (default of vllm 0.33.0)")
    tokens = r.optional_whole("max-num-batched-tokens")
    if tokens is None:
        r.unknown_until_start(["--max-num-batched-tokens"], "2,048 to 16,384 per rank, as the GPU is")
    transfer = r.mapping("kv-transfer-config").get("kv_role")
    roles = {"kv_producer": "prefill", "kv_consumer": "decode"}
    r.fields.update(
        context_length=context,
        memory_fraction=share,
        prefill_tokens=tokens,
        kv_dtype=r.text("kv-cache-dtype", "auto"),
        role=roles.get(str(transfer), "both"),
    )
