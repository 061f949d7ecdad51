"""moeplan gpus: the GPUs of the catalog."""

from __future__ import annotations

import click

from moeplan.cli.options import data_option, json_option, one_edited, print_json, set_option
from moeplan.report.document import document, gpu_content
from moeplan.specs.catalog import Catalog


@click.command("gpus")
@click.argument("name", required=False)
@set_option
@data_option
@json_option
def command(name: str | None, edits: tuple[str, ...], data: str | None, as_json: bool) -> int:
    """List the GPUs, or show NAME with the source of every figure."""
    catalog = Catalog.standard(data)
    if name is not None:
        content = gpu_content(one_edited(catalog.gpu(name), "gpu", edits, name))
        if as_json:
            print_json(document("gpu", {"gpu": content}))
        else:
            from moeplan.report.catalog_report import print_sheet
            from moeplan.report.tables import console

            print_sheet(console(), content)
        return 0
    one_edited(None, "gpu", edits, name)
    gpus = [(slug, catalog.gpu(slug)) for slug in catalog.names("gpus")]
    if as_json:
        print_json(document("gpus", {"gpus": [gpu_content(gpu) for _, gpu in gpus]}))
    else:
        from moeplan.report.catalog_report import print_gpus
        from moeplan.report.tables import console

        print_gpus(console(), gpus)
    return 0
