"""SGLang's flags as a layout: --tp-size is all GPUs of a stage, attention-DP and EP lie inside it."""

from __future__ import annotations

from moeplan.engines.rules.flags.reading import Reading

SPANNING = frozenset(
    {
        *("megamoe", "deepep", "deepep_v2", "mooncake", "nixl", "ascend_fuseep"),
        *("flashinfer", "flashinfer_megamoe", "mori", "pplx"),
    }
)  # all-to-all backends that set EP to tp (_handle_a2a_moe of 0.5.10.post1, _A2A_EP_SPANNING_BACKENDS of 0.5.23)
WHOLE_DP = frozenset({"flashinfer", "flashinfer_megamoe"})  # these want an attention-DP rank on every GPU (0.5.23)
CHAINS = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})
BLOCKS = frozenset({"DFLASH", "DSPARK", "UNO"})
AUTO_CHAIN = 3  # drafts that SGLang takes by itself, but for LlamaForCausalLM and Grok-1: a tree there
NGRAM_TOKENS = 12
SPECULATIVE_RUNNING = 48


def read_sglang(reading: Reading) -> None:
    """Fill the fields of a LaunchedLayout; faults are recorded."""
    for part in (_parallel, _experts, _speculation, _running, _graphs, _memory):
        reading.part(part)


