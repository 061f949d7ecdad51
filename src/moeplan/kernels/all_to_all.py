"""What share of their rate the NIC and the scale-up link give to a low-latency all-to-all."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from msgspec import Struct

from moeplan.errors import Fault, InputError
from moeplan.kernels.general import GeneralFigures
from moeplan.kernels.origin import Origin, worst
from moeplan.kernels.table import read_table
from moeplan.kinds import Array, Real
from moeplan.specs.catalog import Catalog
from moeplan.specs.cluster import Nic
from moeplan.specs.exchange import Direction
from moeplan.specs.gpu import EDITED, Gpu

TABLE_GPU, TABLE_NIC = "h800", "cx7"


class WireShare(Struct, frozen=True, kw_only=True, eq=False):
    """Shares of the line rate (NIC) and of the one-way rate (scale-up link), and where they come from."""

    nic: Real
    scale_up: float
    origin: Origin
    source: str


def message_bytes(direction: Direction, hidden: int, *, dispatch: str) -> float:
    """Bytes on the wire for one token and one expert, DeepEP V1 low-latency.

    Dispatch in fp8: hidden bytes, a fp32 scale per 128 and 16 of header; in bf16: 2·hidden + 16. Combine: 2·hidden.
    """
    if direction == "combine":
        return 2.0 * hidden
    return hidden + hidden / 128 * 4 + 16.0 if dispatch == "fp8" else 2.0 * hidden + 16.0


def wire_share(
    direction: Direction,
    ep: Real,
    gpu: Gpu,
    nic: Nic,
    general: GeneralFigures,
    catalog: Catalog,
    *,
    tables: bool = True,
) -> WireShare:
    """Shares at an EP size: ConnectX-7's from DeepEP's table (all traffic over RDMA), other cards' from their file.

    A card whose effective rate is set by hand has that one. DeepEP's table is of one GPU: on others of its generation
    it counts as extrapolated, elsewhere as assumed. tables: whether measured ones may answer.
    """
    scale_up = general.nvlink_share_dispatch if direction == "dispatch" else general.nvlink_share_combine
    if not tables or nic.slug != TABLE_NIC or nic.assumed.get("effective_rate") == EDITED:
        share: Real = nic.effective_rate / nic.line_rate
        return WireShare(nic=share, scale_up=scale_up, origin=Origin.ASSUMED, source=f"effective rate of {nic.name}")
    sizes, shares, title = _rdma_shares(catalog, direction)
    share = np.interp(np.log2(ep), np.log2(sizes), shares)
    outside = bool(np.any(np.greater(ep, sizes[-1])) or np.any(np.less(ep, sizes[0])))
    origin = Origin.EXTRAPOLATED if outside or EDITED in nic.assumed.values() else Origin.INTERPOLATED
    if gpu.slug != TABLE_GPU:
        same = gpu.architecture == catalog.gpu(TABLE_GPU).architecture
        origin = worst(origin, Origin.EXTRAPOLATED if same else Origin.ASSUMED)
        title = f"{title} (standing in for {gpu.name})"
    return WireShare(nic=share, scale_up=scale_up, origin=origin, source=title)


@lru_cache(maxsize=16)
def _rdma_shares(catalog: Catalog, direction: Direction) -> tuple[Array, Array, str]:
    """EP sizes, the share of the line that the measured card reached at each, and the table's title."""
    measured_on = catalog.nic(TABLE_NIC)
    path = catalog.kernel_table(TABLE_GPU, f"low_latency_{direction}_rdma")
    assert path is not None, "the packaged data holds DeepEP's table"
    table = read_table(path, ("ep", "tokens", "hidden", "top_k", "seconds"))
    rows = sorted(table.rows, key=lambda row: row["ep"])
    sizes = np.array([row["ep"] for row in rows])
    payload = [
        row["tokens"] * row["top_k"] * message_bytes(direction, int(row["hidden"]), dispatch="fp8") for row in rows
    ]
    seconds = np.array([row["seconds"] for row in rows]) - measured_on.latency
    if seconds.min() <= 0:
        fault = Fault(
            "latency", f"is {measured_on.latency * 1e6:g} µs, longer than a call in {path.name}", "give a shorter one"
        )
        raise InputError(measured_on.name, [fault])
    return sizes, np.array(payload) / seconds / measured_on.line_rate, table.sidecar.title
