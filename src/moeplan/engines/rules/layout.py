"""Which layouts an engine can express: every violated rule at once."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from moeplan.engines.rules import EngineName
from moeplan.errors import Fault, InputError
from moeplan.specs.deployment import head_faults
from moeplan.specs.model import ModelSpec
from moeplan.specs.spread import BLOCK


class Layout(Struct, frozen=True, kw_only=True):
    """Parallel sizes as engines name them: attention tp × dp GPUs per pipeline stage, experts moe_tp × moe_ep."""

    tp: int = 1
    dp: int = 1
    pp: int = 1
    moe_tp: int | None = None
    moe_ep: int | None = None
    redundant: int = 0
    nodes: int = 1

    def completed(self) -> Layout:
        """Infer a missing expert size from tp·dp = moe_tp·moe_ep; a remainder shows up as a fault in violations()."""
        world = self.tp * self.dp
        moe_ep = self.moe_ep if self.moe_ep is not None else max(world // (self.moe_tp or world), 1)
        moe_tp = self.moe_tp if self.moe_tp is not None else max(world // moe_ep, 1)
        return replace(self, moe_tp=moe_tp, moe_ep=moe_ep)


def violations(model: ModelSpec, layout: Layout, engine: EngineName) -> list[Fault]:
    """Return every rule that the layout breaks; an empty list means that the engine can start it."""
    done = layout.completed()
    assert done.moe_tp is not None
    assert done.moe_ep is not None
    world = done.tp * done.dp
    faults = [
        Fault(name, f"is {value}", "give at least 1")
        for name in ("tp", "dp", "pp", "moe_tp", "moe_ep", "nodes")
        if (value := getattr(done, name)) < 1
    ]
    if faults:
        return faults
    faults += _attention_faults(model, done)
    if engine == "sglang" and world * done.pp % done.nodes:
        fix = "use a number of GPUs that the nodes share evenly"
        faults.append(Fault("nodes", f"{world * done.pp} GPUs do not divide over {done.nodes} nodes", fix))
    if model.experts is None:
        return faults
    if done.moe_tp * done.moe_ep != world:
        faults.append(
            Fault("moe_ep", f"moe_tp {done.moe_tp} × moe_ep {done.moe_ep} is not tp × dp = {world}", "make them equal")
        )
    faults += _expert_faults(model, done)
    if engine == "vllm" and done.moe_tp > 1 and done.moe_ep > 1:
        faults.append(Fault("moe_tp", "vLLM splits experts either whole (EP on) or by width (EP off)", "set one to 1"))
    if engine == "sglang" and done.redundant and done.nodes > 1 and done.moe_ep % done.nodes:
        fix = f"give an EP size that {done.nodes} nodes divide, such as {world}"
        faults.append(Fault("moe_ep", f"EP {done.moe_ep} with redundant experts over {done.nodes} nodes", fix))
    return faults


def _attention_faults(model: ModelSpec, layout: Layout) -> list[Fault]:
    faults = list(head_faults(model, layout.tp, f", or tp 1 with dp {layout.tp * layout.dp}"))
    if layout.pp > model.layer_count:
        faults.append(Fault("pp", f"{layout.pp} stages for {model.layer_count} layers", "use fewer stages"))
    return faults


def _expert_faults(model: ModelSpec, layout: Layout) -> list[Fault]:
    experts = model.experts
    assert experts is not None
    assert layout.moe_tp is not None
    assert layout.moe_ep is not None
    faults = []
    slots = experts.count + layout.redundant
    if slots % layout.moe_ep:
        short = -slots % layout.moe_ep
        fix = f"add {short} redundant expert{'s' * (short > 1)} ({(slots + short) // layout.moe_ep} slots per rank)"
        faults.append(Fault("moe_ep", f"{slots} expert slots do not divide by EP {layout.moe_ep}", fix))
    width = experts.width
    if layout.moe_tp > 1 and model.formats.experts == "fp8_block":
        share = width / layout.moe_tp
        if share % BLOCK:
            fix = f"use moe_tp 1 and moe_ep {layout.moe_tp * layout.moe_ep}"
            faults.append(Fault("moe_tp", f"expert width {width} / {layout.moe_tp} = {share:g} breaks 128-blocks", fix))
    elif width % layout.moe_tp:
        faults.append(Fault("moe_tp", f"expert width {width} does not divide by {layout.moe_tp}", "use moe_tp 1"))
    return faults


def check_layout(model: ModelSpec, layout: Layout, engine: EngineName) -> None:
    """Raise InputError naming every rule that the layout breaks."""
    faults = violations(model, layout, engine)
    if faults:
        raise InputError(f"layout for {engine}", faults)


def smallest_gpu_count(bytes_needed: float, bytes_per_gpu: float, *, gpus_per_node: int, power_of_two: bool) -> int:
    """GPUs that hold that many bytes, in whole nodes (trays); `power_of_two` rounds up as tensor parallelism wants.

    Raises InputError when either figure is not positive.
    """
    if not (bytes_needed > 0 and bytes_per_gpu > 0):
        fault = Fault("bytes", f"{bytes_needed:g} needed, {bytes_per_gpu:g} per GPU", "give positive figures")
        raise InputError("memory", [fault])
    gpus = int(-(-bytes_needed // bytes_per_gpu))
    gpus = -(-gpus // gpus_per_node) * gpus_per_node if gpus > 1 else gpus
    return 1 << (gpus - 1).bit_length() if power_of_two else gpus
