"""moeplan reproduce: a published article's tables."""

from __future__ import annotations

import click

from moeplan.article.profile import Switches, article_profile
from moeplan.article.search import walk
from moeplan.cli.options import cluster_of, count, data_option, json_option, names, print_json, whole_range
from moeplan.errors import Fault, InputError
from moeplan.ops.machine import Machine
from moeplan.report.document import document
from moeplan.specs.catalog import Catalog
from moeplan.specs.gpu import AttentionOverlap
from moeplan.units import UnitError, parse


@click.group("reproduce")
def command() -> None:
    """Reproduce published figures: the throughput article to the last printed digit, claims of the others."""


@command.command("throughput-article")
@click.option(
    "--expert-mfu/--no-expert-mfu", default=None, help="DeepGEMM's factors for the experts; default: the revision's."
)
@click.option("--gemm-mfu/--no-gemm-mfu", default=None, help="The A100 curve for other GEMMs; default: the revision's.")
@click.option(
    "--overlap",
    type=click.Choice(["none", "two-stage", "three-stage"]),
    help="Every chip's attention overlap; three-stage is the article's ideal chip.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=128),
    metavar="TOKENS",
    help="FlashMLA chunk that the SRAM holds; more chunks pad, reduce and rescale.",
)
@click.option("--thread-all-reduce", metavar="TIME", help="Latency of a reduction over threads, such as 0.5µs.")
@data_option
@json_option
def throughput_article(
    expert_mfu: bool | None,
    gemm_mfu: bool | None,
    overlap: AttentionOverlap | None,
    chunk: int | None,
    thread_all_reduce: str | None,
    data: str | None,
    as_json: bool,
) -> int:
    """ShineZ's article on DeepSeek-V3's decode throughput per card (V0 and V1.0): the whole grid, and its winners."""
    catalog = Catalog.standard(data)
    switches = Switches(
        expert_mfu=expert_mfu,
        gemm_mfu=gemm_mfu,
        overlap=overlap,
        chunk=chunk,
        thread_all_reduce=_seconds(thread_all_reduce),
    )
    rows = walk(catalog, switches)
    source = article_profile(catalog).source
    if as_json:
        print_json(document("throughput-article", {"source": source, "switches": switches, "rows": rows}))
        return 0
    from moeplan.report.article_report import print_article
    from moeplan.report.tables import console

    print_article(console(), rows, source, switched=switches != Switches())
    return 0


@command.command("article-quirks")
@data_option
@json_option
def article_quirks(data: str | None, as_json: bool) -> int:
    """What each of the throughput article's shortcuts costs against the physical default."""
    from moeplan.article.quirks import POINTS, quirks

    found = quirks(Catalog.standard(data))
    if as_json:
        points = [{"gpu": gpu, "nic": nic, "configuration": point} for gpu, nic, point in POINTS]
        print_json(document("article-quirks", {"points": points, "quirks": found}))
        return 0
    from moeplan.report.article_report import print_quirks
    from moeplan.report.tables import console

    print_quirks(console(), POINTS, found)
    return 0


@command.command("tp-argument")
@click.option("--gpu", default="h20,h800", show_default=True, metavar="NAME[,NAME…]", help="GPUs with a scale-up link.")
@click.option("--batch", default="32,64,128,256", show_default=True, metavar="N[,N…]", help="Requests on the two GPUs.")
@click.option("--mtp", default="0", show_default=True, metavar="N", help="Drafts per step.")
@click.option("--context", default="5k", show_default=True, metavar="TOKENS", help="Cached tokens per request.")
@data_option
@json_option
def tp_argument(gpu: str, batch: str, mtp: str, context: str, data: str | None, as_json: bool) -> int:
    """«TP 2 instead of half the batch»: DeepSeek-V3's attention layer either way, the all-reduce priced."""
    from moeplan.article.tensor_parallel import half_batch, two_way

    catalog = Catalog.standard(data)
    model, q_len, tokens = (
        catalog.model("deepseek-v3"),
        1 + int(count(mtp, "--mtp", least=0, most=8)),
        count(context, "--context"),
    )
    rows = []
    for name in names(gpu, "--gpu"):
        machine = Machine.of(cluster_of(catalog, name, "cx7", None), catalog)
        for requests in (int(count(part, "--batch", least=2)) for part in names(batch, "--batch")):
            shape = {"batch": requests, "q_len": q_len, "context": int(tokens)}
            rows.append(
                (
                    machine.cluster.gpu.name,
                    requests,
                    half_batch(machine, model, **shape),
                    two_way(machine, model, **shape),
                )
            )
    if as_json:
        content = [
            {
                "gpu": name,
                "batch": requests,
                "choices": [
                    {
                        "name": choice.name,
                        "seconds": choice.seconds,
                        "operators": {c.name: c.seconds for c in choice.costs},
                    }
                    for choice in (half, two)
                ],
            }
            for name, requests, half, two in rows
        ]
        print_json(document("tp-argument", {"q_len": q_len, "context": tokens, "rows": content}))
        return 0
    from moeplan.report.article_report import print_tp_argument
    from moeplan.report.tables import console

    print_tp_argument(console(), rows, q_len=q_len, context=tokens)
    return 0


@command.command("fp8-accumulation")
@click.option("--bits", default="10..23", show_default=True, metavar="N[,N…]", help="Bits kept behind the leading one.")
@click.option("--k", default="1Ki,2Ki,4Ki,8Ki,16Ki", show_default=True, metavar="N[,N…]", help="Depths of the product.")
@click.option("--promote-every", default=128, show_default=True, metavar="N", help="K between additions in FP32.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the data.")
@json_option
def fp8_accumulation(bits: str, k: str, promote_every: int, seed: int, as_json: bool) -> int:
    """«25 % without promotion, 0.17 % with»: an emulated FP8 accumulator, bit by bit (batch article)."""
    from moeplan.kernels.fp8_accumulation import readings, sweep

    lengths = sorted({int(count(part, "--k", most=65_536)) for part in names(k, "--k")})
    found = sweep(whole_range(bits, "--bits", least=1, most=23), promote_every, lengths=lengths, seed=seed)
    settings = readings(promote_every, k=lengths[-1], seed=seed)
    if as_json:
        pairs = [{"alone": alone, "promoted": promoted} for alone, promoted in settings]
        print_json(document("fp8-accumulation", {"seed": seed, "readings": pairs, "losses": found}))
        return 0
    from moeplan.report.fp8_report import print_fp8
    from moeplan.report.tables import console

    print_fp8(console(), settings, found)
    return 0


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse(text, "s")
    except UnitError as error:
        raise InputError("options", [Fault("--thread-all-reduce", str(error))]) from error
