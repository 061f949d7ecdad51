"""Charts into files: a page that needs no network, SVG and PNG with the extra, and nothing half written."""

from __future__ import annotations

import builtins
import html.parser
import json
import os
import re
import sys
import xml.etree.ElementTree
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from moeplan.charts.breakdown import breakdown_chart
from moeplan.charts.ladder import ladder_chart
from moeplan.charts.pareto import pareto_chart
from moeplan.charts.render import SUFFIXES, check_path, page, write_chart
from moeplan.charts.roofline import roofline_chart
from moeplan.charts.style import Spec
from moeplan.charts.tornado import tornado_chart
from moeplan.cli.options import cluster_of
from moeplan.errors import InputError
from moeplan.explain.ladder import ladder
from moeplan.explain.operators import step_operators
from moeplan.explain.sensitivity import Elasticity
from moeplan.predict import Predictor
from moeplan.search.pareto import FrontPoint
from moeplan.specs.catalog import Catalog
from moeplan.specs.deployment import Acceptance, Deployment, Precision

CATALOG = Catalog.standard()
PNG = b"\x89PNG\r\n\x1a\n"


def specs(subtitle: str = "what it is") -> dict[str, Spec]:
    """One of each chart."""
    model = CATALOG.model("deepseek-v3")
    target = Predictor.of(model, cluster_of(CATALOG, "h800", "cx7", None), CATALOG)
    step = target.predict(
        Deployment(
            batch=128,
            ep=32,
            context=4096,
            drafts=1,
            schedule="two-batch",
            precision=Precision.of(model),
            acceptance=Acceptance.geometric(0.85, 1, "this test"),
        )
    )
    operators = step_operators(step)
    points = [
        FrontPoint(
            tps_per_user=20.0 + number,
            tps_per_gpu=900.0 - number,
            batch=8,
            count=8,
            drafts=0,
            schedule="naive",
            kv="bf16",
            core="bf16",
        )
        for number in range(5)
    ]
    knobs = [Elasticity(knob="FLOP/s", value=0.4, meaning=""), Elasticity(knob="NIC rate", value=-0.1, meaning="")]
    return {
        "pareto": pareto_chart({"H800, cx7": points}, subtitle=subtitle, min_tps=20.0),
        "empty": pareto_chart({}, subtitle=subtitle, min_tps=20.0),
        "ladder": ladder_chart(ladder(target, step), subtitle=subtitle),
        "breakdown": breakdown_chart(operators, subtitle=subtitle),
        "roofline": roofline_chart(operators, step.cluster.gpu, subtitle=subtitle),
        "tornado": tornado_chart(knobs, subtitle=subtitle),
    }


class Reader(html.parser.HTMLParser):
    """Collects scripts, attributes and the ids of chart boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.boxes: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.boxes += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def embedded(script: str) -> list[Any]:
    """The charts that the page's own script draws."""
    content: list[Any] = json.loads(script[: script.index(".forEach")])
    return content


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_holds_its_scripts_and_fetches_nothing() -> None:
    reader = read(page(list(specs().values())))
    assert len(reader.scripts) == 4
    for script, banner in zip(reader.scripts, ("vega", "vegaLite", "vegaEmbed"), strict=False):
        assert len(script) > 50_000
        assert re.search(rf"\b{banner}\b", script)
    assert not [item for item in reader.attributes if item[1] in ("src", "href", "action", "data", "srcset")]
    assert "@import" not in page([])
    assert not re.search(r"<(link|iframe|img|object|embed|base)\b", page([]).split("<script>")[0])


def test_the_page_draws_every_chart_it_was_given() -> None:
    given = list(specs().values())
    reader = read(page(given))
    assert embedded(reader.scripts[3]) == given
    assert reader.boxes == [f"chart{number}" for number in range(len(given))]
    assert "vegaEmbed('#chart' + i, spec" in reader.scripts[3]


