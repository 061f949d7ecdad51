"""Every emitted command is one that SGLang 0.5.23 accepts: names, choices, sizes that fit together, shell syntax."""

from __future__ import annotations

import csv
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from moeplan.cli.options import cluster_of
from moeplan.engines.emit.sglang import LaunchCommand, sglang_command
from moeplan.errors import InputError
from moeplan.predict import Prediction, Predictor
from moeplan.routing.load_laws import law_loads
from moeplan.routing.loaded_ranks import LoadedRanks
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision, ScheduleName, check
from moeplan.specs.edits import edited, parse_edits
from moeplan.specs.exchange import usual
from moeplan.specs.model import ModelSpec

CATALOG = Catalog.standard()
with Path(__file__).with_name("sglang_0_5_23_flags.tsv").open(encoding="utf-8") as file:
    FLAGS = {row["flag"]: row for row in csv.DictReader((line for line in file if line[0] != "#"), delimiter="\t")}
ALIASES = {alias for row in FLAGS.values() for alias in row["aliases"].split()}
DEPRECATED = ("--enable-dp-attention", "--cuda-graph-max-bs", "--cuda-graph-bs", "--disable-cuda-graph", "--dp-size")
SIZES = (1, 2, 4, 8, 16, 20, 72, 144, 320)
MODELS = ("deepseek-v3", "kimi-k2", "qwen3-235b-a22b-fp8", "qwen3-coder-480b-a35b", "qwen3-30b-a3b", "glm-4.6")


@cache
def predictor(name: str, gpu: str) -> Predictor:
    return Predictor.of(CATALOG.model(name), cluster_of(CATALOG, gpu, "cx7", None), CATALOG)


def predict(
    name: str,
    gpu: str,
    ep: int,
    *,
    batch: int = 16,
    drafts: int = 0,
    schedule: ScheduleName = "naive",
    kv: str = "bf16",
    core: str = "bf16",
    redundant: int | None = None,
    context: int = 4000,
    exchange: str | None = None,
) -> Prediction:
    machine = predictor(name, gpu)
    deployment = Deployment(
        batch=batch,
        ep=ep,
        exchange=exchange or usual(machine.machine.cluster, ep),
        context=context,
        drafts=drafts,
        schedule=schedule,
        redundant=redundant,
        precision=Precision.of(machine.model, kv=kv, core=core),
        acceptance=Acceptance.geometric(0.85, max(drafts, 1), "assumed"),
    )
    return machine.predict(deployment)


def cases() -> Iterator[Prediction]:
    for name in MODELS:
        for gpu in ("h200", "gb200"):
            spec = CATALOG.model(name)
            for drafts in (0, 1, 3) if spec.mtp_layers else (0,):
                for ep in SIZES:
                    for schedule in ("naive", "two-batch", "single-batch") if ep > 1 else ("naive",):
                        yield predict(name, gpu, ep, drafts=drafts, schedule=schedule, kv="fp8" if drafts else "bf16")


def outcome(prediction: Prediction) -> tuple[LaunchCommand | None, set[str]]:
    """The command, or the paths of the faults that stand against it."""
    try:
        return sglang_command(prediction), set()
    except InputError as error:
        return None, {fault.path for fault in error.faults}


def gpus_in_node(prediction: Prediction) -> int:
    return prediction.cluster.gpus_per_node


def number(command: LaunchCommand, flag: str, default: int = 1) -> int:
    value = dict(command.flags).get(flag)
    return default if value is None else int(value)


def check_flags(command: LaunchCommand) -> None:
    """Names, choices, no flag twice, nothing deprecated, and text that a shell splits into just these words."""
    names = [name for name, _ in command.flags]
    assert len(set(names)) == len(names)
    for name, value in command.flags:
        assert name in FLAGS, name
        choices = FLAGS[name]["choices"].split()
        assert not choices or value in choices, (name, value)
    words = shlex.split(command.text().replace("\\\n", ""))  # shlex, unlike a shell, keeps a continued line's end
    expected = [f"{name}={value}" for name, value in command.environment]
    expected += ["python", "-m", "sglang.launch_server"]
    expected += [word for name, value in command.flags for word in (name, value) if word is not None]
    assert words == expected


