"""Write the tables of docs/kernel-times.md, kernel-residuals.md and wire.md anew from the packaged fits; prose is kept.

A table stands between «<!-- NAME: … -->» and «<!-- end of NAME -->». Run by hand after a change of the fits:
PYTHONPATH=src .venv/bin/python .ci/kernel_page.py
"""

import pathlib
import re
import statistics
from typing import NamedTuple

from moeplan.kernels.choice import generation
from moeplan.kernels.fit import FitError, FitFile, read_fit
from moeplan.kernels.forms.catalog import FORMS
from moeplan.specs.catalog import Catalog
from moeplan.validate.observed_scores import score_observed

TIMES, RESIDUALS = pathlib.Path("docs/kernel-times.md"), pathlib.Path("docs/kernel-residuals.md")
WIRE = pathlib.Path("docs/wire.md")
NETWORK = ("deepep_low_latency", "deepep_normal", "nvlink_all_to_all", "all_reduce", "nccl")  # the forms of that page
COMPUTE = tuple(form for form in FORMS if form not in NETWORK)
FITS = pathlib.Path("src/moeplan/data/kernels/fits")
CHIPS = ("h100", "h200", "h800", "h20", "b200", "gb200", "b300", "gb300", "a100-80", "l40s", "rtx-pro-6000")
CHIPS += ("mi300x", "mi355x")
NAMES = ("H100", "H200", "H800", "H20", "B200", "GB200", "B300", "GB300", "A100", "L40S", "RTX PRO", "MI300X", "MI355X")
HEADS = dict(zip(CHIPS, NAMES, strict=True))
OTHERS = {
    "hopper": CHIPS[4:11],
    "blackwell": ("b300", "gb300", *CHIPS[9:11]),
}  # whose parameters are shown on which others
GDDR = ("l40s", "rtx-pro-6000")
FEW = 100  # rows below which a figure is marked


class Bar(NamedTuple):
    """What was aimed at: text, percent, kernels whose files it is about, chips."""

    text: str
    percent: float
    kernels: str
    chips: tuple[str, ...] = CHIPS


BARS = (
    Bar("grouped and fused MoE, fp8_block", 4.5, r"grouped_gemm\.fp8_block\..*|moe\.fp8_block\.(?!.*trtllm-gen).*"),
    Bar("fused MoE, bf16 and TRTLLM-Gen", 7, r"moe\.bf16\..*|moe\..*trtllm-gen"),
    Bar("fused MoE, nvfp4, CUTLASS, B200", 9, r"moe\.nvfp4\.trtllm-cutlass", ("b200",)),
    Bar("dense GEMM, bf16", 7, r"gemm\.bf16\..*"),
    Bar("dense GEMM, nvfp4", 8, r"gemm\.nvfp4\..*"),
    Bar("dense GEMM, fp8_block", 9, r"gemm\.fp8_block\..*"),
    Bar("attention decode, FlashAttention-3 and TRTLLM-Gen", 7, r"gqa_decode\..*(fa3|trtllm-gen)"),
    Bar("attention decode, TensorRT-LLM XQA, Hopper", 12, r"gqa_decode\..*trtllm-xqa"),
    Bar("attention prefill", 8, r"gqa_prefill\..*"),
    Bar("MLA decode, H100 and H200", 6.5, r"mla_decode\..*", ("h100", "h200")),
    Bar("MLA decode, B200", 8, r"mla_decode\..*", ("b200",)),
    Bar("MLA decode, A100", 15, r"mla_decode\..*", ("a100-80",)),
    Bar("MLA prefill", 6.5, r"mla_prefill\..*"),
    Bar("MLA module", 6, r"mla_module\..*"),
)
WIRE_BARS = (
    Bar("DeepEP, low latency", 8, r"deepep_low_latency\..*\.deepep-(dispatch|combine)"),
    Bar("DeepEP, normal", 11, r"deepep_normal\..*\.deepep-(dispatch|combine)"),
    Bar("all-reduce", 6, r"all_reduce\..*"),
    Bar("NCCL", 10, r"nccl\..*"),
)


class Case(NamedTuple):
    """One kernel on one chip: its own error, or that of parameters carried over from other chips."""

    recipe: str
    chip: str
    error: FitError
    of: tuple[str, ...] = ()

    @property
    def median(self) -> float:
        """In percent, as printed."""
        return round(100 * self.error.median, 1)