@pytest.mark.parametrize("evil", ["</script><script>alert(1)</script>", "<!--<script>", "</SCRIPT >", "\u2028'\"&<b>"])
def test_a_name_cannot_leave_the_data(evil: str) -> None:
    given = list(specs(evil).values())
    text = page(given)
    reader = read(text)
    assert len(reader.scripts) == 4
    assert embedded(reader.scripts[3]) == given
    data = text[text.rindex("<script>") + len("<script>") : text.rindex(".forEach")]
    assert "<" not in data
    titled = [{**given[0], "title": {"text": evil}}]
    assert embedded(read(page(titled)).scripts[-1]) == titled
    assert "<script>alert" not in page(titled)


def test_the_scripts_are_what_their_notes_say() -> None:
    """Name, version and licence of what is copied into the package."""
    folder = Path(sys.modules["moeplan.charts"].__file__ or "").parent / "vendor"
    notes = (folder / "README.md").read_text(encoding="utf-8")
    for name in ("vega", "vega-lite", "vega-embed"):
        assert (folder / f"{name}.min.js").stat().st_size > 50_000
        assert re.search(rf"\b{name}\b \d+\.\d+\.\d+", notes, re.IGNORECASE)
    assert "Redistribution" in (folder / "LICENSE").read_text(encoding="utf-8")


# --- files ----------------------------------------------------------------------------------------------------------


def test_html_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "charts.html"
    given = list(specs().values())
    assert write_chart(given, path) == [path]
    assert path.read_text(encoding="utf-8") == page(given)
    assert os.listdir(tmp_path) == ["charts.html"]


@pytest.mark.parametrize("name", list(specs()))
def test_each_chart_is_drawn_as_svg_and_png(name: str, tmp_path: Path) -> None:
    spec = specs()[name]
    svg, png = tmp_path / "x.svg", tmp_path / "x.PNG"
    assert write_chart([spec], svg) == [svg]
    root = xml.etree.ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert 400 < float(root.attrib["width"]) < 2000
    assert 100 < float(root.attrib["height"]) < 2000
    texts = " ".join("".join(item.itertext()) for item in root.iter("{http://www.w3.org/2000/svg}text"))
    assert spec["title"]["text"] in texts
    if name == "ladder":
        assert "one perfect kernel" in texts
    assert write_chart([spec], png) == [png]
    content = png.read_bytes()
    assert content.startswith(PNG)
    assert int.from_bytes(content[16:20], "big") > 800  # twice the width on the page


def test_several_charts_are_numbered(tmp_path: Path) -> None:
    given = list(specs().values())[2:5]
    written = write_chart(given, tmp_path / "x.svg")
    assert [path.name for path in written] == ["x.svg", "x-2.svg", "x-3.svg"]
    for path, spec in zip(written, given, strict=True):
        assert spec["title"]["text"] in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["x", "x.htm", "x.pdf", "x.svg.gz", ".html", "charts.json"])
def test_another_suffix_is_refused(name: str, tmp_path: Path) -> None:
    for act in (lambda: check_path(tmp_path / name), lambda: write_chart([], tmp_path / name)):
        with pytest.raises(InputError, match="is no chart file") as stop:
            act()
        assert all(suffix in str(stop.value) for suffix in SUFFIXES)
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_and_a_wrong_suffix_are_both_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as stop:
        check_path(tmp_path / "none" / "x.pdf")
    assert [fault.problem for fault in stop.value.faults] == ["is no chart file", "is no folder"]
    for suffix in SUFFIXES:
        check_path(tmp_path / f"x{suffix}")
        check_path(tmp_path / f"X{suffix.upper()}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failure_leaves_the_old_file(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_chart([specs()["tornado"]], path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


# --- without the extra ----------------------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without vl-convert."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    original = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> ModuleType:
        if name == "vl_convert":
            raise ModuleNotFoundError("No module named 'vl_convert'", name="vl_convert")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_without_the_extra_pictures_say_what_to_install(suffix: str, tmp_path: Path) -> None:
    for act in (lambda: check_path(tmp_path / f"x{suffix}"), lambda: write_chart([], tmp_path / f"x{suffix}")):
        with pytest.raises(InputError, match=r"pip install 'moeplan\[charts\]', or write \.html"):
            act()
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("bare")
def test_without_the_extra_the_page_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    assert write_chart([specs()["ladder"]], path) == [path]
    assert len(read(path.read_text(encoding="utf-8")).scripts) == 4
