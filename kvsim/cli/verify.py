"""`kvsim verify`: replay recordings of the real scheduler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.console import print_json

if TYPE_CHECKING:
    from kvsim.recordings import Report, Result


def verify_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE_OR_FOLDER...",
            help="Recordings; a folder means its own files, not its subfolders.",
        ),
    ],
    only_supported: Annotated[
        bool,
        typer.Option("--only-supported", help="Skip recordings of what kvsim does not cover."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Replay recordings of vLLM's scheduler and compare every row.

    Prints the first differing row of each failed recording with both sides. Exit status 1 if any
    failed, 2 if any is no recording.
    """
    from kvsim.recordings import verify

    report = verify(paths, only_supported=only_supported)
    if as_json:
        print_json(_as_json(report))
    else:
        sys.stdout.writelines(line + "\n" for line in _lines(report))
    if not report.ok:
        raise typer.Exit(2 if report.malformed else 1)


def _lines(report: Report) -> list[str]:
    lines = []
    for result in report.results:
        if result.outcome == "passed":
            lines.append(f"passed   {result.path} ({result.rows} rows)")
            continue
        place = f"{result.path}:{result.line}" if result.line else str(result.path)
        version = f" (vLLM {result.vllm_version})" if result.vllm_version else ""
        lines.append(f"{result.outcome:8} {place}{version}: {result.reason}")
        if result.rule:
            lines.append(f"  first rule that differs: {result.rule}")
        for name, (recorded, replayed) in result.difference.items():
            lines += [f"  {name}:", f"    recorded {recorded!r}", f"    replayed {replayed!r}"]
    return [*lines, report.last_line()]


def _as_json(report: Report) -> dict[str, Any]:
    counts = {name: report.count(name) for name in ("passed", "failed", "skipped")}
    return {**counts, "results": [_result(result) for result in report.results]}


def _result(result: Result) -> dict[str, Any]:
    return {
        "path": str(result.path),
        "outcome": result.outcome,
        "vllm_version": result.vllm_version,
        "rows": result.rows,
        "reason": result.reason,
        "rule": result.rule or None,
        "line": result.line or None,
        "difference": {
            name: {"recorded": recorded, "replayed": replayed}
            for name, (recorded, replayed) in result.difference.items()
        },
    }