def _parallel(r: Reading) -> None:
    """Attention: tp_size = tp · dp · cp; a replica is a copy of it all.

    0.5.10: --dp-size is attention-DP with --enable-dp-attention, replicas without. 0.5.23: --dp-size is replicas,
    --attn-dp-size attention-DP, and the deprecated --enable-dp-attention turns the first into the second.
    """
    width, pp, nodes = r.whole("tp-size", 1), r.plain("pp-size"), r.plain("nnodes")
    cp, size, wanted = r.plain("attn-cp-size"), r.plain("dp-size"), r.switch("enable-dp-attention")
    if r.has("attn-dp-size"):
        dp, replicas = r.plain("attn-dp-size") if wanted else r.whole("attn-dp-size", 1), size
        if wanted and dp == 1:
            dp, replicas = size, 1
    else:
        dp, replicas = (size, 1) if wanted else (1, size)
    if wanted and size == 1 and dp == 1:
        r.note("--enable-dp-attention without a --dp-size above 1 does nothing")
    if replicas > 1:
        r.note(f"--dp-size {size} is {replicas} copies of the server, each on {width * pp} GPUs, not attention-DP")
        _replica_faults(r, dp, nodes)
    if width % (dp * cp):
        problem = f"{width} does not divide over {dp} attention-DP ranks" + (
            f" of {cp} context ranks" if cp > 1 else ""
        )
        r.fault("--tp-size", problem, "give a multiple: --tp-size counts all GPUs of a stage, attention-DP lies inside")
    if (width * pp) % nodes:
        r.fault(
            "--nnodes", f"{width * pp} GPUs do not divide over {nodes} nodes", "use a number that they share evenly"
        )
    if r.plain("dcp-size") > 1:
        r.note(
            "decode context parallelism (--dcp-size) is not in the layout: the cache is divided, the GPUs are the same"
        )
    if not r.parsed.faults or width % (dp * cp) == 0:
        r.fields.update(tp=width // dp // cp, dp=dp, cp=cp)
    r.fields.update(pp=pp, replicas=replicas, nodes=nodes, width=width)


def _replica_faults(r: Reading, dp: int, nodes: int) -> None:
    inside = "--attn-dp-size" if r.has("attn-dp-size") else "--enable-dp-attention"
    if dp == 1 and r.switch("enable-dp-lm-head"):
        r.fault("--enable-dp-lm-head", "needs attention-DP, but --dp-size is replicas", f"use {inside}")
    if dp > 1:
        r.fault("--dp-size", "replicas do not go together with --attn-dp-size", "leave one of them out")
    if nodes > 1:
        r.fault("--dp-size", f"replicas do not span {nodes} nodes", f"start each by itself, or use {inside}")


def _experts(r: Reading) -> None:
    """Experts: tp_size = ep · moe_tp · moe_dp; an all-to-all backend takes the whole stage as its EP group."""
    width, backend = r.fields["width"], r.text("moe-a2a-backend", "none")
    if r.has("enable-waterfill") and r.switch("enable-waterfill") and backend not in ("deepep", "megamoe"):
        r.note(f"--enable-waterfill turns --moe-a2a-backend {backend} into deepep")
        backend = "deepep"
    wanted, copies = r.optional_whole("ep-size"), r.plain("moe-dp-size")
    if backend in SPANNING:
        ep = width
        if wanted != width:
            r.note(f"--moe-a2a-backend {backend} sets EP to --tp-size, {width}, whatever --ep-size says")
    else:
        ep = wanted if wanted is not None else r.whole("ep-size", 1)
        if width % (ep * copies):
            over = f"{ep}" + (f" × --moe-dp-size {copies}" if copies > 1 else "")
            r.fault("--ep-size", f"{over} does not divide --tp-size {width}", "give a divisor, or the same")
    if copies > 1:
        _copies_faults(r, ep, copies)
    if backend in WHOLE_DP and r.has("attn-dp-size") and r.fields["dp"] != width:
        r.fault(
            "--moe-a2a-backend", f"{backend} needs --attn-dp-size equal to --tp-size", f"use --attn-dp-size {width}"
        )
    redundant, eplb = r.plain("ep-num-redundant-experts", 0, least=0), r.switch("enable-eplb")
    if eplb and ep == 1:
        r.fault("--enable-eplb", "there is no expert parallelism to balance", "give an --ep-size above 1")
    dense, allowed = r.optional_whole("moe-dense-tp-size"), {1, width} if r.has("attn-dp-size") else {1}
    if dense is not None and dense not in allowed:
        known = " or ".join(map(str, sorted(allowed)))
        r.fault("--moe-dense-tp-size", f"is {dense}", f"give {known}, or leave it out")
    r.fields.update(ep=ep, moe_dp=copies, moe_tp=max(width // ep // copies, 1), all_to_all=backend)
    r.fields.update(redundant=redundant, eplb=eplb, two_batch=r.switch("enable-two-batch-overlap"))


def _copies_faults(r: Reading, ep: int, copies: int) -> None:
    width, cp, pp = r.fields["width"], r.fields["cp"], r.fields["pp"]
    if ep > 1 and ep * copies != width:
        r.fault("--moe-dp-size", f"EP {ep} × {copies} is not --tp-size {width}", "make them equal")
    if pp > 1:
        r.fault("--moe-dp-size", "does not go together with pipeline stages", "use --pp-size 1")
    if cp != copies:
        r.fault("--moe-dp-size", f"is {copies}, --attn-cp-size {cp}", "make them equal, or use --moe-dp-size 1")


def _speculation(r: Reading) -> None:
    """--speculative-num-draft-tokens counts what is verified; with --speculative-eagle-topk 1 it is num-steps + 1."""
    name = r.value("speculative-algorithm")
    steps, width, tokens = (
        r.optional_whole(f"speculative-{end}") for end in ("num-steps", "eagle-topk", "num-draft-tokens")
    )
    if name is None:
        if (steps, width, tokens) != (None, None, None):
            r.note("without --speculative-algorithm nothing is drafted: the other --speculative flags do nothing")
        return
    kind = str(name).upper()
    if kind in CHAINS:
        q_len, passes, tree = _chain(r, steps, width, tokens)
    elif kind == "NGRAM":
        q_len = tokens if tokens is not None else r.whole("speculative-num-draft-tokens", NGRAM_TOKENS)
        passes, tree = 0, r.plain("speculative-ngram-max-bfs-breadth", 10)
    elif tokens is None:
        where = "the draft model says" if kind in BLOCKS else f"what {name} takes is not known"
        r.fault("--speculative-num-draft-tokens", f"is not given; {where}", "give the tokens verified in a step")
        return
    else:
        q_len, passes, tree = tokens, 1 if steps is None else steps, 1
    if kind in ("STANDALONE", "NGRAM") and r.fields["dp"] > 1:
        r.fault("--speculative-algorithm", f"{kind} does not go together with attention-DP", "use EAGLE, or no DP")
    if r.fields["pp"] > 1 and not (r.has("attn-dp-size") and r.value("disaggregation-mode") == "prefill"):
        r.fault("--speculative-algorithm", "does not go together with pipeline stages", "use --pp-size 1")
    r.fields.update(q_len=q_len, draft_passes=passes, tree_width=tree)


def _chain(r: Reading, steps: int | None, width: int | None, tokens: int | None) -> tuple[int, int, int]:
    """A chain (top-k 1) or a tree of drafts: (tokens verified, draft passes, top-k)."""
    if steps is None:
        for flag, value in (("eagle-topk", width), ("num-draft-tokens", tokens)):
            if value is not None:
                r.fault(f"--speculative-{flag}", "is given without --speculative-num-steps", "give all three, or none")
        r.note(
            f"--speculative-num-steps not given: {AUTO_CHAIN} drafts, {AUTO_CHAIN + 1} tokens verified "
            "(SGLang's choice for all families but Llama and Grok-1, where it is a tree of 8)"
        )
        return AUTO_CHAIN + 1, AUTO_CHAIN, 1
    if width is None:
        r.fault(
            "--speculative-eagle-topk", "is not given, but --speculative-num-steps is", "give 1 for a chain of drafts"
        )
        return steps + 1, steps, 1
    if width == 1:
        if tokens not in (None, steps + 1):
            r.note(f"--speculative-num-draft-tokens {tokens} becomes {steps + 1}: num-steps + 1, as top-k is 1")
        return steps + 1, steps, 1
    if tokens is None:
        r.fault("--speculative-num-draft-tokens", "is not given, but top-k is above 1", "give the tokens of the tree")
    return tokens or steps + 1, steps, width


def _running(r: Reading) -> None:
    """--max-running-requests counts all attention-DP ranks of a replica: each takes the whole part of its share."""
    total = r.optional_whole("max-running-requests")
    if total is None and r.value("speculative-algorithm") is not None:
        total = r.whole("max-running-requests", SPECULATIVE_RUNNING, why="with speculative decoding, default")
    if total is None:
        r.unknown_until_start(["--max-running-requests"], "the server finds it from the memory left for the cache")
        return
    dp = r.fields["dp"]
    each = max(total // dp, 1)
    if each * dp != total:
        r.note(f"--max-running-requests {total} over {dp} attention-DP ranks is {each} each")
    r.fields.update(max_running=total, max_running_per_rank=each)


def _graphs(r: Reading) -> None:
    new = r.has("cuda-graph-backend-decode")
    config = r.mapping("cuda-graph-config") if new else {}
    decode = r.as_mapping("--cuda-graph-config.decode", config.get("decode", {}))
    on = not r.switch("disable-cuda-graph")
    if new:
        on = on and not r.switch("disable-decode-cuda-graph")
        on = r.value("cuda-graph-backend-decode") != "disabled" if r.given("cuda-graph-backend-decode") else on
        on = decode["backend"] != "disabled" if "backend" in decode else on
    if on and r.value("deepep-mode") == "normal" and r.fields["all_to_all"] == "deepep":
        r.note("--deepep-mode normal turns CUDA graphs off")
        on = False
    end = "-decode" if new else ""
    sizes = decode.get("bs", r.value(f"cuda-graph-bs{end}"))
    most = decode.get("max_bs", r.optional_whole(f"cuda-graph-max-bs{end}"))
    if sizes is not None:
        most = max(r.wholes(f"--cuda-graph-bs{end}", sizes))
    elif most is not None:
        most = r.at_least("--cuda-graph-config.decode.max_bs", most, 1)
    elif on:
        r.unknown_until_start(
            [f"--cuda-graph-max-bs{end}"], "it depends on the GPU's memory and on --tp-size (8 to 512)"
        )
    r.fields.update(cuda_graph=on, graph_batch=most if on else None)


def _memory(r: Reading) -> None:
    context, share = (
        r.optional_whole("context-length"),
        r.share("--mem-fraction-static", r.value("mem-fraction-static")),
    )
    if context is None:
        r.unknown_until_start(["--context-length"], "the model's own")
    if share is None:
        r.unknown_until_start(["--mem-fraction-static"], "found from the GPU's memory, the chunk and the graphs")
    chunk = r.value("chunked-prefill-size")
    if chunk is None:
        r.unknown_until_start(["--chunked-prefill-size"], "it depends on the GPU's memory (2,048 to 16,384)")
    elif chunk > 0:
        chunk = chunk // r.fields["dp"]
    role = r.value("disaggregation-mode")
    r.fields.update(
        context_length=context,
        memory_fraction=share,
        prefill_tokens=chunk if chunk and chunk > 0 else None,
        kv_dtype=r.text("kv-cache-dtype", "auto"),
        role=role if role in ("prefill", "decode") else "both",
    )
