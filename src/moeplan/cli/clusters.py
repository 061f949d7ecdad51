"""moeplan clusters: the clusters of the catalog."""

from __future__ import annotations

import click

from moeplan.cli.options import data_option, json_option, print_json
from moeplan.report.document import document, plain
from moeplan.specs.catalog import Catalog


@click.command("clusters")
@click.argument("name", required=False)
@data_option
@json_option
def command(name: str | None, data: str | None, as_json: bool) -> int:
    """List the clusters, or show NAME with the source of every figure."""
    catalog = Catalog.standard(data)
    files = {slug: catalog.cluster_file(slug) for slug in ([name] if name is not None else catalog.names("clusters"))}
    if as_json:
        print_json(document("clusters", {"clusters": [{"slug": slug, **plain(file)} for slug, file in files.items()]}))
        return 0
    from moeplan.report.catalog_report import print_clusters, print_sheet
    from moeplan.report.tables import console

    if name is not None:
        print_sheet(console(), plain(files[name]))
    else:
        print_clusters(console(), files)
    return 0