def check_moe(prediction: Prediction, command: LaunchCommand) -> None:
    """Sizes that SGLang asserts: tp over nodes, tp over attention-DP, expert slots over EP, the dispatch cap."""
    deployment, model = prediction.deployment, prediction.model
    assert model.experts is not None
    gpus, nodes = int(deployment.ep), number(command, "--nnodes")
    flags = dict(command.flags)
    assert number(command, "--tp-size") == gpus
    assert number(command, "--attn-dp-size") == number(command, "--ep-size") == gpus
    assert (model.experts.count + number(command, "--ep-num-redundant-experts", 0)) % gpus == 0
    assert gpus % nodes == 0
    assert gpus <= nodes * gpus_in_node(prediction) < gpus + gpus_in_node(prediction)
    assert ("--node-rank" in flags) == ("--dist-init-addr" in flags) == (nodes > 1)
    assert ("--enable-eplb" in flags) == ("--ep-num-redundant-experts" in flags)
    assert ("--enable-two-batch-overlap" in flags) == (deployment.schedule == "two-batch")
    assert ("--enable-single-batch-overlap" in flags) == (deployment.schedule == "single-batch")
    environment = dict(command.environment)
    if gpus > 1:
        assert flags["--moe-a2a-backend"] == "deepep"
        cap = int(environment["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"])
        assert int(deployment.batch * deployment.q_len) <= cap <= 1024
    else:
        assert not {"--moe-a2a-backend", "--deepep-mode", "--attn-dp-size", "--ep-size"} & set(flags)
        assert environment == {}
    assert number(command, "--max-running-requests") == int(deployment.batch) * gpus


def check_common(prediction: Prediction, command: LaunchCommand) -> None:
    deployment, flags = prediction.deployment, dict(command.flags)
    assert flags["--model-path"] == prediction.model.repository
    assert number(command, "--cuda-graph-max-bs-decode") == int(deployment.batch)
    assert int(deployment.context) < number(command, "--context-length")
    assert prediction.model.max_position is None or number(command, "--context-length") <= prediction.model.max_position
    fraction = float(flags["--mem-fraction-static"] or 0)
    assert 0 < fraction <= float(prediction.memory.static_fraction) < fraction + 0.001
    drafts = int(deployment.drafts)
    assert number(command, "--speculative-num-steps", 0) == drafts
    assert number(command, "--speculative-num-draft-tokens", 0) == (drafts + 1 if drafts else 0)


def test_the_fixture_holds_the_flags_of_the_wheel() -> None:
    assert len(FLAGS) > 500
    assert FLAGS["--ep-size"]["aliases"].split() == ["--expert-parallel-size", "--ep"]
    assert not set(DEPRECATED[:-1]) & (set(FLAGS) | ALIASES)


def test_many_commands_name_real_flags_with_sizes_that_fit_together() -> None:
    checked = 0
    for prediction in cases():
        command, paths = outcome(prediction)
        if command is None:
            known = {"memory", "nodes", "moe_ep"}
            if prediction.deployment.schedule == "single-batch" and "Blackwell" in prediction.cluster.gpu.architecture:
                assert "schedule" in paths or paths & {"nodes", "moe_ep"}
                known.add("schedule")
            if prediction.deployment.schedule == "two-batch" and prediction.model.family == "glm4_moe":
                assert "schedule" in paths or paths & {"nodes", "moe_ep"}
                known.add("schedule")
            assert paths <= known
            continue
        check_flags(command)
        check_common(prediction, command)
        check_moe(prediction, command)
        assert not set(DEPRECATED) & set(dict(command.flags))
        checked += 1
    assert checked > 200


