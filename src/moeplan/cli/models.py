"""moeplan models: built-in models, or one from a config.json."""

from __future__ import annotations

import click

from moeplan.cli.options import data_option, json_option, one_edited, print_json, set_option
from moeplan.report.document import document, model_content
from moeplan.specs.catalog import Catalog


@click.command("models")
@click.argument("name", required=False)
@set_option
@data_option
@json_option
def command(name: str | None, edits: tuple[str, ...], data: str | None, as_json: bool) -> int:
    """List the built-in models, or show NAME (a built-in name or a config.json) in full."""
    catalog = Catalog.standard(data)
    models = [
        (slug, one_edited(catalog.model(slug), "model", edits, name))
        for slug in ([name] if name is not None else catalog.names("models"))
    ]
    if as_json:
        kind = "models" if name is None else "model"
        items = [model_content(model) for _, model in models]
        print_json(document(kind, {"models": items} if name is None else {"model": items[0]}))
        return 0
    from moeplan.report.catalog_report import print_models, print_sheet
    from moeplan.report.tables import console

    if name is not None:
        print_sheet(console(), model_content(models[0][1]))
    else:
        print_models(console(), models)
    return 0
