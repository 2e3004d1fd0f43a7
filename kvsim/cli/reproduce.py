"""`kvsim reproduce`: published results against ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.console import print_json, say, stdout_console
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.papers import FigureResult

DOCS = Path("docs")


def reproduce_command(
    name: Annotated[
        str | None, typer.Argument(help="One reproduction, e.g. sosp23-fig2; left out, all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown on stdout.")
    ] = False,
    write_docs: Annotated[
        bool,
        typer.Option(
            "--write-docs",
            help="Also write docs/reproductions.md and docs/claims.md of a checkout.",
        ),
    ] = False,
    preset: Annotated[
        bool,
        typer.Option("--preset", help="Draw lengths from the preset although the list is there."),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Processes; left out, one per CPU.")
    ] = None,
) -> None:
    """Run published results again and compare. Exit status 1 if a judged number is off."""
    from kvsim.papers import FIGURES, available_lengths, get_figure, reproduce
    from kvsim.papers.page import figure_data, reproductions_page

    if as_json and as_markdown:
        raise InputError("--json and --markdown exclude each other", fix="Give one of them")
    lengths = "preset" if preset else available_lengths()
    figures = list(FIGURES.values()) if name is None else [get_figure(name)]
    if write_docs:
        _check_docs(name, lengths)
    if lengths == "preset" and any(figure.uses_lengths for figure in figures):
        say("note: lengths are drawn from the preset sharegpt, not from the published list")
    found = reproduce(figures, lengths=lengths, workers=workers, progress=_show_progress)
    passed = all(result.passed for result in found)
    if as_json:
        print_json({"passed": passed, "figures": [figure_data(result) for result in found]})
    elif as_markdown:
        sys.stdout.write(reproductions_page(found))
    else:
        _print(found)
    if write_docs:
        _write_docs(found, workers)
    if not passed:
        raise typer.Exit(1)


def _print(found: Sequence[FigureResult]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from kvsim.papers.page import COLUMNS, cells

    console = stdout_console()
    for result in found:
        table = Table(box=SIMPLE_HEAD, title=result.figure.title, title_justify="left")
        for column in COLUMNS:
            right = column in ("paper", "ours")
            table.add_column(column, justify="right" if right else "left", overflow="fold")
        for row in result.results:
            table.add_row(*cells(row))
        console.print(table)
        for remark in (*result.problems, *result.figure.remarks):
            console.print(f"  {remark}", soft_wrap=True)
    failed = [
        f"{result.figure.name}: {row.target.what}"
        for result in found
        for row in result.results
        if row.passed is False
    ]
    judged = sum(row.passed is not None for result in found for row in result.results)
    console.print(f"{judged - len(failed)} of {judged} judged numbers pass", soft_wrap=True)
    for line in failed:
        console.print(f"FAIL {line}", soft_wrap=True)


def _show_progress(done: int, jobs: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done} of {jobs} runs" + "\n" * (done == jobs))
        sys.stderr.flush()


def _check_docs(name: str | None, lengths: str) -> None:
    if name is not None:
        raise InputError(
            "the pages hold all reproductions", where="--write-docs", fix=f"Leave out {name}"
        )
    if lengths != "real":
        raise InputError(
            "the pages hold results with the published list of lengths",
            where="--write-docs",
            fix="Set $KVSIM_TRACES to a folder with sharegpt_opt_lengths.csv",
        )
    if not DOCS.is_dir():
        raise InputError(
            "there is no folder docs here",
            where="--write-docs",
            fix="Run it in a checkout of kvsim",
        )


def _write_docs(found: Sequence[FigureResult], workers: int | None) -> None:
    from kvsim.papers import get_figure, reproduce
    from kvsim.papers.claims_page import claims_page
    from kvsim.papers.page import reproductions_page

    preset = reproduce([get_figure("sosp23-fig2")], lengths="preset", workers=workers)
    figures = {result.figure.name: result for result in found}
    claims = figures.pop("claims")
    pages = {
        "reproductions.md": reproductions_page([*figures.values(), *preset]),
        "claims.md": claims_page(claims),
    }
    for file, text in pages.items():
        (DOCS / file).write_text(text, encoding="utf-8")
        say(f"wrote {DOCS / file}")
