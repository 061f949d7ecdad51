"""The article's search: its grid, its constraint, its winners."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.article.model import ArticleModel, Configuration, nic_rate
from moeplan.article.profile import ArticleProfile, Switches, article_profile
from moeplan.kernels.library import article_figures
from moeplan.specs.catalog import Catalog


class Row(Struct, frozen=True, kw_only=True):
    """One configuration, named as in the article's tables; meets: ux_tps ≥ min_tps; winner: the best of its group."""

    revision: str
    min_tps: int
    gpu: str
    nic: str
    pipeline: str
    ep: int
    kv_elem_bytes: int
    nonexpert_elem_bytes: int
    mtp_len: int
    batch_per_gpu: int
    ux_tps: float
    throughput_per_gpu: float
    meets: bool
    winner: bool = False

    @property
    def group(self) -> tuple[str, int, str, str, int, int]:
        """What the article keeps one row of: GPU, NIC, EP, bytes of non-expert weights, per revision and target."""
        return (self.revision, self.min_tps, self.gpu, self.nic, self.ep, self.nonexpert_elem_bytes)


def walk(catalog: Catalog, switches: Switches | None = None) -> list[Row]:
    """Evaluate the whole grid of both revisions and targets and mark the winners.

    The winner of a group has the most tokens per second per card among the rows that meet the target; ties, which the
    article leaves open, go to the first in its order of walking.
    """
    profile = article_profile(catalog)
    revisions = list(profile.revisions)
    rows = sorted(
        _rows(catalog, profile, switches or Switches()), key=lambda r: (revisions.index(r.revision), -r.min_tps)
    )
    best: dict[tuple[str, int, str, str, int, int], int] = {}
    for index, row in enumerate(rows):
        if row.meets:
            held = best.get(row.group)
            if held is None or row.throughput_per_gpu > rows[held].throughput_per_gpu * (1 + 1e-12):
                best[row.group] = index
    for index in best.values():
        rows[index] = replace(rows[index], winner=True)
    return rows


def _rows(catalog: Catalog, profile: ArticleProfile, switches: Switches) -> Iterator[Row]:
    grid = profile.grid
    batches = np.array(grid.batches, dtype=float)
    for name, gpu, nic, model in _models(catalog, profile, switches):
        for ep in profile.revisions[name].ep:
            for q_len in grid.q_len:
                for kv_bytes, linear_bytes in grid.bytes:
                    if linear_bytes == 2 and model.chip.bf16 is None:
                        continue
                    for pipeline in grid.pipelines:
                        point = Configuration(
                            batch=batches,
                            ep=ep,
                            q_len=q_len,
                            kv_bytes=kv_bytes,
                            linear_bytes=linear_bytes,
                            dual=pipeline == "dual-mbatch",
                        )
                        speed, throughput = np.asarray(model.user_speed(point)), np.asarray(model.throughput(point))
                        for target in grid.min_tps:
                            for i, batch in enumerate(grid.batches):
                                yield Row(
                                    revision=name,
                                    min_tps=target,
                                    gpu=gpu,
                                    nic=nic,
                                    pipeline=pipeline,
                                    ep=ep,
                                    kv_elem_bytes=kv_bytes,
                                    nonexpert_elem_bytes=linear_bytes,
                                    mtp_len=q_len - 1,
                                    batch_per_gpu=batch,
                                    ux_tps=float(speed[i]),
                                    throughput_per_gpu=float(throughput[i]),
                                    meets=bool(speed[i] >= target),
                                )


def _models(
    catalog: Catalog, profile: ArticleProfile, switches: Switches
) -> Iterator[tuple[str, str, str, ArticleModel]]:
    figures = article_figures(catalog)
    for name, revision in profile.revisions.items():
        for gpu in revision.chips:
            for nic in profile.nics:
                rate = nic_rate(profile, nic)
                yield name, gpu, nic, ArticleModel(profile, figures, profile.chips[gpu], revision, rate, switches)
