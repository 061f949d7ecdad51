"""Device time by CUDA events, the L2 cache cold."""

from __future__ import annotations

import time
from typing import Any

from moeplan.bench.kernel import Prepared
from moeplan.bench.libraries import load

LEAST_FLUSH = 256 << 20  # bytes
HEAD_START = 200_000  # cycles that the GPU idles while the host queues the run


class CudaTimer:
    """Before each run, reads a buffer four times the L2 cache: what was there is evicted, and nothing stays dirty.

    The GPU then idles a moment, so that the launch is queued before its turn comes and no gap of the host is timed.
    """

    def __init__(self) -> None:
        self._torch: Any = load("torch")
        cache = int(getattr(self._torch.cuda.get_device_properties(0), "L2_cache_size", 0))
        self._flush_bytes = max(4 * cache, LEAST_FLUSH)
        self._buffer = self._torch.ones(self._flush_bytes // 4, dtype=self._torch.float32, device="cuda")
        empty = sorted(self.times(_Nothing(), 50))[25]
        self.note = (
            f"CUDA events, L2 cold ({self._flush_bytes >> 20} MiB read before each run); "
            f"an empty interval takes {empty * 1e6:.2g} µs, not subtracted"
        )

    def now(self) -> float:
        """The host's clock."""
        return time.monotonic()

    def times(self, prepared: Prepared, count: int) -> list[float]:
        """Seconds of each run."""
        cuda = self._torch.cuda
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
        for start, end in pairs:
            self._buffer.sum()
            cuda._sleep(HEAD_START)
            prepared.before()
            start.record()
            prepared.run()
            end.record()
        cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in pairs]


class _Nothing:
    def before(self) -> None:
        """Nothing."""

    def run(self) -> None:
        """Nothing."""

    def check(self) -> float:
        """Nothing to be wrong."""
        return 0.0
