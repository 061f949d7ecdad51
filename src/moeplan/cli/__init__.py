"""The command line: a lazy group, one file per command, and what an error looks like.

Exit 0 done, 1 nothing feasible, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

# The model uses no linear algebra: without this, numpy's BLAS starts a pool of threads, 100 ms of CPU for nothing.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click

from moeplan import __version__
from moeplan.errors import Infeasible, InputError, MoeplanError, suggestion

_COMMANDS = {
    "plan": "Search all deployments of a model; print the best, why, and how to start it.",
    "predict": "Predict one decode step, operator by operator.",
    "explain": "Show where a step's time goes, and how far it is from the limit.",
    "sensitivity": "Show what one more percent of each thing would give.",
    "compare": "Compare two deployments, or one and a measured profile, operator by operator.",
    "layouts": "Compare layouts (TP, attention-DP, EP) over the requests, and show where they cross.",
    "groups": "Show how tokens meet experts: groups and rows of the grouped GEMM, and their time.",
    "budget": "Show which of four chains binds the batch: experts, arithmetic, wire, memory.",
    "balance": "Place experts on ranks by their loads; what balancing is worth, and what moving costs.",
    "gpus": "List GPUs, or show one with its sources.",
    "nics": "List network cards, or show one with its sources.",
    "clusters": "List clusters, or show one with its sources.",
    "models": "List built-in models, or show one (also from a config.json).",
    "silicon": "List the measured kernel tables of aiconfigurator-core, or show one.",
    "reproduce": "Reproduce the tables and claims of published articles.",
    "validate": "Compare predictions with published measurements.",
    "bench": "Measure kernels on a CUDA machine into tables for --data.",
    "calibrate": "Fit kernel parameters to measured tables, with the error on rows left out.",
}


class LazyGroup(click.Group):
    """A group that imports a command's file only when it runs; help needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of a day's work."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its command."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"moeplan.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a near command for an unknown one."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = suggestion(args[0], _COMMANDS) or f"Commands: {', '.join(_COMMANDS)}."
            raise click.UsageError(f"No such command {args[0]!r}. {near}".rstrip(), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="moeplan")
def group() -> None:
    """Plan the serving of Mixture-of-Experts models before renting a GPU."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; no traceback for an error that moeplan raises on purpose."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without µ or × shows a question mark
    try:
        code = _run(argv)
    except (BrokenPipeError, SystemExit):  # the reader has gone (click and rich then exit): nothing more to say
        _drop_output()
        code = 0
    except OSError as error:
        _drop_output()
        _report_error("system", f"{error.strerror}: {error.filename or 'standard output'}", [], as_json=False)
        code = 2
    sys.exit(code)


def _run(argv: list[str]) -> int:
    try:
        result = group.main(args=argv, prog_name="moeplan", standalone_mode=False)
    except click.exceptions.Abort:
        print("interrupted", file=sys.stderr)
        return 130
    except click.ClickException as error:
        _report_error("usage", error.format_message(), [], as_json="--json" in argv)
        return 2
    except MoeplanError as error:
        faults = error.faults if isinstance(error, InputError) else ()
        listed = [{"path": fault.path, "problem": fault.problem, "fix": fault.fix} for fault in faults]
        _report_error(type(error).__name__, str(error), listed, as_json="--json" in argv)
        return 1 if isinstance(error, Infeasible) else 2
    return result if isinstance(result, int) else 0


def _drop_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_error(kind: str, message: str, faults: list[dict[str, str]], *, as_json: bool) -> None:
    print(f"moeplan: {message}", file=sys.stderr)
    if as_json:
        import json

        content = {"schema": "moeplan.error/1", "version": __version__, "error": kind, "message": message}
        print(json.dumps(content | {"faults": faults}, indent=2, ensure_ascii=False))