@pytest.mark.parametrize("ep", [8, 16, 72, 144, 320])
def test_the_usual_instances_of_deepseek_v3_can_be_launched(ep: int) -> None:
    for drafts in (0, 1):
        command = sglang_command(predict("deepseek-v3", "h200", ep, drafts=drafts))
        assert number(command, "--nnodes") == -(-ep // 8)


@pytest.mark.parametrize(("redundant", "ep"), [(0, 16), (16, 16), (32, 72), (64, 320), (32, 144)])
def test_redundant_experts_are_given_with_eplb(redundant: int, ep: int) -> None:
    command = sglang_command(predict("deepseek-v3", "h200", ep, redundant=redundant))
    assert number(command, "--ep-num-redundant-experts", 0) == redundant
    assert ("--enable-eplb" in dict(command.flags)) == (redundant > 0)


@pytest.mark.parametrize(("balanced", "redundant", "eplb"), [(True, 0, True), (True, 64, True), (False, 64, False)])
def test_experts_are_rebalanced_only_where_the_prediction_balanced_them(
    balanced: bool, redundant: int, eplb: bool
) -> None:
    loads = LoadedRanks.of(law_loads("zipf:1", layers=2, experts=256), top_k=8, balanced=balanced)
    plain = predict("deepseek-v3", "h200", 32, redundant=redundant)
    machine = predictor("deepseek-v3", "h200")
    flags = dict(sglang_command(machine.predict(replace(plain.deployment, routed=loads))).flags)
    assert ("--enable-eplb" in flags) is eplb
    assert flags.get("--ep-num-redundant-experts") == (str(redundant) if redundant else None)


def test_nothing_is_rebalanced_where_every_rank_holds_all_experts() -> None:
    """SGLang refuses --enable-eplb with an --ep-size of 1, and so does our own reader of launch commands."""
    loads = LoadedRanks.of(law_loads("zipf:1", layers=2, experts=128), top_k=8, balanced=True)
    plain = predict("qwen3-30b-a3b", "h200", 1)
    cut = replace(plain.deployment, tp=4, moe_tp=4, exchange="all-reduce", routed=loads)
    command = sglang_command(predictor("qwen3-30b-a3b", "h200").predict(cut))
    assert "--enable-eplb" not in dict(command.flags)
    assert not any("--init-expert-location" in note for note in command.notes)


def test_redundant_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="moe_ep: 264 expert slots do not divide by EP 16 — add 8 redundant"):
        sglang_command(predict("deepseek-v3", "h200", 16, redundant=8))


def test_gpus_that_nodes_cannot_share_evenly_are_refused() -> None:
    with pytest.raises(InputError, match="nodes: 20 GPUs do not divide over 3 nodes"):
        sglang_command(predict("qwen3-coder-480b-a35b", "h200", 20))
    command = sglang_command(predict("qwen3-coder-480b-a35b", "gb200", 20))
    assert number(command, "--nnodes") == 5


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-32b"])
@pytest.mark.parametrize(("gpus", "replicas"), [(1, 1), (4, 4), (8, 8), (16, 8), (72, 8)])
def test_a_dense_model_is_replicated_inside_each_node(name: str, gpus: int, replicas: int) -> None:
    """SGLang 0.5.23 refuses --dp-size over several nodes, and --max-running-requests counts per replica."""
    prediction = predict(name, "h200", gpus, batch=32)
    command = sglang_command(prediction)
    check_flags(command)
    check_common(prediction, command)
    assert number(command, "--dp-size") == replicas
    assert number(command, "--max-running-requests") == 32
    assert not {"--nnodes", "--tp-size", "--ep-size", "--attn-dp-size", "--moe-a2a-backend"} & set(dict(command.flags))
    assert command.environment == ()


