"""An all-to-all of expert parallelism inside one scale-up domain (TensorRT-LLM's NVLinkOneSided and NVLinkTwoSided).

A token goes once to every rank that holds one of its experts; beside what crosses the link, every token and every copy
passes through the SMs, which is why one domain of few ranks is slower per copy than one of many.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from moeplan.kernels.forms.form import Form, Kernel, Parameter, Parameters, Parts, Shape, blend
from moeplan.kernels.forms.network import columns, link_of, message_bytes
from moeplan.routing.targets import distinct_targets
from moeplan.specs.gpu import Gpu


def parts(gpu: Gpu, kernel: Kernel, shape: Shape, given: Parameters) -> Parts:
    """pn(start, copies off this rank + passes over each token); columns in SHAPE, parameters in PARAMETERS."""
    column = columns(shape, SHAPE)
    ep, experts, tokens = column["ep"], column["experts"], column["tokens"] * column["skew"]
    limit = {"groups": column["groups"], "top_groups": column["top_groups"]}
    ranks = distinct_targets(ep, experts=experts, top_k=column["top_k"], **limit)
    size = message_bytes(kernel, column["hidden"], column["combine"])
    link = tokens * ranks * (1.0 - 1.0 / ep) * size / (given["link"] * link_of(gpu))
    passes = tokens * (given["passes"] * size / link_of(gpu) + given["token"])
    wire = link + passes
    start = given["floor"] + given["rank"] * np.log2(ep)
    seconds = blend(given["overlap"], start, wire)
    zero = np.zeros_like(seconds)
    return Parts(seconds=seconds, compute=zero, memory=zero, network=wire + zero)


SHAPE: Final = ("tokens", "hidden", "top_k", "experts", "ep", "combine")
PARAMETERS: Final = (
    Parameter(name="floor", unit="s", start=1e-5, low=1e-6, high=1e-4, meaning="start and end"),
    Parameter(name="rank", unit="s", start=1e-6, low=1e-8, high=1e-5, meaning="start, per doubling of ranks"),
    Parameter(name="link", unit="", start=0.8, low=0.1, high=1.2, meaning="share of the scale-up link's rate"),
    Parameter(name="passes", unit="", start=3.0, low=0.001, high=30.0, meaning="passes over a token at that rate"),
    Parameter(name="token", unit="s", start=5e-9, low=1e-12, high=1e-6, meaning="a token, whatever its size"),
    Parameter(name="overlap", unit="", start=1.5, low=0.7, high=4.0, meaning="power that joins start and wire"),
)
FORM: Final = Form(
    name="nvlink_all_to_all",
    shape=SHAPE,
    whole=("ep", "tokens"),
    roles=("wire",),
    parameters=PARAMETERS,
    parts=parts,
    along="ep",
)
