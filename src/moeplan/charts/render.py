"""A chart into a file: one HTML that opens offline, or SVG and PNG with the extra moeplan[charts]."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path

from moeplan.charts.style import Spec
from moeplan.errors import Fault, InputError
from moeplan.files import write_whole

_SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")
SUFFIXES = (".html", ".svg", ".png")


def check_path(path: Path) -> None:
    """Refuse a file name that no chart can take, before anything is computed; raise InputError."""
    faults = []
    if path.suffix.lower() not in SUFFIXES:
        faults.append(Fault(str(path), "is no chart file", f"end it in {', '.join(SUFFIXES)}"))
    if not path.resolve().parent.is_dir():
        faults.append(Fault(str(path.parent), "is no folder", "make it first"))
    elif path.suffix.lower() in (".svg", ".png"):
        try:
            import vl_convert  # noqa: F401 - only whether it is there
        except ImportError:
            fix = "pip install 'moeplan[charts]', or write .html"
            faults.append(Fault(str(path), "SVG and PNG need the extra moeplan[charts]", fix))
    if faults:
        raise InputError("--chart", faults)


def write_chart(specs: list[Spec], path: Path) -> list[Path]:
    """Write the charts: all into one HTML; SVG and PNG hold one each, the later ones numbered. Returns the files.

    A file appears whole or not at all. Raises InputError for a path that check_path refuses.
    """
    check_path(path)
    suffix = path.suffix.lower()
    if suffix == ".html":
        write_whole(path, page(specs).encode())
        return [path]
    import vl_convert

    written = []
    for index, spec in enumerate(specs):
        target = path if index == 0 else path.with_name(f"{path.stem}-{index + 1}{path.suffix}")
        if suffix == ".svg":
            content = vl_convert.vegalite_to_svg(spec, vl_version="5.21").encode()
        else:
            content = vl_convert.vegalite_to_png(spec, vl_version="5.21", scale=2)
        write_whole(target, content)
        written.append(target)
    return written


def page(specs: list[Spec]) -> str:
    """One HTML page with every chart, the scripts inside it."""
    scripts = "\n".join(f"<script>{_script(name)}</script>" for name in _SCRIPTS)
    title = html.escape(str(specs[0]["title"]["text"]) if specs else "moeplan")
    divs = "\n".join(f'<div class="chart" id="chart{index}"></div>' for index in range(len(specs)))
    data = json.dumps(specs, allow_nan=False).replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font-family:Helvetica,Arial,sans-serif;margin:24px}}.chart{{margin-bottom:36px}}</style>
{scripts}
</head><body>
{divs}
<script>
{data}.forEach((spec, i) => vegaEmbed('#chart' + i, spec, {{actions: false, renderer: 'svg'}}));
</script>
</body></html>
"""


def _script(name: str) -> str:
    return (files("moeplan.charts") / "vendor" / name).read_text(encoding="utf-8").replace("</script", "<\\/script")