@pytest.mark.parametrize(
    ("name", "gpus", "kv", "dtype", "called"),
    [
        ("deepseek-v3", 16, "bf16", "bf16", None),
        ("deepseek-v3", 16, "fp8", "fp8_e4m3", "an FP8 cache"),
        ("qwen3-30b-a3b", 1, "nvfp4", "nvfp4", "an NVFP4 cache"),
        ("llama-3.1-8b", 4, "nvfp4", "nvfp4", "an NVFP4 cache"),
    ],
)
def test_cache_formats(name: str, gpus: int, kv: str, dtype: str, called: str | None) -> None:
    command = sglang_command(predict(name, "gb200", gpus, kv=kv))
    check_flags(command)
    assert dict(command.flags)["--kv-cache-dtype"] == dtype
    found = [note for note in command.notes if "BF16 attention core" in note]
    assert [note.split(" read by")[0] for note in found] == ([called] if called else [])


@pytest.mark.parametrize(
    ("name", "gpu", "gpus", "problem"),
    [
        ("qwen3-30b-a3b", "h200", 1, "no nvfp4 cache on H200"),
        ("qwen3-30b-a3b", "mi300x", 1, "no nvfp4 cache on MI300X"),
        ("deepseek-v3", "gb200", 16, "does not transfer an nvfp4 cache to a decode instance"),
    ],
)
def test_an_nvfp4_cache_that_sglang_refuses_is_refused(name: str, gpu: str, gpus: int, problem: str) -> None:
    """handle_kv4_compatibility of SGLang 0.5.23: Blackwell only, and not with --disaggregation-mode."""
    with pytest.raises(InputError, match=f"kv: .*{problem}"):
        sglang_command(predict(name, gpu, gpus, kv="nvfp4"))


@pytest.mark.parametrize(
    ("name", "gpu", "gpus", "backend"),
    [
        ("deepseek-v3", "h200", 16, "flashmla"),
        ("qwen3-30b-a3b", "h200", 8, "fa3"),
        ("deepseek-v3", "gb200", 16, "trtllm_mla"),
        ("qwen3-30b-a3b", "gb200", 1, "trtllm_mha"),
        ("qwen3-30b-a3b", "mi300x", 8, None),
    ],
)
def test_an_fp8_core_is_started_by_its_attention_backend(name: str, gpu: str, gpus: int, backend: str | None) -> None:
    command = sglang_command(predict(name, gpu, gpus, kv="fp8", core="fp8"))
    check_flags(command)
    assert dict(command.flags).get("--attention-backend") == backend
    assert any("no flag of SGLang 0.5.23 is known to us" in note for note in command.notes) == (backend is None)
    assert any("an FP8 attention core: --attention-backend" in note for note in command.notes) == (backend is not None)


def test_an_fp8_core_on_a_bf16_cache_has_no_flag() -> None:
    command = sglang_command(predict("deepseek-v3", "h200", 16, core="fp8"))
    assert "--attention-backend" not in dict(command.flags)
    assert any("no flag of SGLang 0.5.23" in note and "BF16 cache" in note for note in command.notes)


# --- all-to-all backends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt-oss-120b", "gpt-oss-20b", "mixtral-8x7b", "mixtral-8x22b"])
def test_families_without_a_path_through_deepep_are_refused_but_on_one_gpu(name: str) -> None:
    with pytest.raises(InputError, match="no path through deepep for") as caught:
        sglang_command(predict(name, "h200", 8, batch=2, context=1000))
    hidden = CATALOG.model(name).hidden
    assert ("hidden" in {fault.path for fault in caught.value.faults}) == (hidden == 2880)
    if name != "mixtral-8x22b":  # 280 GB
        check_flags(sglang_command(predict(name, "h200", 1, batch=2, context=1000)))


@pytest.mark.parametrize(
    "name", ["glm-4.5", "glm-4.5-air", "minimax-m2", "kimi-k2", "qwen3-30b-a3b", "deepseek-v2", "deepseek-v2-lite"]
)
def test_families_with_a_path_through_deepep_are_emitted_without_a_doubt(name: str) -> None:
    command = sglang_command(predict(name, "h200", 16, batch=2, context=1000))
    assert dict(command.flags)["--moe-a2a-backend"] == "deepep"
    assert not any("not verified: whether" in note for note in command.notes)


