"""moeplan nics: the network cards of the catalog."""

from __future__ import annotations

import click

from moeplan.cli.options import data_option, json_option, one_edited, print_json, set_option
from moeplan.report.document import document, nic_content
from moeplan.specs.catalog import Catalog


@click.command("nics")
@click.argument("name", required=False)
@set_option
@data_option
@json_option
def command(name: str | None, edits: tuple[str, ...], data: str | None, as_json: bool) -> int:
    """List the network cards, or show NAME with the source of every figure."""
    catalog = Catalog.standard(data)
    nics = [
        one_edited(catalog.nic(slug), "nic", edits, name)
        for slug in ([name] if name is not None else catalog.names("nics"))
    ]
    if as_json:
        print_json(document("nics", {"nics": [nic_content(nic) for nic in nics]}))
        return 0
    from moeplan.report.catalog_report import print_nics, print_sheet
    from moeplan.report.tables import console

    if name is not None:
        print_sheet(console(), nic_content(nics[0]))
    else:
        print_nics(console(), nics)
    return 0