def main() -> None:
    """Replace every table."""
    files = {(path.parent.name, path.stem): read_fit(path) for path in sorted(FITS.glob("*/*.yaml"))}
    single = {key: file for key, file in files.items() if len(file.gpus) == 1}
    own = [Case(recipe, chip, file.error) for (chip, recipe), file in single.items()]
    carried = [
        Case(recipe, chip, each.error, each.of) for (chip, recipe), file in single.items() for each in file.carried
    ]
    wire, wired = ([case for case in cases if case.recipe.split(".")[0] in NETWORK] for cases in (own, carried))
    own, carried = ([case for case in cases if case.recipe.split(".")[0] in COMPUTE] for cases in (own, carried))
    tables = {"errors": _errors(own, COMPUTE), "carried": _carried(carried, COMPUTE), "gddr": _gddr(own, carried)}
    _write(TIMES, tables)
    _write(RESIDUALS, {"bars": _bars(own, carried), "misses": _misses(own, BARS), "left out": _left_out(carried)})
    bars = [_bar_row(bar.text, bar.percent, _of_bar(bar, wire)) for bar in WIRE_BARS]
    tables = {"errors": _errors(wire, NETWORK), "carried": _carried(wired, NETWORK), "bars": [*BAR_HEAD, *bars]}
    _write(WIRE, tables | {"misses": _misses(wire, WIRE_BARS), "observed": _observed()})
    _check(files)


def _write(page: pathlib.Path, tables: dict[str, list[str]]) -> None:
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        pattern = rf"(<!-- {name}: [^\n]*-->\n)(?:.*?\n)?(<!-- end of {name} -->)"
        found = list(re.finditer(pattern, text, flags=re.S))
        if len(found) != 1:
            raise SystemExit(f"{page}: {len(found)} places for «{name}»")
        start, end = found[0].groups()
        table = "\n".join((start, *lines, "", end))
        text = text[: found[0].start()] + table + text[found[0].end() :]
    page.write_text(text, encoding="utf-8")


def _errors(own: list[Case], forms: tuple[str, ...]) -> list[str]:
    lines = []
    for form in forms:
        cases = [case for case in own if case.recipe.startswith(f"{form}.")]
        cells = {(case.recipe, case.chip): _both(case.error) for case in cases}
        chips = [chip for chip in CHIPS if any(case.chip == chip for case in cases)]
        lines += [f"### {form}", "", *_head("kernel", [HEADS[chip] for chip in chips])]
        for recipe in sorted({case.recipe for case in cases}):
            lines.append(_row(recipe.removeprefix(f"{form}."), [cells.get((recipe, chip), "") for chip in chips]))
        lines.append("")
    return lines[:-1]


