"""The `kvsim` command: one small file per command, heavy imports inside the commands."""

from __future__ import annotations

import sys

import typer

import kvsim
from kvsim.cli.calibrate import calibrate_command
from kvsim.cli.catalogue import gpus_command, models_command
from kvsim.cli.compare import compare_command
from kvsim.cli.console import LostOutputError, command_streams, complain
from kvsim.cli.dashboard import dashboard_command
from kvsim.cli.export import export_command
from kvsim.cli.fit import fit_command
from kvsim.cli.plan import plan_command
from kvsim.cli.prefix import prefix_command
from kvsim.cli.report import report_command
from kvsim.cli.reproduce import reproduce_command
from kvsim.cli.run import run_command
from kvsim.cli.schema import schema_command
from kvsim.cli.shipped import scenarios_command, traces_command
from kvsim.cli.validate import validate_command
from kvsim.cli.verify import verify_command
from kvsim.errors import CheckFailedError, InputError


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"kvsim {kvsim.__version__}\n")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """KV-cache memory simulation and capacity planning for LLM serving."""


def build_app() -> typer.Typer:
    """The command line with all its commands."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    app.command("run")(run_command)
    app.command("fit")(fit_command)
    app.command("report")(report_command)
    app.command("compare")(compare_command)
    app.command("dashboard")(dashboard_command)
    app.command("export")(export_command)
    app.command("reproduce")(reproduce_command)
    app.command("calibrate")(calibrate_command)
    app.command("models")(models_command)
    app.command("gpus")(gpus_command)
    app.command("scenarios")(scenarios_command)
    app.command("traces")(traces_command)
    app.command("plan")(plan_command)
    app.command("prefix")(prefix_command)
    app.command("schema")(schema_command)
    app.command("validate")(validate_command)
    app.command("verify")(verify_command)
    return app


def main() -> None:
    """Run the command line.

    Exit status 2 with a message on stderr for bad input and for output that cannot be written; 1
    where a device computed something else than the reference; 130 after Ctrl-C, 143 after SIGTERM,
    and 141, silently, where the reader of stdout has left.
    """
    try:
        with command_streams():
            build_app()()
    except InputError as error:
        complain(error)
        sys.exit(2)
    except CheckFailedError as error:
        complain(InputError(f"the device is wrong: {error}", where="device.check_every"))
        sys.exit(1)
    except LostOutputError as lost:
        if lost.reader_left:
            sys.exit(141)
        problem = f"cannot be written: {lost}"
        complain(InputError(problem, where="stdout", fix="Send it to a disk with room"))
        sys.exit(2)
