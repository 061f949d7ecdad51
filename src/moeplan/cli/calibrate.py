"""moeplan calibrate: from measured tables to the parameters that predictions use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeplan.cli.options import data_option, json_option, print_json
from moeplan.errors import Fault, InputError, together
from moeplan.specs.catalog import Catalog

if TYPE_CHECKING:
    from moeplan.calibrate.tables import Calibration
    from moeplan.kernels.fit import FitFile


@click.group("calibrate")
def command() -> None:
    """Fit the kernels' parameters to measured tables (pip install 'moeplan[fit]')."""


@command.command("kernels")
@click.argument("tables", nargs=-1, required=True)
@click.option("--name", default="own", show_default=True, metavar="NAME", help="Of the kernel, in the file's name.")
@click.option("--dry-run", is_flag=True, help="Print the errors before and after, write nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Write a fit also where what answered before is nearer to the rows left out, or rows are twice too slow.",
)
@data_option
@json_option
def kernels(tables: Sequence[str], name: str, dry_run: bool, force: bool, data: str | None, as_json: bool) -> int:
    """Fit to TABLE.csv files as `moeplan bench` writes them; the errors before and after are of rows left out.

    Writes kernels/fits/<gpu>/<form>.<formats>.<NAME>.yaml in the folder of --data, where predictions look first.
    """
    from moeplan.calibrate.fit_text import fit_text
    from moeplan.calibrate.tables import calibrate_tables, file_name
    from moeplan.files import write_whole
    from moeplan.kernels.measured import kind_named
    from moeplan.report.document import document

    catalog = Catalog.standard(data)
    if len(catalog.roots) == 1 and not dry_run:
        fix = "name the folder with --data DIR (or MOEPLAN_DATA), or only look with --dry-run"
        raise InputError("calibrate", [Fault("--data", "is missing: a fit is written to your own folder", fix)])
    if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        raise InputError("calibrate", [Fault("--name", f"is {name!r}", "use letters, digits, - and _")])
    _refuse_wire(catalog, [Path(table) for table in tables])
    found = calibrate_tables(catalog, [Path(table) for table in tables])
    written = []
    for item in found if not dry_run else ():
        if (item.worse or item.suspect) and not force:
            continue
        path = catalog.roots[0] / file_name(kind_named(item.kind), item.gpu, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, fit_text(item.file).encode())
        written.append(str(path))
    if as_json:
        print_json(document("calibrate-kernels", {"fits": [_content(item) for item in found], "written": written}))
        return 0
    from moeplan.report.calibrate_report import print_calibrations
    from moeplan.report.tables import console

    print_calibrations(console(), found, written)
    return 0


@command.command("again")
@click.argument("recipes", nargs=-1, required=True)
@click.option("--tables", metavar="DIR", help="Folder `systems` of aiconfigurator-core, if it is not installed.")
@click.option("--out", metavar="DIR", help="Write the fits below this folder, as predictions look for them.")
@data_option
@json_option
def again(recipes: Sequence[str], tables: str | None, out: str | None, data: str | None, as_json: bool) -> int:
    """Fit RECIPE (its name, such as gemm.fp8_block.deepgemm) anew to the rows that it names; print every error.

    Each GPU on its own, each generation together, and each GPU left out: how far the others' parameters are off.
    """
    from moeplan.calibrate.fit_text import fit_text
    from moeplan.calibrate.refit import refit
    from moeplan.cli.progress import note
    from moeplan.files import write_whole
    from moeplan.kernels.recipe import read_recipe, recipe_path
    from moeplan.report.document import document

    catalog = Catalog.standard(data)
    root = None if tables is None else Path(tables)
    done: list[tuple[str, str, FitFile]] = []
    together("calibrate", *(partial(recipe_path, catalog, name) for name in recipes))
    read = {name: read_recipe(recipe_path(catalog, name)) for name in recipes}
    for name, recipe in read.items():
        for folder, file in refit(recipe, catalog, root=root, progress=note):
            done.append((name, folder, file))
            if out is not None:
                path = Path(out) / folder / f"{name}.yaml"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, fit_text(file).encode())
    note("")
    if as_json:
        print_json(document("calibrate-again", {"fits": [{"folder": folder, "fit": file} for _, folder, file in done]}))
        return 0
    from moeplan.report.calibrate_report import print_fits
    from moeplan.report.tables import console

    for name in read:
        print_fits(console(), [file for recipe, _, file in done if recipe == name])
    return 0


def _refuse_wire(catalog: Catalog, tables: Sequence[Path]) -> None:
    """All-to-alls are not fitted to; rows at less than half the expected speed are named: the network has a fault."""
    from moeplan.validate.kernels import is_wire, score_file

    why = "find the fault of the network (NIC mapping, a slow link, no IBGDA) before you call it an efficiency"
    fix = "compare with `moeplan validate kernels`; to go on with a slow network: --set nic.effective_rate=RATE"
    faults = []
    for table in filter(is_wire, tables):
        faults += [
            Fault(f"{table}: {shape}", f"{predicted / measured:.0%} of the speed expected of {family}", why)
            for family, shape, measured, predicted in score_file(catalog, table).suspects
        ]
        faults.append(Fault(str(table), "holds all-to-alls, which no fit is made to", fix))
    if faults:
        raise InputError("calibrate", faults)


def _content(item: Calibration) -> dict[str, object]:
    return {
        "gpu": item.gpu,
        "kind": item.kind,
        "rows": item.rows,
        "held_out": item.held_out,
        "before": item.before,
        "before_from": item.before_title,
        "after": item.after,
        "worse": item.worse,
        "ratio": item.ratio,
        "suspect": item.suspect,
        "parameters": item.file.parameters,
    }
