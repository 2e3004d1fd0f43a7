"""`kvsim export`: hand a run to other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.console import print_json, printable, say, stdout_console


def export_command(
    run_dir: Annotated[Path, typer.Argument(help="A run folder written by `kvsim run --out`.")],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="csv|parquet|openmetrics|perfetto|vllm-json",
            help=(
                "csv: a folder of tables. parquet: the summary as one long table. openmetrics: "
                "text with vLLM's metric names. perfetto: a Chrome trace of requests and steps. "
                "vllm-json: the result of `vllm bench serve`, an object per line and variant."
            ),
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write, or the folder for csv.")],
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Only this variant. Repeatable; left out, all variants."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is at --out.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON on stdout.")
    ] = False,
) -> None:
    """Write a run in a format of another tool."""
    from kvsim.report.export import export_run
    from kvsim.results.read_run import read_run

    written = export_run(read_run(run_dir), kind, out, variants=variant or [], force=force)
    if as_json:
        files = [{"path": str(path), "bytes": size} for path, size in written.files.items()]
        print_json({"format": kind, "files": files, "notes": list(written.notes)})
        return
    console = stdout_console()
    for path, size in written.files.items():
        console.print(f"{printable(str(path))}: {size:,} bytes", soft_wrap=True)
    for note in written.notes:
        say(f"note: {note}")
