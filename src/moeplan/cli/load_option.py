"""Expert loads and redundant slots as options of a step: how uneven the ranks are, and who evens them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from moeplan.cli.options import count
from moeplan.errors import Fault, InputError, suggestion

if TYPE_CHECKING:
    from moeplan.routing.loaded_ranks import LoadedRanks
    from moeplan.specs.model import ModelSpec

Command = TypeVar("Command", bound=Callable[..., Any])
BEST = "auto"


def load_options(command: Command) -> Command:
    """Both."""
    for option in (
        click.option(
            "--redundant",
            metavar="N|auto",
            help="Redundant expert slots; default: what fills every rank. With --load, experts are then balanced; auto "
            "takes the number that does best.",
        ),
        click.option(
            "--load",
            metavar="LAW|FILE",
            help="Loads of experts: uniform, zipf:1.2, power_law:1.2, lognormal:1, hot:4:10, or a file as of "
            "`moeplan balance`. Experts lie in order unless --redundant is given.",
        ),
    ):
        command = option(command)
    return command


def check_load_options(load: str | None, redundant: str | None) -> None:
    """Raise InputError for a number that is none, for auto without loads to go by, for loads that nothing holds."""
    faults: list[Fault] = []
    if redundant == BEST and load is None:
        fix = "give --load (uniform, a law, a file), or a number"
        faults.append(Fault("--redundant", "auto goes by the loads, and there are none", fix))
    if redundant is not None and redundant != BEST:
        try:
            count(redundant, "--redundant", least=0)
        except InputError as error:
            faults += [
                Fault(fault.path, fault.problem.split(";")[0], "give a whole number from 0, or auto")
                for fault in error.faults
            ]
    if load is not None:
        from moeplan.routing.load_laws import FORMS, LAWS

        if not _names_law(load, LAWS) and not (load.strip() and Path(load).exists()):
            near = suggestion(load.split(":")[0], LAWS)
            faults.append(Fault("--load", f"{load!r} is neither a law nor a file", near or FORMS))
    if faults:
        raise InputError("options", faults)


def redundant_slots(text: str | None) -> int | None:
    """The number given; None where none is, or it is to be found."""
    return None if text is None or text == BEST else int(count(text, "--redundant", least=0))


def read_load(text: str | None, model: ModelSpec, *, balanced: bool) -> LoadedRanks | None:
    """The loads of a law or a file on the model's experts; balanced: they are placed by load, else in order.

    Raises InputError for a dense model, an unknown law, a file that cannot be read or is of another model.
    """
    if text is None:
        return None
    from moeplan.routing.load_files import read_loads
    from moeplan.routing.load_laws import LAWS, law_loads
    from moeplan.routing.loaded_ranks import LoadedRanks

    experts = model.experts
    if experts is None:
        raise InputError("options", [Fault("--load", f"{model.name} has no experts", "leave it out")])
    if _names_law(text, LAWS):
        loads = law_loads(text, layers=model.moe_layer_count, experts=experts.count)
    else:
        loads = read_loads([Path(text)])
    if loads.experts != experts.count:
        problem = f"is of {loads.experts} experts, {model.name} has {experts.count}"
        raise InputError("options", [Fault("--load", problem, "give loads of this model")])
    if len(loads.loaded) > model.moe_layer_count:
        problem = f"is of {len(loads.loaded)} layers with a load, {model.name} has {model.moe_layer_count} with experts"
        raise InputError("options", [Fault("--load", problem, "give loads of this model")])
    return LoadedRanks.of(loads, top_k=experts.top_k, balanced=balanced)


def _names_law(text: str, laws: tuple[str, ...]) -> bool:
    return text.strip().lower().replace("-", "_").split(":")[0] in laws
