"""`kvsim report`: one self-contained page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.console import print_json, printable, say, stdout_console


def report_command(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A run folder written by `kvsim run --out`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write the page here. Left out, report.html in the run folder."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print path, sentence and bounds as JSON on stdout.")
    ] = False,
) -> None:
    """Write report.html: tables, charts and physical maps of a run, for screen and paper.

    The page needs no network. An existing file is replaced.
    """
    from kvsim.report.html import write_report

    report = write_report(run_dir, out)
    if as_json:
        print_json(
            {
                "report": str(report.path),
                "bytes": report.bytes,
                "summary": report.sentence,
                "binds": report.binds,
                "compute_would_allow": report.compute_would_allow,
            }
        )
        return
    stdout_console().print(printable(report.sentence))
    say(f"report: {report.path}")
