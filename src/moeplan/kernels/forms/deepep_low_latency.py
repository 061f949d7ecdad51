"""A low-latency all-to-all of expert parallelism: every token goes to each of its experts, as top_k messages.

Of the messages that a rank sends, 1/R stay on it, (g − 1)/R cross the scale-up link of g GPUs, (R − g)/R cross the NIC.
Nothing is sent once for two experts of one rank (DeepEP's README, «Inference decoding»). Before and after the wire each
SM handles its share of the tokens, and an SM serves one expert or a few: with few experts few SMs work.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kernels.forms.network import FABRIC, columns, link_if_any, message_bytes, node_count
from moeplan.specs.gpu import Gpu

OVERLAP: Final = 1.3  # of start and wire, and of the two wires, which the same SMs feed


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """pn(start + distance, pn(link, NIC)) + tokens per SM; the columns are in SHAPE, the parameters in PARAMETERS."""
    column = columns(shape, SHAPE)
    ep, experts, tokens = column["ep"], column["experts"], column["tokens"]
    group = np.minimum(column["per_node"], ep)
    # Of one token: a search has few sizes and many batches, and powers take long.
    sent = column["skew"] * column["top_k"] * message_bytes(kernel, column["hidden"], column["combine"])
    link = sent * (group - 1.0) / ep / (given["link"] * link_if_any(gpu))
    nic = sent * (ep - group) / ep / (given["nic"] * column["nic_rate"])
    each = blend(OVERLAP, link, nic)
    count = node_count(ep, column["per_node"])
    distance = given["reach"] * (1.0 - 1.0 / count) + given["hop"] * np.log2(count)
    start = given["floor"] + given["expert"] * experts + distance * column["nic_latency"]
    busy = np.ceil(experts / np.ceil(experts / gpu.units))  # SMs: whole experts each
    joined = (start**OVERLAP + tokens**OVERLAP * each**OVERLAP) ** (1.0 / OVERLAP)  # start and tokens · each
    seconds = joined + tokens * (given["token"] * column["skew"] / busy)
    return Parts(seconds=seconds, compute=0.0, memory=0.0, network=tokens * each)


SHAPE: Final = ("tokens", "hidden", "top_k", "experts", "ep", "combine", *FABRIC)
PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=1e-5, low=1e-6, high=2e-4, meaning="start and end inside a node"),
    Parameter(name="expert", unit="s", start=1e-8, low=1e-10, high=3e-7, meaning="counters of an expert"),
    Parameter(name="reach", unit="", start=1.5, low=0.01, high=10.0, meaning="NIC latencies where nodes are many"),
    Parameter(name="hop", unit="", start=0.1, low=0.001, high=10.0, meaning="NIC latencies per doubling of nodes"),
    Parameter(name="link", unit="", start=0.55, low=0.1, high=1.0, meaning="share of the scale-up link's rate"),
    Parameter(name="nic", unit="", start=0.9, low=0.1, high=1.0, meaning="share of the NIC's rate"),
    Parameter(name="token", unit="s", start=1e-6, low=1e-9, high=2e-5, meaning="a token on one SM"),
)
FORM: Final = Form(
    name="deepep_low_latency",
    shape=SHAPE,
    whole=("ep", "hidden", "top_k", "experts"),
    roles=("wire",),
    parameters=PARAMETERS,
    parts=parts,
    along="ep",
)
