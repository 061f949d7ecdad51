"""What the model sees of a launched server."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from moeplan.engines.rules import EngineName
from moeplan.engines.rules.layout import Layout

Role = Literal["both", "prefill", "decode"]


class LaunchedLayout(Struct, frozen=True, kw_only=True):
    """Sizes of one server as its flags set them, whatever the engine calls them; None where a start alone decides.

    tp: GPUs that share one attention layer; dp: attention ranks with requests of their own (attention-DP); cp: GPUs
    that share the context of a rank's requests; pp: pipeline stages; replicas: whole copies behind one address. A stage
    has tp · dp · cp GPUs, and its experts lie on moe_tp · ep · moe_dp of them: ep GPUs share the experts whole, moe_tp
    cut each, moe_dp hold copies. redundant: expert slots beyond one per expert.
    q_len: tokens that the main model verifies per request and step, 1 + drafts of a chain, the whole tree where
    tree_width (the drafts kept at each level) is above 1; draft_passes: steps of the draft model.
    max_running: requests, as the engine's flag counts them; max_running_per_rank: of one attention-DP rank. cuda_graph:
    whether decode steps are captured; graph_batch: the largest captured, in requests of one rank.
    prefill_tokens: prompt tokens of a step of one rank; None too where prompts are not cut.
    """

    engine: EngineName
    version: str
    model: str | None = None
    tp: int = 1
    dp: int = 1
    cp: int = 1
    pp: int = 1
    replicas: int = 1
    nodes: int = 1
    ep: int = 1
    moe_tp: int = 1
    moe_dp: int = 1
    all_to_all: str = "none"
    redundant: int = 0
    eplb: bool = False
    two_batch: bool = False
    q_len: int = 1
    tree_width: int = 1
    draft_passes: int = 0
    max_running: int | None = None
    max_running_per_rank: int | None = None
    cuda_graph: bool = True
    graph_batch: int | None = None
    context_length: int | None = None
    kv_dtype: str = "auto"
    memory_fraction: float | None = None
    prefill_tokens: int | None = None
    role: Role = "both"
    environment: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def drafts(self) -> int:
        """Tokens guessed per request and step: those verified, less the one that is certain."""
        return self.q_len - 1

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage of one replica."""
        return self.tp * self.dp * self.cp

    @property
    def gpus(self) -> int:
        """GPUs of the server."""
        return self.stage_gpus * self.pp * self.replicas

    @property
    def ranks(self) -> int:
        """Attention ranks with requests of their own, over all replicas."""
        return self.dp * self.replicas

    @property
    def layout(self) -> Layout:
        """The sizes as the layout rules name them; context parallelism counts as dp, copies of experts as moe_tp."""
        return Layout(
            tp=self.tp,
            dp=self.dp * self.cp,
            pp=self.pp,
            moe_tp=self.moe_tp * self.moe_dp,
            moe_ep=self.ep,
            redundant=self.redundant,
            nodes=self.nodes,
        )
