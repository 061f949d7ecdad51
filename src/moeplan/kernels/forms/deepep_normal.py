"""A high-throughput all-to-all of expert parallelism: a token goes once to every rank and every node that it needs.

A few SMs do all of it: they put a token on the NIC once per node, and on the scale-up link once per rank, so that their
rate counts as much as the links' (DeepEP's README, «Normal kernels»). The SMs are lost to whatever runs beside.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kernels.forms.network import FABRIC, columns, link_if_any, message_bytes, node_count
from moeplan.routing.targets import distinct_targets
from moeplan.specs.gpu import Gpu

LONGEST: Final = 4.0  # the power that joins SMs, link and NIC, nearly the longest of them


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """Start + distance + pn(SMs, link, NIC); the columns are in SHAPE, the parameters in PARAMETERS."""
    column = columns(shape, SHAPE)
    ep, tokens = column["ep"], column["tokens"] * column["skew"]
    limit = {"groups": column["groups"], "top_groups": column["top_groups"]}
    ranks = distinct_targets(ep, experts=column["experts"], top_k=column["top_k"], **limit)
    count = node_count(ep, column["per_node"])
    reached = distinct_targets(count, experts=column["experts"], top_k=column["top_k"], **limit)
    size = message_bytes(kernel, column["hidden"], column["combine"])
    group = np.minimum(column["per_node"], ep)
    link = tokens * ranks * (1.0 - 1.0 / group) * size / (given["link"] * link_if_any(gpu))
    nic = tokens * reached * (1.0 - 1.0 / count) * size / (given["nic"] * column["nic_rate"])
    forwarded = np.where(count > 1.0, reached, 0.0) * size / given["forward"]
    each = given["token"] + ranks * size / given["copy"] + forwarded
    sending = tokens * each / column["sms"] ** given["spread"]
    wire = blend(LONGEST, sending, link, nic)
    start = given["floor"] + given["first"] * size + given["hop"] * np.log2(count) * column["nic_latency"]
    seconds = blend(given["overlap"], start, wire)
    zero = np.zeros_like(seconds)
    return Parts(seconds=seconds, compute=zero, memory=zero, network=wire + zero)


SHAPE: Final = ("tokens", "hidden", "top_k", "experts", "ep", "sms", "combine", *FABRIC)
PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=2.5e-5, low=1e-6, high=5e-4, meaning="start, counting and end in a node"),
    Parameter(name="first", unit="s", start=1e-9, low=1e-12, high=1e-8, meaning="latency of a byte of one message"),
    Parameter(name="hop", unit="", start=3.0, low=0.01, high=20.0, meaning="NIC latencies per doubling of nodes"),
    Parameter(name="token", unit="s", start=4e-7, low=1e-9, high=1e-5, meaning="a token on one SM"),
    Parameter(name="copy", unit="B/s", start=2.5e10, low=2e9, high=2e11, meaning="an SM's rate, to a rank"),
    Parameter(name="forward", unit="B/s", start=1.2e10, low=1e9, high=2e11, meaning="an SM's rate, to a node"),
    Parameter(name="spread", unit="", start=0.95, low=0.7, high=1.0, meaning="power of the SMs by which they help"),
    Parameter(name="link", unit="", start=0.8, low=0.1, high=1.0, meaning="share of the scale-up link's rate"),
    Parameter(name="nic", unit="", start=0.9, low=0.1, high=1.0, meaning="share of the NIC's rate"),
    Parameter(name="overlap", unit="", start=1.0, low=0.7, high=3.0, meaning="power that joins start and wire"),
)
FORM: Final = Form(
    name="deepep_normal",
    shape=SHAPE,
    whole=("ep", "hidden", "top_k", "experts"),
    roles=("wire",),
    parameters=PARAMETERS,
    parts=parts,
    along="ep",
)
