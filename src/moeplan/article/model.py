"""The article's decode model: DeepSeek-V3, one layer, one card. Its dimensions and shortcuts are kept as they are.

Section numbers are those of the article's reconstruction; docs/throughput-article.md lists what each quirk costs.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from moeplan.article.profile import GI, ArticleProfile, Chip, Corrections, Revision, Switches
from moeplan.kernels.article import ArticleFigures
from moeplan.kernels.efficiency import Efficiency
from moeplan.kernels.origin import Origin
from moeplan.kernels.work import Work, overlapped
from moeplan.kinds import Real
from moeplan.ops.roofline import roofline
from moeplan.specs.gpu import Gpu

HIDDEN, HEADS, EXPERTS, TOP_K = 7168, 128, 256, 8
LATENT, VALUE, ROPE_FREE = 576, 512, 128
GATE_UP, WIDTH = 4096, 2048


AS_PUBLISHED = Corrections()


class Configuration(Struct, frozen=True, kw_only=True):
    """One point of the article's grid; batch may be an array. Bytes are per element."""

    batch: Real
    ep: int
    q_len: int
    kv_bytes: int
    linear_bytes: int
    dual: bool

    @property
    def micro_batch(self) -> Real:
        """Requests of one micro-batch."""
        return self.batch / 2 if self.dual else self.batch


