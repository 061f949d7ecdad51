"""Silicon tables as efficiency surfaces, the form in which the kernel library takes its own tables.

Left out: collectives (their tables are times by message size) and attention of whole modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moeplan.errors import Fault, InputError
from moeplan.kernels.shape_family import MLA_SHAPE, ShapeFamily
from moeplan.kernels.silicon import SiliconTable
from moeplan.kernels.silicon_flags import Flag
from moeplan.kernels.surface import Surface
from moeplan.kernels.work import attention_work, gemm_work, grouped_gemm_work, ideal_attention_time, ideal_gemm_time
from moeplan.kinds import Real
from moeplan.specs.gpu import Gpu
from moeplan.specs.precision import Format, weight_format

# The tables' names of formats; the others (int8_wo, w4afp8 …) are no format of ours.
FORMATS: Final = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
}
LATENT: Final = (512, 128)  # DeepSeek's cache without RoPE, and one head: the sides of mla_bmm
EVEN: Final = {"moe": "balanced", "wideep_generation_moe": "uniform"}

Placed = tuple[NDArray[Any], NDArray[Any], Real, Real, Real]  # n, k, series, line, ideal seconds; by row


def silicon_family(table: SiliconTable, gpu: Gpu, *, core: Format | None = None) -> ShapeFamily:
    """Turn a table of one kernel and one format into surfaces of ideal time over measured time; unfit rows left out.

    gemm: by weights (n, k) over m. mla_bmm: by (n, k), 512 x 128 before and 128 x 512 after the core, series the heads,
    line the tokens. generation_mla: series the heads, line the cached tokens of the whole batch. moe and
    wideep_generation_moe: by the first GEMM's (n, k), series the active experts of one GPU, line the rows of each, for
    both GEMMs, their activation and routing together, where experts are evenly loaded.
    core: what generation_mla multiplies in, by default what the table says; it says bf16 where Blackwell's kernels take
    an fp8 cache as it is, and then shares above 1 come out.
    Raises InputError when the family has no such form, or rows of several formats or loads are mixed.
    """
    if core is not None and table.family != "generation_mla":
        raise InputError("silicon", [Fault("core", f"means nothing for {table.family}", "leave it out")])
    if table.family not in _PLACES:
        fix = f"of these: {', '.join(_PLACES)}"
        raise InputError("silicon", [Fault(table.family, "has no form as efficiency surfaces", fix)])
    fit = table.rows(table.fit)
    if not len(fit):
        words = ", ".join(Flag(int(np.bitwise_or.reduce(table.flags, initial=0))).words)
        raise InputError("silicon", [Fault(table.source, f"holds no row fit for use: {words or 'it is empty'}")])
    n, k, series, line, ideal = _mla(fit, gpu, core) if core is not None else _PLACES[table.family](fit, gpu)
    shares = ideal / fit["seconds"]
    points: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    shapes = zip(n.tolist(), k.tolist(), strict=True)
    rows = np.stack(np.broadcast_arrays(series, line, shares), axis=-1).tolist()
    for shape, (at, along, share) in zip(shapes, rows, strict=True):
        points.setdefault(shape, []).append((at, along, share))
    left_out = len(table) - len(fit)
    title = f"{table.source}, {left_out} of {len(table)} rows left out" if left_out else table.source
    return ShapeFamily(title, gpu.slug, {shape: Surface.of(found) for shape, found in points.items()})


def _gemm(table: SiliconTable, gpu: Gpu) -> Placed:
    weights = _format(table, "gemm_dtype")
    m, n, k = (_axis(table, name) for name in ("m", "n", "k"))
    work = gemm_work(m=m, n=n, k=k, weights=weights)
    return n, k, np.ones(m.size), m, ideal_gemm_time(work, gpu, weights.computes_in)


def _batched(table: SiliconTable, gpu: Gpu) -> Placed:
    weights = _format(table, "bmm_dtype")
    before = table["op_name"] == "mla_gen_pre"
    n: Any = np.where(before, *LATENT)
    k: Any = np.where(before, *reversed(LATENT))
    heads, tokens = _axis(table, "num_heads"), _axis(table, "num_tokens")
    work = gemm_work(m=tokens, n=n, k=k, weights=weights, copies=heads)
    return n, k, heads, tokens, ideal_gemm_time(work, gpu, weights.computes_in)


def _mla(table: SiliconTable, gpu: Gpu, core: Format | None = None) -> Placed:
    computes_in = (core or _format(table, "mla_dtype")).computes_in
    batch, q_len, step, heads = (_axis(table, name) for name in ("batch_size", "isl", "step", "num_heads"))
    context = step + q_len  # the new token attends to itself
    work = attention_work(
        batch=batch,
        q_len=q_len,
        context=context,
        heads=heads,
        qk_dim=MLA_SHAPE[0],
        v_dim=MLA_SHAPE[1],
        cache_elements=MLA_SHAPE[0],
        cache=_format(table, "kv_cache_dtype"),
    )
    n, k = (np.full(len(table), side) for side in MLA_SHAPE)
    ideal = ideal_attention_time(work, gpu, computes_in)
    return n, k, heads * q_len, batch * context, ideal


def _moe(table: SiliconTable, gpu: Gpu) -> Placed:
    """Both GEMMs of the experts of one GPU: gate and up side by side unless the experts are ungated, then down.

    Of R = num_tokens top_k / ep rows every one of e = num_experts / ep local experts gets as many, or R of them one.
    """
    weights = _format(table, "moe_dtype")
    _one(table, "distribution", EVEN[table.family])
    rows = np.maximum(table["num_tokens"] * table["topk"] / table["moe_ep_size"], 1.0)
    groups = np.minimum(table["num_experts"] / table["moe_ep_size"], np.ceil(rows))
    inter, hidden = _axis(table, "inter_size") // table["moe_tp_size"], _axis(table, "hidden_size")
    wide: Any = np.where(table.having(Flag.UNGATED), 1, 2) * inter
    up = grouped_gemm_work(rows=rows, groups=groups, n=wide, k=hidden, weights=weights)
    down = grouped_gemm_work(rows=rows, groups=groups, n=hidden, k=inter, weights=weights)
    ideal = sum(ideal_gemm_time(work, gpu, weights.computes_in) for work in (up, down))
    return wide, hidden, groups, rows / groups, ideal


def _axis(table: SiliconTable, name: str) -> Any:
    """A column for the equations of work, which declare a shape as one number and serve arrays of it as well."""
    return table[name]


def _format(table: SiliconTable, column: str) -> Format:
    """The one format of a column; raise InputError when there are several, or it is none of ours."""
    name = _one(table, column)
    if name not in FORMATS:
        raise InputError("silicon", [Fault(column, f"is {name}", f"surfaces are made of {', '.join(FORMATS)}")])
    return weight_format(FORMATS[name])


def _one(table: SiliconTable, column: str, wanted: str | None = None) -> str:
    found = list(table.counts(column))
    if len(found) > 1 or (wanted is not None and found != [wanted]):
        fix = f"choose rows with where={{{column!r}: {wanted or found[0]!r}}}"
        raise InputError("silicon", [Fault(column, f"holds {', '.join(found)}", fix)])
    return found[0]


_PLACES: Final[dict[str, Callable[[SiliconTable, Gpu], Placed]]] = {
    "gemm": _gemm,
    "mla_bmm": _batched,
    "generation_mla": _mla,
    "moe": _moe,
    "wideep_generation_moe": _moe,
}
