"""Command lines as people type them, with layouts derived by hand from what each engine's version counts."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.engines.emit.sglang import sglang_command
from moeplan.engines.rules.flags.batch import rank_batch
from moeplan.engines.rules.flags.book import ENGINES, FlagBook, flag_book, known_versions
from moeplan.engines.rules.flags.launch import launched
from moeplan.engines.rules.flags.launched import LaunchedLayout
from moeplan.engines.rules.flags.values import sized
from moeplan.engines.rules.flags.words import split_command
from moeplan.errors import InputError
from moeplan.predict import Prediction, Predictor
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision
from moeplan.specs.exchange import usual

CATALOG = Catalog.standard()
OLD, NEW = "0.5.10.post1", "0.5.23"
EAGLE = "--speculative-algorithm EAGLE --speculative-eagle-topk 1 --speculative-num-steps"


def sglang(flags: str, version: str = NEW, **kwargs: Any) -> LaunchedLayout:
    command = f"python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 {flags}"
    return launched(command, version=version, catalog=CATALOG, **kwargs)


def vllm(flags: str, **kwargs: Any) -> LaunchedLayout:
    return launched(f"vllm serve deepseek-ai/DeepSeek-V3 {flags}", catalog=CATALOG, **kwargs)


def trtllm(flags: str, config: dict[str, Any] | None = None, **kwargs: Any) -> LaunchedLayout:
    return launched(f"trtllm-serve nvidia/DeepSeek-R1-FP4 {flags}", config=config or {}, catalog=CATALOG, **kwargs)


def sizes(layout: LaunchedLayout) -> dict[str, Any]:
    names = "tp dp pp replicas ep moe_tp all_to_all redundant q_len max_running_per_rank graph_batch gpus nodes".split()
    return {name: getattr(layout, name) for name in names}


def expected(text: str) -> dict[str, Any]:
    """«tp 8 ep 16 all_to_all deepep» over the defaults of one GPU."""
    words = text.split()
    found: dict[str, Any] = dict(tp=1, dp=1, pp=1, replicas=1, ep=1, moe_tp=1, all_to_all="none", redundant=0, q_len=1)
    found |= dict(max_running_per_rank=None, graph_batch=None, gpus=1, nodes=1)
    for name, value in zip(words[::2], words[1::2], strict=True):
        assert name in found, name
        found[name] = int(value) if value.isdigit() else value
    return found


def faults(call: Any, *args: Any, **kwargs: Any) -> dict[str, str]:
    """Path -> the whole fault, of a call that must fail."""
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    return {fault.path: str(fault) for fault in caught.value.faults}


# --- SGLang ---------------------------------------------------------------------------------------------------------

SGLANG_OLD = [
    ("", ""),
    ("--tp 8 --trust-remote-code --host 0.0.0.0 --port 30000", "tp 8 moe_tp 8 gpus 8"),
    ("--tp 8 --dp 8 --enable-dp-attention", "dp 8 moe_tp 8 gpus 8"),
    ("--tp-size 8 --dp-size 2 --enable-dp-attention --ep-size 8", "tp 4 dp 2 ep 8 gpus 8"),
    ("--tp 8 --dp 2", "tp 8 replicas 2 moe_tp 8 gpus 16"),  # replicas: dp copies of tp GPUs
    ("--tp 8 --dp 1 --enable-dp-attention", "tp 8 moe_tp 8 gpus 8"),  # _handle_data_parallelism turns it off
    ("--tp 8 --ep 4", "tp 8 ep 4 moe_tp 2 gpus 8"),
    (
        "--tp-size 16 --dp-size 16 --enable-dp-attention --moe-a2a-backend deepep --nnodes 2 --node-rank 0 "
        "--dist-init-addr 10.0.0.1:5000 --cuda-graph-max-bs 128 --max-running-requests 2048",
        "dp 16 ep 16 all_to_all deepep max_running_per_rank 128 graph_batch 128 gpus 16 nodes 2",
    ),
    (  # the decode instance of the 96-GPU report, 72 GPUs
        "--disaggregation-mode decode --tp-size 72 --dp-size 72 --enable-dp-attention --enable-dp-lm-head "
        "--moe-dense-tp-size 1 --moe-a2a-backend deepep --deepep-mode low_latency --ep-num-redundant-experts 32 "
        "--nnodes 9 --node-rank $NODE_RANK --cuda-graph-bs 128 256 --max-running-requests 18432 "
        "--mem-fraction-static 0.835",
        "dp 72 ep 72 all_to_all deepep redundant 32 max_running_per_rank 256 graph_batch 256 gpus 72 nodes 9",
    ),
    (
        "--tp 128 --dp 128 --enable-dp-attention --moe-a2a-backend deepep --nnodes 16 --ep-num-redundant-experts 128 "
        f"{EAGLE} 1 --speculative-num-draft-tokens 2 --max-running-requests 8192",
        "dp 128 ep 128 all_to_all deepep redundant 128 q_len 2 max_running_per_rank 64 gpus 128 nodes 16",
    ),
    (f"--tp 8 {EAGLE} 3 --speculative-num-draft-tokens 4", "tp 8 moe_tp 8 q_len 4 max_running_per_rank 48 gpus 8"),
    ("--tp 8 --speculative-algorithm NEXTN", "tp 8 moe_tp 8 q_len 4 max_running_per_rank 48 gpus 8"),
    (  # a tree: 8 verified of 5 levels of 4
        "--speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 4 "
        "--speculative-num-draft-tokens 8 --speculative-draft-model-path x/EAGLE3",
        "q_len 8 max_running_per_rank 48",
    ),
    ("--tp 4 --pp-size 2 --nnodes 2", "tp 4 pp 2 moe_tp 4 gpus 8 nodes 2"),
]
SGLANG_NEW = [
    ("--tp 8 --attn-dp-size 8 --ep 8 --cuda-graph-max-bs-decode 64", "dp 8 ep 8 graph_batch 64 gpus 8"),
    ("--tp 8 --dp-size 8 --enable-dp-attention", "dp 8 moe_tp 8 gpus 8"),  # the deprecated spelling still works
    ("--tp 2 --dp-size 4", "tp 2 replicas 4 moe_tp 2 gpus 8"),
    (
        "--tp 16 --attention-data-parallel-size 4 --moe-a2a-backend mori --nnodes 2",
        "tp 4 dp 4 ep 16 all_to_all mori gpus 16 nodes 2",
    ),
    ("--tp 8 --enable-waterfill --attn-dp-size 8", "dp 8 ep 8 all_to_all deepep gpus 8"),
    ("--tp 8 --moe-a2a-backend ascend_tp", "tp 8 moe_tp 8 all_to_all ascend_tp gpus 8"),  # does not span tp
    (
        '--tp 4 --cuda-graph-config \'{"decode": {"max_bs": 96}}\' --cuda-graph-max-bs-decode 32 '
        "--max-running-requests=7",
        "tp 4 moe_tp 4 graph_batch 96 max_running_per_rank 7 gpus 4",
    ),
]


@pytest.mark.parametrize(("flags", "layout"), SGLANG_OLD)
def test_sglang_0_5_10(flags: str, layout: str) -> None:
    assert sizes(sglang(flags, OLD)) == expected(layout)


@pytest.mark.parametrize(("flags", "layout"), SGLANG_NEW)
def test_sglang_0_5_23(flags: str, layout: str) -> None:
    assert sizes(sglang(flags)) == expected(layout)


def test_dp_size_means_replicas_without_attention_dp_in_both_versions_and_says_so() -> None:
    for version in (OLD, NEW):
        layout = sglang("--tp 2 --dp-size 4", version)
        assert (layout.replicas, layout.dp, layout.ranks) == (4, 1, 4)
        assert any("4 copies of the server" in note for note in layout.notes)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_deepep_takes_the_whole_stage_whatever_ep_size_says(version: str) -> None:
    layout = sglang("--tp 16 --ep-size 4 --moe-a2a-backend deepep", version)
    assert (layout.ep, layout.moe_tp) == (16, 1)
    assert any("sets EP to --tp-size, 16" in note for note in layout.notes)


def test_max_running_requests_is_shared_by_attention_dp_ranks_and_odd_shares_are_noted() -> None:
    layout = sglang(
        "--tp 8 --attn-dp-size 8 --max-running-requests 100 --chunked-prefill-size 8192 --context-length 32k"
    )
    assert (layout.max_running, layout.max_running_per_rank) == (100, 12)
    assert (layout.prefill_tokens, layout.context_length) == (1024, 32_000)
    assert any("over 8 attention-DP ranks is 12 each" in note for note in layout.notes)


@pytest.mark.parametrize(
    ("flags", "version", "on"),
    [
        ("--disable-cuda-graph", OLD, False),
        ("--disable-cuda-graph", NEW, False),
        ("--disable-cuda-graph --cuda-graph-backend-decode full", NEW, True),  # an explicit backend wins
        ("--cuda-graph-backend-decode disabled --cuda-graph-max-bs-decode 8", NEW, False),
        ("--disable-decode-cuda-graph", NEW, False),
        ("--disable-prefill-cuda-graph", NEW, True),
        ("--moe-a2a-backend deepep --deepep-mode normal", OLD, False),
        ("--deepep-mode normal", OLD, True),
        ('--cuda-graph-config \'{"decode": {"backend": "disabled"}}\'', NEW, False),
    ],
)
def test_cuda_graphs_of_sglang(flags: str, version: str, on: bool) -> None:
    layout = sglang(flags, version)
    assert layout.cuda_graph is on
    assert layout.graph_batch is None


def test_drafts_are_one_less_than_what_is_verified() -> None:
    layout = sglang(f"{EAGLE} 3 --speculative-num-draft-tokens 9")  # top-k 1: num-steps + 1 whatever is asked
    assert (layout.q_len, layout.drafts, layout.draft_passes, layout.tree_width) == (4, 3, 3, 1)
    assert any("9 becomes 4" in note for note in layout.notes)
    tree = sglang(
        "--speculative-algorithm EAGLE --speculative-num-steps 5 --speculative-eagle-topk 4 "
        "--speculative-num-draft-tokens 8"
    )
    assert (tree.q_len, tree.drafts, tree.draft_passes, tree.tree_width) == (8, 7, 5, 4)
    ngram = sglang("--speculative-algorithm NGRAM")
    assert (ngram.q_len, ngram.draft_passes) == (12, 0)
    idle = sglang("--speculative-num-steps 3 --speculative-eagle-topk 1")
    assert idle.q_len == 1
    assert any("nothing is drafted" in note for note in idle.notes)


# --- vLLM -----------------------------------------------------------------------------------------------------------

VLLM = [
    ("--tensor-parallel-size 8", "tp 8 moe_tp 8 gpus 8"),
    ("-tp 8 --enable-expert-parallel", "tp 8 ep 8 gpus 8"),  # one rank: no all-to-all
    (
        "-tp 1 -dp 8 -ep --max-num-seqs 64",
        "dp 8 ep 8 all_to_all allgather_reducescatter max_running_per_rank 64 graph_batch 128 gpus 8",
    ),
    ("--tensor_parallel_size=2 --data_parallel_size=4", "tp 2 dp 4 moe_tp 8 gpus 8"),
    (
        "-dp 16 -dpl 8 --enable-expert-parallel --all2all-backend deepep_low_latency --enable-eplb "
        "--eplb-config '{\"num_redundant_experts\": 32}' --data-parallel-address 10.0.0.1 --headless",
        "dp 16 ep 16 all_to_all deepep_low_latency redundant 32 gpus 16",
    ),
    (
        "-tp 2 -dp 64 -ep --nnodes 16 --node-rank 3 --all2all-backend pplx --max-num-seqs 1024 "
        '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\' --max-cudagraph-capture-size 512',
        "tp 2 dp 64 ep 128 all_to_all allgather_reducescatter q_len 2 max_running_per_rank 1024 "
        "graph_batch 256 gpus 128 nodes 16",
    ),
    (
        "--speculative-config.method mtp -sc.num_speculative_tokens 3 --cudagraph-capture-sizes 1 2 64",
        "q_len 4 graph_batch 16",
    ),
    ("--spec-method ngram --spec-tokens 4 --enforce-eager", "q_len 5"),
    ("-tp 4 -pp 2 --nnodes 2 -O0", "tp 4 pp 2 moe_tp 4 gpus 8 nodes 2"),
    ("-tp 8 --no-enable-expert-parallel --no-enable-prefix-caching", "tp 8 moe_tp 8 gpus 8"),
    ("-dp 8 -ep --disable-expert-parallel", "dp 8 moe_tp 8 gpus 8"),  # the last counts
    ('-cc \'{"cudagraph_mode": "NONE"}\'', ""),
]


@pytest.mark.parametrize(("flags", "layout"), VLLM)
def test_vllm(flags: str, layout: str) -> None:
    assert sizes(vllm(flags)) == expected(layout)


def test_vllm_captures_count_tokens_and_defaults_that_the_gpu_decides_stay_open() -> None:
    assert vllm("--max-num-seqs 128 --spec-tokens 1 --spec-method mtp").graph_batch == 256  # 2 · 128 · 2 tokens, 2 each
    open_ones = vllm("--max-num-seqs 1024")
    assert (open_ones.cuda_graph, open_ones.graph_batch, open_ones.memory_fraction) == (True, None, 0.92)
    assert any("at most 512 tokens, 1,024 on Blackwell" in note for note in open_ones.notes)
    for flags in ("--enforce-eager", "-O0", "-O 0", "-cc.cudagraph_mode=NONE"):
        assert vllm(flags).cuda_graph is False
    assert vllm("--no-enforce-eager -O3").cuda_graph is True
    assert vllm("--max-model-len 32K").context_length == 32_768
    assert vllm("--max-model-len auto").context_length is None
    assert vllm('--kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}\'').role == "decode"


# --- TensorRT-LLM ---------------------------------------------------------------------------------------------------

WIDE = dict(enable_attention_dp=True, moe_config=dict(backend="WIDEEP", load_balancer=dict(num_slots=288)))
TRTLLM: list[tuple[str, dict[str, Any], str]] = [
    ("--tp_size 8", {}, "tp 8 moe_tp 8 max_running_per_rank 2048 graph_batch 128 gpus 8"),
    (
        "--tp_size 8 --ep_size 8 --max_batch_size 64",
        dict(enable_attention_dp=True, speculative_config=dict(decoding_type="MTP", num_nextn_predict_layers=3)),
        "dp 8 ep 8 all_to_all auto q_len 4 max_running_per_rank 64 graph_batch 64 gpus 8",
    ),
    (
        "--tensor_parallel_size=8 --ep_size 2 --pp_size 2 --gpus_per_node 8",
        dict(cuda_graph_config=dict(batch_sizes=[1, 8, 32])),
        "tp 8 pp 2 ep 2 moe_tp 4 max_running_per_rank 2048 graph_batch 32 gpus 16 nodes 2",
    ),
    (
        "",
        dict(tensor_parallel_size=4, moe_tensor_parallel_size=2, cuda_graph_config=None),
        "tp 4 ep 2 moe_tp 2 max_running_per_rank 2048 gpus 4",
    ),
    (
        "--tp_size 4 --max_batch_size 8",  # the file wins
        dict(
            tensor_parallel_size=2, max_batch_size=16, speculative_config=dict(decoding_type="Eagle", max_draft_len=3)
        ),
        "tp 2 moe_tp 2 q_len 4 max_running_per_rank 16 graph_batch 16 gpus 2",
    ),
]


@pytest.mark.parametrize(("flags", "config", "layout"), TRTLLM)
def test_trtllm(flags: str, config: dict[str, Any], layout: str) -> None:
    assert sizes(trtllm(flags, config)) == expected(layout)


def test_trtllm_slots_count_all_and_need_the_model() -> None:
    layout = trtllm("--tp_size 36 --ep_size 36", WIDE, model=CATALOG.model("deepseek-v3"))
    assert (layout.redundant, layout.ep, layout.dp, layout.all_to_all) == (32, 36, 36, "wideep")
    assert "name the model" in faults(trtllm, "--tp_size 36 --ep_size 36", WIDE)["moe_config.load_balancer.num_slots"]


def test_trtllm_from_a_mapping_of_its_file() -> None:
    given = dict(model="x", tensor_parallel_size=8, enable_attention_dp=True, max_num_tokens=1024, host="0.0.0.0")
    layout = launched(given, engine="trtllm", catalog=CATALOG)
    assert (layout.dp, layout.prefill_tokens, layout.moe_tp) == (8, 1024, 8)


# --- other models, whole scripts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command", "version", "gpus", "layout"),
    [
        ("gpt-oss-120b", "vllm serve openai/gpt-oss-120b -tp 4 --async-scheduling", None, 4, "tp 4 moe_tp 4 gpus 4"),
        ("gpt-oss-20b", "sglang serve openai/gpt-oss-20b --tp 2", NEW, 2, "tp 2 moe_tp 2 gpus 2"),
        (
            "qwen3-235b-a22b",
            "vllm serve Qwen/Qwen3-235B-A22B -dp 8 -ep --max-num-seqs 512 --enforce-eager",
            None,
            8,
            "dp 8 ep 8 all_to_all allgather_reducescatter max_running_per_rank 512 gpus 8",
        ),
        (
            "qwen3-30b-a3b",
            "python -m sglang.launch_server --model Qwen/Qwen3-30B-A3B --tp-size 4 --ep-size 4 --attn-dp-size 2",
            NEW,
            4,
            "tp 2 dp 2 ep 4 gpus 4",
        ),
        (
            "kimi-k2",
            "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2-Instruct --tp 16 --nnodes 2 --node-rank 1 "
            "--dist-init-addr a:1 --trust-remote-code --tool-call-parser kimi_k2",
            OLD,
            16,
            "tp 16 moe_tp 16 gpus 16 nodes 2",
        ),
        (
            "kimi-k2",  # 384 experts over 128 GPUs: three each
            "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2-Instruct --tp 128 --attn-dp-size 128 "
            "--moe-a2a-backend deepep --nnodes 16 --node-rank 0 --dist-init-addr a:1",
            NEW,
            128,
            "dp 128 ep 128 all_to_all deepep gpus 128 nodes 16",
        ),
        (
            "deepseek-v3",
            "trtllm-serve serve deepseek-ai/DeepSeek-V3 --tp_size 8 --ep_size 4 --trust_remote_code",
            None,
            8,
            "tp 8 ep 4 moe_tp 2 max_running_per_rank 2048 graph_batch 128 gpus 8",
        ),
    ],
)
def test_other_models(name: str, command: str, version: str | None, gpus: int, layout: str) -> None:
    found = launched(command, version=version, model=CATALOG.model(name), gpus=gpus, catalog=CATALOG)
    assert sizes(found) == expected(layout)
    assert found.model is not None


def test_a_pasted_script_is_read_through_its_shell() -> None:
    text = """
    # two nodes
    export NCCL_DEBUG=INFO
    SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256 nohup python3 -m sglang.launch_server \\
      --model-path "/models/DeepSeek V3" --tp-size=16 \\
      --attn-dp-size 16 --moe-a2a-backend deepep \\
      --nnodes 2 --node-rank ${RANK} --dist-init-addr $HEAD:5000 --chunked-prefill-size -1 > log.txt 2>&1 &
    """
    layout = launched(text, version=NEW, catalog=CATALOG)
    assert (layout.dp, layout.ep, layout.model, layout.prefill_tokens) == (16, 16, "/models/DeepSeek V3", None)
    assert dict(layout.environment)["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == "256"
    assert any("log.txt" in note for note in layout.notes)
    wrapped = launched(
        "docker run --gpus all lmsys/sglang python -m sglang.launch_server --tp 8", version=OLD, catalog=CATALOG
    )
    assert wrapped.tp == 8
    assert any("docker run" in note for note in wrapped.notes)
    old = launched("VLLM_ALL2ALL_BACKEND=deepep_low_latency vllm serve m -dp 8 -ep", catalog=CATALOG)
    assert old.all_to_all == "allgather_reducescatter"
    assert any("VLLM_ALL2ALL_BACKEND does nothing in vllm 0.33.0" in note for note in old.notes)


def test_flags_alone_and_a_mapping_say_the_same_as_the_command() -> None:
    command = sglang("--tp-size 8 --attn-dp-size 8 --ep-size 8 --enable-eplb --cuda-graph-bs-decode 1 8 16")
    alone = launched(
        "--tp-size 8 --attn-dp-size 8 --ep-size 8 --enable-eplb --cuda-graph-bs-decode 1 8 16", engine="sglang"
    )
    given = {"tp_size": 8, "--attn-dp-size": 8, "ep-size": 8, "enable_eplb": True, "cuda_graph_bs_decode": [1, 8, 16]}
    mapped = launched({**given, "disable_cuda_graph": False, "nnodes": None}, engine="sglang", version=NEW)
    assert sizes(command) == sizes(alone) == sizes(mapped)
    assert command.graph_batch == 16
    assert any("newest whose flags are known" in note for note in alone.notes)


def test_the_file_of_config_lies_under_the_command_and_must_be_given() -> None:
    assert sizes(sglang("--tp 8 --config c.yaml", config={"tp-size": 2, "ep-size": 4})) == expected(
        "tp 8 ep 4 moe_tp 2 gpus 8"
    )
    assert "content was not given" in faults(sglang, "--config c.yaml")["--config"]
    assert sglang("--tp 8 --config c.yaml", config={"tp-size": "$TP"}).tp == 8
    assert set(faults(sglang, "--config c.yaml", config={"tp-size": "x", "ep-sise": 2})) == {"--tp-size", "--ep-sise"}


# --- faults ---------------------------------------------------------------------------------------------------------


def test_every_fault_at_once() -> None:
    flags = "--tp 12 --attn-dp-size 8 --moe-a2a deepeep --max-runing-requests 8 --nnodes 5 "
    flags += "--mem-fraction-static 2 --kv-cache-dtype fp8 stray"
    found = faults(sglang, flags, gpus=16)
    wanted = {
        "--tp-size",
        "--moe-a2a",
        "--max-runing-requests",
        "--nnodes",
        "--mem-fraction-static",
        "--kv-cache-dtype",
        "stray",
    }
    assert set(found) == wanted
    assert "did you mean --max-running-requests" in found["--max-runing-requests"]
    assert "one of auto, fp8_e5m2" in found["--kv-cache-dtype"]
    assert "12 does not divide over 8 attention-DP ranks" in found["--tp-size"]


@pytest.mark.parametrize(
    ("flags", "version", "path", "text"),
    [
        ("--attn-dp-size 8", OLD, "--attn-dp-size", "0.5.23 has it — here: --enable-dp-attention with --dp-size"),
        ("--cuda-graph-max-bs 8", NEW, "--cuda-graph-max-bs", "0.5.10.post1 has it — here: --cuda-graph-max-bs-decode"),
        ("--moe-a2a-backend megamoe", OLD, "--moe-a2a-backend", "one of none, deepep"),
        ("--speculative-n 3", NEW, "--speculative-n", "abbreviates --speculative-n"),
        ("--tp 8 --attn-dp-size 2 --dp-size 2", NEW, "--dp-size", "do not go together with --attn-dp-size"),
        ("--tp 8 --dp-size 2 --nnodes 2", OLD, "--dp-size", "replicas do not span 2 nodes"),
        ("--tp 8 --dp-size 8 --enable-dp-lm-head", OLD, "--enable-dp-lm-head", "use --enable-dp-attention"),
        ("--tp 8 --ep-size 3", OLD, "--ep-size", "3 does not divide --tp-size 8"),
        ("--tp 8 --ep-size 16", NEW, "--ep-size", "16 does not divide --tp-size 8"),
        ("--tp 8 --ep 4 --moe-dp-size 1 --enable-eplb --moe-dense-tp-size 4", NEW, "--moe-dense-tp-size", "1 or 8"),
        ("--tp 8 --enable-eplb", NEW, "--enable-eplb", "no expert parallelism"),
        ("--tp 8 --moe-a2a-backend flashinfer", NEW, "--moe-a2a-backend", "--attn-dp-size equal to --tp-size"),
        ("--tp 8 --pp-size 2 --speculative-algorithm EAGLE", OLD, "--speculative-algorithm", "pipeline stages"),
        ("--speculative-algorithm EAGLE --speculative-num-steps 3", NEW, "--speculative-eagle-topk", "is not given"),
        ("--speculative-algorithm EAGLE --speculative-eagle-topk 1", NEW, "--speculative-eagle-topk", "without"),
        ("--tp 8 --attn-dp-size 8 --speculative-algorithm NGRAM", NEW, "--speculative-algorithm", "attention-DP"),
        ("--speculative-algorithm DFLASH", NEW, "--speculative-num-draft-tokens", "is not given"),
        ("--tp $TP", NEW, "--tp-size", "shell variable $TP"),
        ("--tp-size eight", NEW, "--tp-size", "whole number"),
        ("--tp-size 0", NEW, "--tp-size", "from 1"),
        ("--tp-size", NEW, "--tp-size", "the command ends"),
        ("--tp-size --ep-size 2", NEW, "--tp-size", "--ep-size follows"),
        ("--enable-eplb=true", NEW, "--enable-eplb", "takes no value"),
        ("--cuda-graph-config {}]", NEW, "--cuda-graph-config", "give JSON"),
        ("--cuda-graph-bs 1 two", OLD, "--cuda-graph-bs", "whole numbers from 1"),
        ("--context-length 32x", NEW, "--context-length", "32"),
    ],
)
def test_faults_of_sglang(flags: str, version: str, path: str, text: str) -> None:
    found = faults(sglang, flags, version)
    assert text in found[path]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("flags", "path", "text"),
    [
        ("--tp-size 8", "--tp-size", "here: --tensor-parallel-size"),
        ("--num-speculative-tokens 2", "--num-speculative-tokens", "--speculative-config"),
        ("--enable-eplb", "--enable-eplb", "add --enable-expert-parallel"),
        ("-dp 8 -ep --eplb-config.num_redundant_experts 8", "--eplb-config.num_redundant_experts", "add --enable-eplb"),
        (
            "--eplb-config.num_redundant_expert 8",
            "--eplb-config.num_redundant_expert",
            "did you mean num_redundant_experts",
        ),
        ('--speculative-config \'{"method": "mtp"}\'', "--speculative-config", "num_speculative_tokens"),
        (
            '-sc \'{"method":"mtp","num_speculative_tokens":0}\'',
            "--speculative-config.num_speculative_tokens",
            "from 1",
        ),
        ("-sc.num_speculative_tokens 2 -sc.method mtp --spec-tokens 3", "--spec-tokens", "as well"),
        ("--all2all-backend deepep", "--all2all-backend", "deepep_low_latency"),
        ("-dp 2 -dpl 4", "--data-parallel-size-local", "4 of 2"),
        ("-tp 8 --nnodes 3", "--nnodes", "do not divide"),
        (
            "-cc '{\"cudagraph_capture_sizes\": [1]}' --cudagraph-capture-sizes 1",
            "--cudagraph-capture-sizes",
            "as well",
        ),
        ("--compilation-config '{broken'", "--compilation-config", "give JSON"),
        ("--gpu-memory-utilization 1.5", "--gpu-memory-utilization", "share"),
        ("--max-num-seqs 1k", "--max-num-seqs", "whole number"),
        ("--tensor-parallel-size.x 8", "--tensor-parallel-size.x", "holds no keys"),
    ],
)
def test_faults_of_vllm(flags: str, path: str, text: str) -> None:
    found = faults(vllm, flags)
    assert text in found[path]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("flags", "config", "path", "text"),
    [
        ("--tp-size 8", {}, "--tp-size", "did you mean --tp_size"),
        ("--tp_siz 8", {}, "--tp_siz", "did you mean --tp_size"),  # click takes no abbreviations
        ("--enable_attention_dp", {}, "--enable_attention_dp", "in the file of --config"),
        ("--tp_size 8 --ep_size 3", {}, "moe_expert_parallel_size", "is not 8"),
        (
            "--tp_size 8 --ep_size 4",
            dict(moe_tensor_parallel_size=4),
            "moe_expert_parallel_size",
            "EP 4 × moe_tp 4 is not 8",
        ),
        ("", dict(enable_atention_dp=True), "config.enable_atention_dp", "did you mean enable_attention_dp"),
        ("", dict(enable_attention_dp=1), "enable_attention_dp", "true or false"),
        ("", dict(speculative_config=dict(num_nextn_predict_layers=1)), "speculative_config.decoding_type", "missing"),
        ("", dict(speculative_config=dict(decoding_type="NGram")), "speculative_config.max_draft_len", "missing"),
        (
            "",
            dict(cuda_graph_config=dict(batch_sizes=[1, 8], max_batch_size=16)),
            "cuda_graph_config.max_batch_size",
            "16",
        ),
        ("", dict(moe_config=dict(load_balancr={})), "moe_config.load_balancr", "did you mean load_balancer"),
        (
            "",
            dict(speculative_config=dict(decoding_type="MTP", num_nextn_predict_layer=2)),
            "speculative_config.num_nextn_predict_layer",
            "did you mean num_nextn_predict_layers",
        ),
        ("", dict(moe_config=dict(load_balancer="b.yaml")), "moe_config.load_balancer", "not read"),
    ],
)
def test_faults_of_trtllm(flags: str, config: dict[str, Any], path: str, text: str) -> None:
    found = faults(trtllm, flags, config)
    assert text in found[path]
    assert len(found) == 1


def test_faults_of_the_whole() -> None:
    assert "8 GPUs, not 16" in faults(sglang, "--tp 8", gpus=16)["gpus"]
    model = CATALOG.model("deepseek-v3")
    found = faults(sglang, "--tp 72 --attn-dp-size 72 --moe-a2a-backend deepep", model=model)
    assert "256 expert slots do not divide by EP 72 — add 32 redundant experts" in found["moe_ep"]
    assert "128 attention heads do not divide by tp 72" in faults(vllm, "-tp 72 -ep", model=model)["tp"]
    assert "breaks 128-blocks" in faults(vllm, "-tp 32", model=model)["moe_tp"]
    assert "which engine" in faults(launched, "--tp 8")["engine"]
    assert "the command starts vllm" in faults(launched, "vllm serve x", engine="sglang")["engine"]
    assert "did you mean sglang" in faults(launched, "--tp 8", engine="sglan")["engine"]
    assert "0.5.23" in faults(launched, "--tp 8", engine="sglang", version="0.5.24")["engine_version"]
    assert "closing quotation" in faults(launched, "vllm serve 'x")["command"]
    assert "dynamo.vllm is no server" in faults(launched, "python -m dynamo.vllm --model x")["command"]
    assert "starts no model" in faults(launched, "trtllm-serve disaggregated -c x.yaml")["command"]


def test_a_server_started_as_a_module_takes_no_model_without_a_flag() -> None:
    assert set(faults(launched, "python -m sglang.launch_server some/model --tp 8")) == {"some/model"}
    assert launched("sglang serve some/model --tp 8").model == "some/model"


# --- the lists of flags ---------------------------------------------------------------------------------------------


def books() -> list[FlagBook]:
    return [flag_book(CATALOG, engine, version) for engine in ENGINES for version in known_versions(CATALOG, engine)]


def test_versions_are_known_oldest_first() -> None:
    assert [known_versions(CATALOG, engine) for engine in ENGINES] == [(OLD, NEW), ("0.33.0",), ("1.2",)]


def test_the_lists_are_whole_and_what_they_say_is_of_their_own_flags() -> None:
    least = {OLD: 360, NEW: 540, "0.33.0": 330, "1.2": 35}
    for book in books():
        flags = {spelling.flag.name for spelling in book.words.values()}
        assert (
            sum(len(names.split("|")) for text in book.names.values() for names in text.split()) >= least[book.version]
        )
        for table in (book.choices, book.deprecated):
            assert all(book.flag(name) is not None for name in table), book.title
        assert all(book.flag(name) is None for name in book.renamed), book.title
        own = set(book.keys.get("config", "").split())
        assert all(book.flag(name) is not None or name in own for name in book.meaning), book.title
        assert flags


def test_the_list_of_sglang_0_5_23_agrees_with_the_list_of_the_emitter_s_tests() -> None:
    book = flag_book(CATALOG, "sglang", NEW)
    with Path(__file__).with_name("sglang_0_5_23_flags.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader((line for line in file if line[0] != "#"), delimiter="\t"))
    for row in rows:
        for name in (row["flag"], *row["aliases"].split()):
            assert name in book.words, name
    by_hand = {"--config", "--reasoning-parser", "--tool-call-parser", "--sampling-backend", "--kv-canary-real-data"}
    by_hand |= {
        "--disable-cuda-graph",
        "--enable-dp-attention",
        "--monokernel-backend",
        "--enable-flashinfer-allreduce-fusion",
    }
    listed = {name for row in rows for name in (row["flag"], *row["aliases"].split())}
    assert {word for word in book.words if not word.startswith("--no-")} == listed | by_hand


def test_no_harmless_flag_is_taken_by_a_version_that_lacks_it() -> None:
    sglang("--host 0.0.0.0 --port 30000 --log-level info --enable-metrics --watchdog-timeout 3600 --random-seed 1", OLD)
    assert "--grpc-port" in faults(sglang, "--grpc-port 1", OLD)
    sglang("--grpc-port 1", NEW)
    vllm("--host 0.0.0.0 --port 8000 --uvicorn-log-level info --api-key k --chat-template t.jinja --seed 1")
    assert "--watchdog-timeout" in faults(vllm, "--watchdog-timeout 1")


@pytest.mark.parametrize(
    ("text", "engine", "value"),
    [
        ("32k", "sglang", 32_000),
        ("32Ki", "sglang", 32_768),
        ("25.6k", "sglang", 25_600),
        ("1K", "vllm", 1024),
        ("1k", "vllm", 1000),
    ],
)
def test_sizes_with_suffixes(text: str, engine: str, value: int) -> None:
    assert sized(text, engine) == value


@pytest.mark.parametrize(
    ("text", "engine"), [("32K", "sglang"), ("1.5Ki", "sglang"), ("1.5K", "vllm"), ("1k", "trtllm")]
)
def test_suffixes_that_the_engine_does_not_take(text: str, engine: str) -> None:
    with pytest.raises(ValueError, match="give a whole number"):
        sized(text, engine)


def test_splitting_keeps_what_the_shell_keeps() -> None:
    command = split_command("A=1 B='x y' vllm serve m --chat-template \"a 'b'\" --port=1 | tee log")
    assert command.engine == "vllm"
    assert command.environment == (("A", "1"), ("B", "x y"))
    assert command.words == ("m", "--chat-template", "a 'b'", "--port=1")
    assert command.around == ("|", "tee", "log")


# --- the round trip -------------------------------------------------------------------------------------------------


@cache
def predictor(name: str, gpu: str) -> Predictor:
    return Predictor.of(CATALOG.model(name), cluster_of(CATALOG, gpu, "cx7", None), CATALOG)


def predict(name: str, gpu: str, ep: int, drafts: int, redundant: int | None, kv: str) -> Prediction:
    machine = predictor(name, gpu)
    deployment = Deployment(
        batch=16,
        ep=ep,
        context=4000,
        drafts=drafts,
        redundant=redundant,
        schedule="two-batch" if ep == 144 else "naive",
        exchange=usual(machine.machine.cluster, ep),
        precision=Precision.of(machine.model, kv=kv),
        acceptance=Acceptance.geometric(0.85, max(drafts, 1), "assumed"),
    )
    return machine.predict(deployment)


@pytest.mark.parametrize(
    ("name", "gpu", "ep", "drafts", "redundant"),
    [
        ("deepseek-v3", "h200", 8, 0, None),
        ("deepseek-v3", "h200", 16, 1, None),
        ("deepseek-v3", "h200", 72, 2, 32),
        ("deepseek-v3", "gb200", 144, 3, 32),
        ("kimi-k2", "h200", 128, 0, None),
        ("qwen3-30b-a3b", "h200", 1, 0, None),
        ("qwen3-30b-a3b", "mi300x", 8, 0, None),
        ("llama-3.1-8b", "h200", 4, 0, None),
    ],
)
def test_the_emitted_command_reads_back_as_the_plan(
    name: str, gpu: str, ep: int, drafts: int, redundant: int | None
) -> None:
    prediction = predict(name, gpu, ep, drafts, redundant, "fp8")
    command = sglang_command(prediction)
    model, moe = prediction.model, prediction.model.is_moe
    layout = launched(command.text(), version=NEW, model=model, gpus=ep, catalog=CATALOG)
    assert (layout.tp, layout.pp, layout.moe_tp, layout.gpus) == (1, 1, 1, ep)
    assert (layout.dp, layout.ep, layout.replicas) == ((ep, ep, 1) if moe else (1, 1, ep))
    assert layout.q_len == int(prediction.deployment.q_len)
    assert layout.drafts == drafts
    assert layout.max_running_per_rank == layout.graph_batch == 16
    assert layout.redundant == (int(prediction.slots.redundant) if prediction.slots is not None else 0)
    assert layout.two_batch == (prediction.deployment.schedule == "two-batch")
    assert layout.kv_dtype == "fp8_e4m3"
    assert layout.memory_fraction == pytest.approx(float(prediction.memory.static_fraction), abs=1e-3)
    assert layout.environment == command.environment
    if moe:
        assert model.experts is not None
        batch = rank_batch(layout, experts=model.experts.count, top_k=model.experts.top_k, per_rank=16)
        assert prediction.slots is not None
        assert batch.slots.per_full_rank == prediction.slots.per_full_rank


# --- the batch of one rank ------------------------------------------------------------------------------------------


def test_the_batch_of_the_grouped_gemm_article() -> None:
    """D = 32 ranks, B = 32, Q = 2 of 256 experts, 8 each: E_node = 8 and m = B·Q·D/32 = 64 rows."""
    layout = sglang(
        f"--tp 32 --attn-dp-size 32 --moe-a2a-backend deepep --nnodes 4 {EAGLE} 1 --max-running-requests 1024"
    )
    found = rank_batch(layout, experts=256, top_k=8, per_rank=32)
    assert (found.tokens, found.data_ranks, found.group_tokens) == (64, 32, 2048)
    assert (found.slots.per_full_rank, found.rows_per_slot) == (8, 64)
    same = rank_batch(layout, experts=256, top_k=8, concurrency=1024)
    assert (same.batch, same.rows_per_slot, same.queued) == (32, 64, 0)


def test_attention_tp_divides_the_ranks_that_meet_but_not_the_slots() -> None:
    layout = sglang("--tp 16 --attn-dp-size 4 --ep 16")
    found = rank_batch(layout, experts=256, top_k=8, concurrency=64)
    assert (found.batch, found.data_ranks, found.slots.per_full_rank) == (16, 4, 16)
    assert found.rows_per_slot == 2  # 64 tokens · 8 / 256


def test_replicas_and_stages_share_the_concurrency() -> None:
    assert rank_batch(sglang("--tp 2 --dp-size 4"), experts=8, top_k=2, concurrency=100).batch == 25
    staged = rank_batch(sglang("--tp 8 --pp-size 2"), experts=256, top_k=8, concurrency=100)
    assert (staged.batch, staged.rows_per_slot) == (50, 50 * 8 / 256)


def test_what_the_server_does_not_run_waits() -> None:
    layout = vllm("-dp 8 -ep --max-num-seqs 16")
    found = rank_batch(layout, experts=256, top_k=8, concurrency=200)
    assert (found.batch, found.queued) == (16, 72)
    with pytest.raises(InputError, match="the server runs at most 16"):
        rank_batch(layout, experts=256, top_k=8, per_rank=17)


def test_a_scalar_equals_the_matching_array_element() -> None:
    layout = vllm("-dp 8 -ep --max-num-seqs 16")
    batches = np.array([1.0, 20.0, 100.0, 300.0])
    many = rank_batch(layout, experts=256, top_k=8, concurrency=batches)
    for i, value in enumerate(batches):
        one = rank_batch(layout, experts=256, top_k=8, concurrency=float(value))
        for name in ("batch", "tokens", "group_tokens", "rows_per_slot", "queued"):
            assert np.asarray(getattr(many, name))[i] == pytest.approx(float(getattr(one, name)))


def test_a_batch_must_be_said_once() -> None:
    layout = LaunchedLayout(engine="sglang", version=NEW)
    for given in (dict(), dict(per_rank=1, concurrency=1), dict(per_rank=0), dict(concurrency=float("nan"))):
        with pytest.raises(InputError, match="batch"):
            rank_batch(layout, experts=8, top_k=2, **given)
    with pytest.raises(InputError, match="leave a rank"):
        rank_batch(replace(layout, ep=16), experts=8, top_k=2, per_rank=1)