class ArticleModel(Struct, frozen=True):
    """A chip and a NIC under one revision."""

    profile: ArticleProfile
    figures: ArticleFigures
    chip: Chip
    revision: Revision
    nic_rate: float  # bytes/s
    switches: Switches
    corrections: Corrections = AS_PUBLISHED

    @property
    def gpu(self) -> Gpu:
        """The chip in SI units, the overlap class switched if asked for."""
        gpu = self.chip.gpu("chip", decimal=self.corrections.decimal_units)
        return replace(gpu, attention_overlap=self.switches.overlap) if self.switches.overlap else gpu

    def stages(self, c: Configuration) -> dict[str, Real]:
        """Seconds of every stage of one micro-batch, and of the layer (sections 3 to 7)."""
        t: dict[str, Real] = {}
        rows = c.micro_batch * c.q_len
        w = c.linear_bytes
        if self.corrections.true_query:
            t["q_down"], t["q_up"] = self.gemm(rows, HIDDEN, 1536, w), self.gemm(rows, 1536, 24576, w)
        else:  # the author's dimensions
            t["q_down"], t["q_up"] = self.gemm(rows, 1536, 128, w, out=4), self.gemm(rows, 128, 24576, w)
        t["q_absorb"] = self.gemm(rows, ROPE_FREE, VALUE, w, copies=HEADS)
        t["kv_compress"] = self.gemm(rows, HIDDEN, LATENT, w)
        t["attention_front"] = t["q_down"] + t["q_up"] + t["q_absorb"] + t["kv_compress"]
        t |= self.flash_mla(c)
        t["v_absorb"] = self.gemm(rows, VALUE, ROPE_FREE, w, copies=HEADS)
        t["out_proj"] = self.gemm(rows, HEADS * ROPE_FREE, HIDDEN, w)
        t["attention_back"] = t["flash_mla"] + t["v_absorb"] + t["out_proj"]
        rate = self.nic_rate * (1e9 / GI if self.corrections.decimal_units else 1.0)
        t["dispatch"] = TOP_K * rows * HIDDEN * 1 / rate
        t["combine"] = TOP_K * rows * HIDDEN * (2 if self.corrections.bf16_combine else w) / rate
        t |= self.experts(c)
        if c.dual:
            front = np.maximum(t["dispatch"], t["attention_front"] + t["shared"])
            back = np.maximum(t["combine"], t["attention_back"])
            t["layer"] = 2 * (front + t["routed"] + back)
        else:
            front = np.maximum(t["dispatch"], t["shared"])
            back = t["attention_back"] + t["combine"]
            t["layer"] = t["attention_front"] + t["attention_back"] + front + t["routed"] + t["combine"]
        return t | {"front": front, "back": back}

    def gemm(self, m: Real, k: int, n: int, w: int, *, out: int = 2, copies: int = 1) -> Real:
        """A product outside the experts: roofline, arithmetic on no fewer than least_rows rows (section 2)."""
        mfu = self.figures.gemm(m=m, n=n, k=k).compute if self._gemm_mfu else 1.0
        return self._roofline(m, k, n, w, out=out, copies=copies, mfu=mfu)

    def flash_mla(self, c: Configuration) -> dict[str, Real]:
        """Attention of one micro-batch: two GEMMs and softmax per request, overlapped by its class (section 4)."""
        chunk = self.switches.chunk if self.switches.chunk is not None else self.revision.chunk
        context = self.profile.context
        chunks = -(-context // chunk) if chunk else 1
        keys = chunks * chunk if chunk else -(-(context + 1) // 128) * 128  # tokens that the GEMMs work on
        scored = keys if chunk else context  # tokens that softmax works on
        gpu, heads = self.gpu, HEADS * c.q_len
        factor = 1.0
        if self.revision.flash_factor:
            factor = float(self.figures.mla(heads_times_q=heads, h20=self.chip.weak).compute)
        peak = gpu.peak("fp8" if c.linear_bytes == 1 else "bf16") * factor
        scores = 2 * heads * keys * LATENT / peak
        values = 2 * heads * keys * VALUE / peak
        reduce = self.profile.thread_all_reduce
        if self.switches.thread_all_reduce is not None:
            reduce = self.switches.thread_all_reduce
        vector = 3 * heads * scored / gpu.vector_rate + reduce * chunks
        if self.switches.chunk is not None:  # rescaling the output after every further chunk: one multiply an element
            vector += (chunks - 1) * heads * VALUE / gpu.vector_rate
        read = context * LATENT * c.kv_bytes / gpu.memory.bandwidth
        b = c.micro_batch
        total = b * np.maximum(overlapped(scores, values, vector, gpu), read)
        return {"flash_scores": b * scores, "flash_values": b * values, "flash_vector": b * vector, "flash_mla": total}

    def experts(self, c: Configuration) -> dict[str, Real]:
        """Shared and routed experts; each local expert gets top_k × rows, whatever the EP size (section 6)."""
        forgets = not c.dual and not self.corrections.naive_q_len  # the naive pipeline forgets q_len
        rows = c.micro_batch * (1 if forgets else c.q_len)
        local = -(-EXPERTS // c.ep)
        shared = self._expert(rows)
        routed = local * self._expert(TOP_K * rows / (local if self.corrections.rows_per_slot else 1))
        return {"shared": shared, "routed": routed}

    def user_speed(self, c: Configuration) -> Real:
        """Tokens per second per user: 1 / (layers · layer) · (1 + Σ acceptance^i) (section 8)."""
        gained = 1 + sum(self.profile.acceptance**i for i in range(1, c.q_len))
        result: Real = gained / (self.profile.layers * self.stages(c)["layer"])
        return result

    def throughput(self, c: Configuration) -> Real:
        """Tokens per second per card; V0 divides by q_len."""
        return self.user_speed(c) * c.batch / (c.q_len if self.revision.per_q else 1)

    @property
    def _gemm_mfu(self) -> bool:
        return self.revision.mfu if self.switches.gemm_mfu is None else self.switches.gemm_mfu

    def _expert(self, rows: Real) -> Real:
        """gate_up and down of one expert, roofed apart, always one byte a weight."""
        with_mfu = self.revision.mfu if self.switches.expert_mfu is None else self.switches.expert_mfu
        total: Real = 0.0
        for k, n, down in ((HIDDEN, GATE_UP, False), (WIDTH, HIDDEN, True)):
            mfu: Real = 1.0
            if with_mfu:
                mfu = self.figures.grouped_gemm(rows=rows, down=down).compute
            elif self._gemm_mfu:
                mfu = self.figures.gemm(m=rows, n=n, k=k).compute
            total = total + self._roofline(rows, k, n, 1, out=4, copies=1, mfu=mfu)
        return total

    def _roofline(self, m: Real, k: int, n: int, w: int, *, out: int, copies: int, mfu: Real) -> Real:
        work = Work(
            flops=2.0 * copies * np.maximum(m, self.revision.least_rows) * k * n,
            bytes_=copies * (m * k * w + k * n * w + m * n * out),
        )
        efficiency = Efficiency(compute=mfu, memory=1.0, origin=Origin.ASSUMED, source=self.profile.source)
        gpu = self.gpu
        peak = gpu.peak("fp8" if w == 1 else "bf16")
        return roofline("gemm", work, peak=peak, bandwidth=gpu.memory.bandwidth, efficiency=efficiency).seconds


def nic_rate(profile: ArticleProfile, nic: str) -> float:
    """Bytes per second of a NIC, which the article states in GiB/s."""
    return profile.nics[nic] * GI
