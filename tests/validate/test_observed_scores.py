"""The packaged published rows beside the fits alone: no error may grow."""

from __future__ import annotations

from moeplan.specs.catalog import Catalog
from moeplan.validate.observed_scores import score_observed

# Median and p90 by backend and mode as of this release, rounded up: a form or a fit that gets worse fails.
BASELINE: dict[str, tuple[float, float]] = {
    "deepep low-latency": (0.014, 0.046),  # 11 rows
    "deepep normal": (0.066, 0.248),  # 65 rows
    "deepep-nvshmem low-latency": (0.004, 0.006),  # 4 rows
    "deepep-rdma low-latency": (0.011, 0.035),  # 25 rows
    "hybrid-ep normal": (0.037, 0.159),  # 48 rows
    "hybrid-ep-call normal": (0.030, 0.115),  # 49 rows
    "mori low-latency": (0.012, 0.234),  # 6 rows
    "mori normal": (0.035, 0.082),  # 6 rows
    "pplx-ibgda low-latency": (0.056, 0.227),  # 16 rows
    "pplx-ibrc low-latency": (0.069, 0.430),  # 15 rows
    "trtllm-one-sided one domain": (0.025, 0.066),  # 80 rows
    "uccl low-latency": (0.060, 0.401),  # 18 rows
    "uccl normal": (0.043, 0.118),  # 41 rows
}


def test_no_published_row_is_predicted_worse() -> None:
    scores = {item.family: item for item in score_observed(Catalog.standard())}
    assert set(scores) == set(BASELINE)
    worse = {
        family: (round(scores[family].median, 4), round(scores[family].p90, 4))
        for family, (median, p90) in BASELINE.items()
        if scores[family].median > median or scores[family].p90 > p90
    }
    assert not worse