def test_every_hidden_size_that_deepep_lacks_is_refused() -> None:
    prediction = predict("qwen3-30b-a3b", "h200", 8)
    odd = replace(prediction, model=replace(prediction.model, hidden=2944))
    with pytest.raises(InputError, match="hidden: deepep is not compiled for a hidden size of 2944 — it knows 2048, "):
        sglang_command(odd)


def test_a_family_that_was_not_verified_is_emitted_with_a_note() -> None:
    for name, gpu in (("minimax-m2", "mi300x"), ("gpt-oss-120b", "mi300x"), ("gpt-oss-120b", "ascend-910c")):
        assert any("not verified: whether" in note for note in sglang_command(predict(name, gpu, 8, batch=2)).notes)
    prediction = predict("qwen3-30b-a3b", "h200", 8)
    new = replace(prediction, model=replace(prediction.model, family="new_moe"))
    assert any("not verified: whether SGLang 0.5.23 runs new_moe" in note for note in sglang_command(new).notes)


@pytest.mark.parametrize(
    ("gpu", "backend", "variable"),
    [
        ("h200", "deepep", "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
        ("gb200", "deepep", "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
        ("mi300x", "mori", "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
        ("ascend-910c", "ascend_fuseep", "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
    ],
)
def test_each_backend_gets_its_own_variable_and_notes(gpu: str, backend: str, variable: str) -> None:
    command = sglang_command(predict("qwen3-30b-a3b", gpu, 8, batch=200))
    flags = dict(command.flags)
    assert flags["--moe-a2a-backend"] == backend
    assert command.environment == ((variable, "200"),)
    assert ("--deepep-mode" in flags) == (backend in ("deepep", "mori"))
    assert any("--deepep-mode" in note for note in command.notes) == (backend in ("deepep", "mori"))


@pytest.mark.parametrize("gpu", ["h200", "mi300x"])
@pytest.mark.parametrize("gpus", [1, 8])
def test_notes_speak_of_flags_in_the_command_only(gpu: str, gpus: int) -> None:
    for kv, core in (("bf16", "bf16"), ("fp8", "bf16"), ("fp8", "fp8")):
        command = sglang_command(predict("qwen3-30b-a3b", gpu, gpus, kv=kv, core=core))
        named = {word.rstrip(":;,") for note in command.notes for word in note.split() if word.startswith("--")}
        assert named <= set(dict(command.flags))


@pytest.mark.parametrize("kv", ["int8", "mxfp4", "int4_g32", "fp32"])
def test_cache_formats_that_sglang_lacks_are_refused(kv: str) -> None:
    with pytest.raises(InputError, match=f"kv: no {kv} cache in SGLang"):
        sglang_command(predict("deepseek-v3", "h200", 32, kv=kv))


def test_everything_wrong_is_said_at_once() -> None:
    prediction = predict("deepseek-v3", "h200", 16, batch=1500, kv="int8")
    with pytest.raises(InputError) as caught:
        sglang_command(prediction)
    assert [fault.path for fault in caught.value.faults] == ["kv", "batch", "memory"]


def test_two_batch_overlap_on_one_gpu_is_refused() -> None:
    """check_two_batch_overlap of SGLang 0.5.23 wants an all-to-all backend or attention DP."""
    prediction = predict("qwen3-30b-a3b", "h200", 1)
    one = replace(prediction.deployment, schedule="two-batch")
    with pytest.raises(InputError, match="hides an all-to-all, one GPU has none"):
        check(one, prediction.model)


@pytest.mark.parametrize(
    "repository",
    [
        "/data/my models/it's here",
        "$(touch owned)",
        "`touch owned`",
        '"; rm -rf "$HOME',
        "a\nb",
        "$NODE_RANK/../x",
        "模型/ü",
    ],
)
def test_a_models_path_is_quoted_whatever_it_holds(repository: str, tmp_path: Path) -> None:
    prediction = predict("deepseek-v3", "h200", 16)
    command = sglang_command(replace(prediction, model=replace(prediction.model, repository=repository)))
    check_flags(command)
    script = f'python() {{ printf "%s\\0" "$@"; }}\n{command.text()}'
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    words = shell.stdout.split("\0")
    assert words[words.index("--model-path") + 1] == repository
    assert shell.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_only_the_nodes_own_variables_are_left_to_the_shell() -> None:
    text = sglang_command(predict("deepseek-v3", "h200", 16)).text()
    assert '--node-rank "$NODE_RANK"' in text
    assert '--dist-init-addr "$HEAD_ADDRESS:20000"' in text
    assert text.count("$") == 2
    assert "$" not in sglang_command(predict("deepseek-v3", "h200", 8)).text()


def test_the_notes_say_where_to_run_it() -> None:
    many = sglang_command(predict("deepseek-v3", "h200", 72)).notes
    assert "0.5.23" in many[0]
    assert "9 nodes" in many[0]
    assert "one node" in sglang_command(predict("deepseek-v3", "h200", 8)).notes[0]
    assert any("replica" in note for note in sglang_command(predict("llama-3.1-8b", "h200", 16)).notes)


def test_the_context_length_never_exceeds_what_the_model_reads() -> None:
    spec: ModelSpec = CATALOG.model("qwen3-30b-a3b")
    assert spec.max_position == 40960
    command = sglang_command(predict("qwen3-30b-a3b", "h200", 8, context=30_000, batch=2))
    assert number(command, "--context-length") == 40960
    assert any("the most that the model reads, above the mean of 30,000" in note for note in command.notes)


@pytest.mark.parametrize(("context", "words"), [(131072, "the predicted mean as well"), (4000, "leaves room above")])
def test_the_context_note_is_true_at_the_models_maximum(context: int, words: str) -> None:
    command = sglang_command(predict("kimi-k2", "h200", 64, context=context, batch=1))
    (note,) = [note for note in command.notes if "--context-length" in note]
    assert words in note
    assert ("raise it" in note) == (context == 4000)


def test_a_model_with_an_edited_maximum_is_refused() -> None:
    """SGLang wants a rope_scaling beside it, which is the checkpoint's to give."""
    spec = edited(CATALOG.model("qwen3-235b-a22b"), "model", parse_edits(["model.max_position=131072"]))
    cluster = cluster_of(CATALOG, "h200", "cx7", None)
    acceptance = Acceptance.geometric(0.85, 1, "assumed")
    deployment = Deployment(batch=1, ep=16, context=65536, precision=Precision.of(spec), acceptance=acceptance)
    with pytest.raises(InputError, match=r"model: was edited by hand.*rope_scaling"):
        sglang_command(Predictor.of(spec, cluster, CATALOG).predict(deployment))


@pytest.mark.parametrize(
    ("name", "gpu", "said"),
    [("qwen3-30b-a3b", "h100", True), ("deepseek-v3", "h100", False), ("qwen3-30b-a3b-fp8", "h100", False)],
)
def test_experts_that_deepep_takes_only_with_a_chosen_kernel_get_a_note(name: str, gpu: str, said: bool) -> None:
    notes = " ".join(sglang_command(predict(name, gpu, 16)).notes)
    assert ("a MoE runner that takes them" in notes) is said


def test_times_borrowed_from_deepep_are_called_so() -> None:
    notes = " ".join(sglang_command(predict("qwen3-30b-a3b", "ascend-910c", 8)).notes)
    assert "are those of DeepEP's low-latency kernels" in notes
    assert "are those of" not in " ".join(sglang_command(predict("deepseek-v3", "mi300x", 8)).notes)


@pytest.mark.parametrize(
    ("exchange", "gpu", "backend", "mode", "variable"),
    [
        ("deepep-low-latency", "h200", "deepep", "low_latency", "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
        ("deepep-normal", "h200", "deepep", "normal", None),
        ("deepep-v2", "h200", "deepep_v2", None, "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
        ("pplx", "h200", "pplx", "low_latency", "SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
        ("uccl-low-latency", "h200", "deepep", "low_latency", "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
        ("nvlink-one-sided", "gb200", "flashinfer", None, "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
        ("mori-normal", "mi355x", "mori", "normal", "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"),
    ],
)
def test_each_all_to_all_is_asked_for_by_its_flags(
    exchange: str, gpu: str, backend: str, mode: str | None, variable: str | None
) -> None:
    """moe_hook.py of SGLang 0.5.23: normal mode turns CUDA graphs off, so no graph size is asked for."""
    command = sglang_command(predict("deepseek-v3", gpu, 16, exchange=exchange))
    check_flags(command)
    flags = dict(command.flags)
    assert (flags["--moe-a2a-backend"], flags.get("--deepep-mode")) == (backend, mode)
    assert command.environment == (((variable, "128"),) if variable else ())
    assert ("--disaggregation-mode" in flags) == (variable is not None)
    captured = exchange != "deepep-normal"
    assert ("--cuda-graph-max-bs-decode" in flags) == captured
    assert any("turns CUDA graphs off" in note for note in command.notes) != captured
    assert any("deep_ep_wrapper" in note for note in command.notes) == exchange.startswith("uccl")
    assert flags.get("--deepep-v2-mode") == ("hybrid" if backend == "deepep_v2" else None)


@pytest.mark.parametrize(
    ("name", "exchange", "gpu", "problem"),
    [
        ("deepseek-v3", "hybrid-ep", "h100", "SGLang 0.5.23 has no backend for hybrid-ep — use deepep-low-latency, "),
        ("deepseek-v3", "nvlink-two-sided", "gb200", "SGLang 0.5.23 has no backend for nvlink-two-sided"),
        ("deepseek-v3", "pplx", "b200", "pplx is not known to run on B200"),
        ("glm-4.5", "deepep-v2", "h200", "no path through deepep_v2 for glm4_moe"),
        ("qwen3-30b-a3b", "deepep-low-latency", "l40s", "deepep is not known to run on L40S"),
    ],
)
def test_an_all_to_all_that_sglang_cannot_run_is_refused(name: str, exchange: str, gpu: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"all_to_all: .*{problem}"):
        sglang_command(predict(name, gpu, 16, exchange=exchange))


@pytest.mark.parametrize(("name", "runs"), [("deepseek-v2", True), ("kimi-k2", True), ("glm-4.5", False)])
def test_two_batch_overlap_is_refused_for_layers_that_it_is_not_written_for(name: str, runs: bool) -> None:
    """batch_overlap/operations_strategy.py of SGLang 0.5.23 raises NotImplementedError for any other layer."""
    prediction = predict(name, "h200", 16, schedule="two-batch")
    command, paths = outcome(prediction)
    assert (command is not None) == runs
    assert paths == (set() if runs else {"schedule"})


def test_two_batch_overlap_needs_a_backend_with_two_dispatchers() -> None:
    for exchange, gpu in (("deepep-v2", "h200"), ("nvlink-one-sided", "gb200")):
        with pytest.raises(InputError, match="schedule: two-batch has no dispatcher of"):
            sglang_command(predict("deepseek-v3", gpu, 16, schedule="two-batch", exchange=exchange))


@pytest.mark.parametrize("schedule", ["two-batch-best", "two-batch-prefill"])
def test_an_order_without_a_switch_is_refused(schedule: ScheduleName) -> None:
    command, paths = outcome(predict("deepseek-v3", "h200", 32, schedule=schedule))
    assert command is None
    assert paths == {"schedule"}