def _carried(carried: list[Case], forms: tuple[str, ...]) -> list[str]:
    """Per chip and where the parameters came from: median over kernels of the medians, and the worst kernel's."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in carried:
        if case.chip not in GDDR and (source := _source(case)):
            groups.setdefault((case.chip, source), []).append(case)
    rows = []
    for (chip, source), cases in groups.items():
        by_form = {form: [c.error.median for c in cases if c.recipe.startswith(f"{form}.")] for form in forms}
        cells = [_median_and_worst(found) for found in by_form.values()]
        every = statistics.median(case.median for case in cases)
        rows.append((every, _row(f"{HEADS[chip]} from {source}", [f"{every:.1f}", *cells])))
    heads = ["all", *forms]
    return [*_head("chip", heads), *(row for _, row in sorted(rows, reverse=True))]


def _gddr(own: list[Case], carried: list[Case]) -> list[str]:
    lines = _head("chip and form", ["own", "from Hopper", "from Blackwell", "from the other GDDR card"])
    for chip in GDDR:
        for form in COMPUTE:
            start = f"{form}."
            mine = [case for case in carried if case.chip == chip and case.recipe.startswith(start)]
            sources = (
                [c.error for c in own if c.chip == chip and c.recipe.startswith(start)],
                *([c.error for c in mine if _generation(c.of) == name] for name in OTHERS),
                [c.error for c in mine if c.of[0] in GDDR],
            )
            if sources[0]:
                lines.append(_row(f"{HEADS[chip]}, {form}", [_range(found) for found in sources]))
    return lines


BAR_HEAD = [
    "| bar, on held-out shapes | % | reached (median of the kernels, best to worst) | verdict |",
    "|---|---:|---:|---|",
]


def _bars(own: list[Case], carried: list[Case]) -> list[str]:
    lines = [*BAR_HEAD]
    for bar in BARS:
        lines.append(_bar_row(bar.text, bar.percent, _of_bar(bar, own)))
    ways = (
        ("carried over: H800 <-> H20", 8.0, [c for c in carried if {c.chip, *c.of} == {"h800", "h20"}]),
        ("carried over: same generation", 8.0, [c for c in carried if _source(c).startswith("its generation")]),
        ("carried over: Hopper -> B200", 15.0, [c for c in carried if c.chip == "b200" and _source(c) == "Hopper"]),
        ("carried over: Hopper -> A100", 20.0, [c for c in carried if c.chip == "a100-80" and _source(c) == "Hopper"]),
    )
    return lines + [_bar_row(*way) for way in ways]


def _bar_row(text: str, percent: float, cases: list[Case]) -> str:
    medians = sorted(case.median for case in cases)
    missed = sum(median > percent for median in medians)
    reached = f"{statistics.median(medians):.1f} ({medians[0]:.1f} to {medians[-1]:.1f})"
    verdict = f"missed by {missed} of {len(medians)}" if missed else f"met by all {len(medians)}"
    return f"| {text} | {percent:g} | {reached} | {verdict} |"


def _misses(own: list[Case], bars: tuple[Bar, ...]) -> list[str]:
    """Every kernel and chip past its bar, worst first."""
    found = [(case, bar) for bar in bars for case in _of_bar(bar, own) if case.median > bar.percent]
    found.sort(key=lambda item: item[0].median / item[1].percent, reverse=True)
    lines = _head("kernel", ["chip", "bar %", "median / p90", "bias"])
    for case, bar in found:
        bias = f"{100 * case.error.bias:+.1f}"
        lines.append(_row(case.recipe, [HEADS[case.chip], f"{bar.percent:g}", _both(case.error), bias]))
    return lines


def _left_out(carried: list[Case]) -> list[str]:
    """What its own generation, Hopper for B200, and Hopper for A100 miss, worst first."""
    limits = {"b200": 15.0, "a100-80": 20.0}
    found = []
    for case in carried:
        source = _source(case)
        bar = 8.0 if source.startswith("its generation") else limits.get(case.chip) if source == "Hopper" else None
        if bar is not None and case.median > bar:
            found.append((case, bar))
    found.sort(key=lambda item: item[0].median, reverse=True)
    lines = _head("kernel", ["chip", "from", "bar %", "median / p90", "bias"])
    for case, bar in found:
        from_, bias = " + ".join(HEADS[chip] for chip in case.of), f"{100 * case.error.bias:+.1f}"
        lines.append(_row(case.recipe, [HEADS[case.chip], from_, f"{bar:g}", _both(case.error), bias]))
    return lines


def _observed() -> list[str]:
    """Published rows beside the fits alone, by backend and mode."""
    lines = _head("backend and mode", ["rows", "median / p90", "bias"])
    for item in score_observed(Catalog.standard(None)):
        cells = [str(item.n), f"{100 * item.median:.1f} / {100 * item.p90:.0f}", f"{100 * item.bias:+.1f}"]
        lines.append(_row(item.family, cells))
    return lines


def _of_bar(bar: Bar, own: list[Case]) -> list[Case]:
    return [case for case in own if case.chip in bar.chips and re.fullmatch(bar.kernels, case.recipe)]


def _source(case: Case) -> str:
    """Where the parameters came from, in words; empty for what the tables do not show."""
    name = _generation(case.of)
    if name == _generation((case.chip,)):
        return "its generation's others"
    return name.title() if case.chip in OTHERS.get(name, ()) else ""


def _generation(chips: tuple[str, ...]) -> str:
    catalog = Catalog.standard(None)
    return generation(catalog.gpu(chips[0]).architecture)


def _head(first: str, others: list[str]) -> list[str]:
    return [f"| {first} | {' | '.join(others)} |", f"|---|{'---:|' * len(others)}"]


def _row(first: str, cells: list[str]) -> str:
    return f"| {first} | {' | '.join(cells)} |"


def _both(error: FitError) -> str:
    return f"{100 * error.median:.1f} / {100 * error.p90:.0f}{'*' if error.rows < FEW else ''}"


def _median_and_worst(found: list[float]) -> str:
    if not found:
        return ""
    median, worst = 100 * statistics.median(found), 100 * max(found)
    return f"{median:.1f}" if len(found) == 1 else f"{median:.1f} ({worst:.1f})"


def _range(found: list[FitError]) -> str:
    """Smallest to largest median, and the largest p90."""
    if not found:
        return ""
    medians = sorted(100 * error.median for error in found)
    p90 = 100 * max(error.p90 for error in found)
    span = f"{medians[0]:.1f}" if len(found) == 1 else f"{medians[0]:.1f} to {medians[-1]:.1f}"
    return f"{span} / {p90:.0f}"


def _check(files: dict[tuple[str, str], FitFile]) -> None:
    """Say which chips the tables would leave out."""
    unknown = {gpu for file in files.values() for gpu in file.gpus} - set(CHIPS)
    if unknown:
        raise SystemExit(f"no column for {', '.join(sorted(unknown))}")


if __name__ == "__main__":
    main()
