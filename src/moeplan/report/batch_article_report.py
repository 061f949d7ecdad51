"""The batch article on its own numbers: shapes, tiles, targets, balance, and what its measurement decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeplan.explain.batch_article import (
    BatchArticle,
    distinct_target_ranks,
    gain_of_balancing,
    sampling_floor,
    statistical_skew,
    target_ranks,
    tile_waste,
    turning_tile,
    within,
)
from moeplan.explain.expert_shapes import ExpertShape
from moeplan.report.document import Json, plain
from moeplan.report.tables import Console, Table, table
from moeplan.routing.coverage import coverage

LIMITS = (0.030, 0.010)  # seconds per output token that the article asks about


def print_batch_article(out: Console, article: BatchArticle, shapes: Sequence[ExpertShape]) -> None:
    """Shapes and what is wrong in the printed ones; the worked figures; the measurement and what follows."""
    out.print(article.source + ".")
    out.print()
    out.print(_shapes_table(article, shapes))
    out.print()
    for line in corrections(shapes):
        out.print(line)
    out.print()
    out.print(_figures_table(article))
    out.print()
    out.print(_samples_table(article))
    out.print()
    for line in conclusions(article):
        out.print(line)


def batch_article_content(article: BatchArticle, shapes: Sequence[ExpertShape]) -> Json:
    """The same as JSON, SI units."""
    return {
        "source": article.source,
        "shapes": [{**plain(shape), "k_over_e": shape.chosen, "active_over_total": shape.active} for shape in shapes],
        "printed_shapes": article.shapes,
        "corrections": list(corrections(shapes)),
        "figures": [{"figure": name, "published": said, "computed": value} for name, said, value in figures(article)],
        "setup": article.setup,
        "samples": article.samples,
        "with_drafts": article.drafted,
        "full_weight_floor_s": article.full_weight_floor,
        "limits": [{"tpot_s": limit, **plain(within(article.tpot, limit))} for limit in LIMITS],
        "eager_step_s": article.eager_step,
        "host_s_per_operator": article.host_launch,
        "conclusions": list(conclusions(article)),
    }


def corrections(shapes: Sequence[ExpertShape]) -> Iterator[str]:
    """The facts that the article has wrong."""
    by_slug = {shape.slug: shape for shape in shapes}
    mixtral, deepseek = by_slug["mixtral-8x7b"], by_slug["deepseek-v3"]
    yield (
        "Put right: its «sparsity» column is active over total parameters, not k/E: DeepSeek-V3's 5.5 % is 37 of 671 "
        f"thousand million parameters ({deepseek.active:.1%} with both embeddings counted); it takes "
        f"{deepseek.chosen:.1%} of its experts."
    )
    yield (
        f"Put right: «25 % → 3 %» compares two ratios: 25 % is k/E of a Mixtral ({mixtral.top_k} of {mixtral.experts}, "
        f"active over total {mixtral.active:.1%}), 3 % is active over total of DeepSeek-V4-Pro. k/E went from "
        f"{mixtral.chosen:.1%} to 1.6 % (6 of 384)."
    )
    yield "Put right: DeepSeek-V4-Pro's experts are 3,072 wide by its config; 2,048 is V4-Flash's."
    llama = by_slug["llama-3.1-70b"]
    yield (
        f"«14 times smaller» is a dense FFN over an expert ({llama.width:,} to {deepseek.width:,} wide); expert over "
        f"expert it is {mixtral.width / deepseek.width:.0f} times ({mixtral.width:,} to {deepseek.width:,})."
    )


def figures(article: BatchArticle) -> Iterator[tuple[str, float, float]]:
    """What the article works out: name, as printed, as computed."""
    yield "BM* in FP8 at the card's peaks, rows", 37, turning_tile(article.peak / article.peak_bandwidth, 1.0)
    yield "BM* at the measured rates, rows", 42, turning_tile(article.effective_peak / article.bandwidth, 1.0)
    for tile, said in ((64, 12.8), (16, 3.2), (8, 1.6)):
        yield f"FLOP done over asked, 5 rows in tiles of {tile}", said, float(tile_waste(5.0, tile))
    for ranks, said in ((32, 7.18), (4, 3.60)):
        yield f"ranks that 8 experts lie on, EP{ranks}", said, float(target_ranks(ranks, 8))
        yield f"the same for 8 distinct ones of 256, EP{ranks}", said, distinct_target_ranks(ranks, 8, 256)
    skew = statistical_skew(32, 0.35, 8)
    yield "fullest rank over the mean, EP32, CV_e 0.35, 8 experts a rank", 1.326, skew
    yield "sampling alone, EP32, 48 requests a rank, top-8", 0.13, float(sampling_floor(32, 48 * 8))
    yield "end to end from 1.18 on a share of 0.6", 1.10, float(gain_of_balancing(0.6, 1.18))
    yield "end to end from 2.6 on a share of 0.85", 2.54, float(gain_of_balancing(0.85, 2.6))
    yield "full-weight floor, ms", 14.9, article.full_weight_floor * 1e3
    yield "256 requests over that floor", 3.1, article.over_floor(256)


def conclusions(article: BatchArticle) -> Iterator[str]:
    """What the measurement decides, and what it does not."""
    for limit in LIMITS:
        found = within(article.tpot, limit)
        yield (
            f"A limit of {limit * 1e3:.0f} ms per token: of the sampled batches {found.meets} meets it "
            f"({article.tpot[found.meets or 0] * 1e3:.1f} ms) and {found.misses} does not "
            f"({article.tpot[found.misses or 0] * 1e3:.1f} ms); the largest that meets it lies between, not sampled."
        )
    met = within(article.tpot, 0.010).meets
    yield f"«10 ms needs 16 cards and MTP» is false: {article.cards} cards without drafts keep it up to batch {met}."
    smallest = min(article.tpot)
    yield (
        f"The full-weight floor of {article.full_weight_floor * 1e3:.1f} ms holds at full coverage only: batch "
        f"{smallest} takes {article.tpot[smallest] * 1e3:.1f} ms, as it reads only the experts that it hits. Batch 256 "
        f"is at {article.over_floor(256):.1f} times the floor; what is above it may not be split by subtraction, for "
        "reading, multiplying and communicating overlap and none runs at its peak."
    )
    yield (
        "The 2.54× of EPLB at EP72 does not follow from S0/S1 of 2.6 on 0.85 of the step, which gives "
        f"{float(gain_of_balancing(0.85, 2.6)):.2f}×; it would take {_gain_needed(0.85, 2.54):.1f}."
    )
    for item in article.accepted:
        if item.excluded:
            yield f"Not used: {item.most:g} tokens per step on {item.prompts}: {item.excluded}."
    yield (
        f"Eager steps are flat, {article.eager_step * 1e3:.1f} ms on average: the host launches, whatever the batch. "
        f"Over {article.operators.total:,} operators counted as this program lists a step that is "
        f"{article.host_launch * 1e6:.0f} µs each: fitted to this model and host, assumed for any other."
    )
    yield (
        "Not predicted here: this deployment itself. Tensor parallelism and linear attention (45 of its 60 layers) are "
        "not modelled by this version."
    )


def _gain_needed(share: float, total: float) -> float:
    """S0/S1 that gives `total` end to end: the formula solved for it."""
    return share / (1.0 / total - (1.0 - share))


def _shapes_table(article: BatchArticle, shapes: Sequence[ExpertShape]) -> Table:
    printed = {row.built_in: row.sparsity for row in article.shapes if row.built_in}
    rows = []
    for shape in shapes:
        said = printed.get(shape.slug)
        rows.append(
            [
                shape.model,
                f"{shape.experts:,}",
                str(shape.top_k),
                f"{shape.width:,}",
                f"{shape.shared_width:,}" if shape.shared_width else "-",
                f"{shape.expert_parameters / 1e6:.1f}",
                f"{shape.chosen:.1%}",
                f"{shape.active:.1%}",
                f"{said:.1%}" if said is not None else "",
            ]
        )
    headers = ("model", "experts", "top-k", "width", "shared width", "M weights each", "k/E", "active/total")
    title = "Shapes of the built-in models' FFNs; k/E and active over total parameters are two things"
    return table((*headers, "article's «sparsity»"), rows, title=title)


def _figures_table(article: BatchArticle) -> Table:
    rows = [[name, f"{said:g}", f"{value:.3g}"] for name, said, value in figures(article)]
    return table(("use", "article", "computed"), rows, title="What the article works out")


def _samples_table(article: BatchArticle) -> Table:
    drafted = {sample.batch: sample.graph for sample in article.drafted}
    rows = []
    for sample in article.samples:
        with_drafts = drafted.get(sample.batch)
        rows.append(
            [
                str(sample.batch),
                f"{float(coverage(sample.batch, experts=article.experts, top_k=article.top_k)):.1%}",
                f"{sample.tokens_per_second:,.0f}" if sample.tokens_per_second is not None else "-",
                f"{sample.graph * 1e3:.1f}",
                f"{sample.eager * 1e3:.0f}" if sample.eager is not None else "-",
                f"{with_drafts * 1e3:.2f}" if with_drafts is not None else "-",
                f"{article.drafted_step(sample.batch):.2f}" if with_drafts is not None else "-",
            ]
        )
    headers = ("batch", "coverage", "tok/s", "TPOT ms", "eager ms", "TPOT with 3 drafts", "step over one without")
    return table(headers, rows, title=f"Measured: {article.setup}")
