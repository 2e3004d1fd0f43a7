"""`kvsim compare`: what differs between runs, and whether for the better."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.console import print_json, say, stdout_console
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.cli.progress import ConsoleWatcher
    from kvsim.report.compare import Comparison, Source
    from kvsim.report.thresholds import Check


def compare_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, summary.json files, scenario files or names of shipped scenarios."
            " Scenarios are run first. The first one is the base; a single one is compared"
            " variant by variant.",
        ),
    ],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with status 1 where this holds, e.g. 'ttft_s.p99 > +10%' (relative to the"
            " base), 'paged:batch.mean < -2' (change, one variant), 'preemptions > 100' (value)."
            " Repeatable.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Compare runs of different requests or models, and say so."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown on stdout, for a pull request.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write one self-contained HTML page to this file.")
    ] = None,
) -> None:
    """Compare runs, or the variants of one: settings, memory, service, better or worse."""
    from kvsim.report.compare import compare
    from kvsim.report.compare_document import check_text, comparison_document
    from kvsim.report.compare_html import comparison_html
    from kvsim.report.thresholds import check_rules, parse_rule

    if as_json and as_markdown:
        raise InputError("--json and --markdown exclude each other", fix="Give one of them")
    rules = [parse_rule(text) for text in fail_if or []]
    comparison = compare(_sources(runs), force=force)
    checks = check_rules(rules, comparison)
    if html is not None:
        _write(html, comparison_html(comparison_document(comparison, checks)))
    _print(comparison, checks, as_json=as_json, as_markdown=as_markdown)
    failed = [check for check in checks if check.breached]
    for check in failed:
        say(f"kvsim: {check_text(check)}")
    if failed:
        raise typer.Exit(1)


def _sources(runs: Sequence[str]) -> list[Source]:
    from kvsim.cli.progress import ConsoleWatcher

    with ConsoleWatcher() as watcher:
        return [_source(run, watcher) for run in runs]


def _source(run: str, watcher: ConsoleWatcher) -> Source:
    """What is there is read, and what is none of both is a scenario, which is run."""
    from kvsim.report.compare import Source
    from kvsim.results.read_run import read_run
    from kvsim.results.summary_file import read_summary
    from kvsim.scenario.loader import load_scenario
    from kvsim.scenario.run import as_used, run_scenario

    path = Path(run)
    if path.is_dir():
        folder = read_run(path)
        return Source(run, folder.summary, load_scenario(str(path / "scenario.yaml")))
    if path.suffix == ".json":
        return Source(run, read_summary(path), None)
    scenario = load_scenario(run)
    result = run_scenario(scenario, watcher=watcher)
    return Source(run, result.summary, as_used(scenario, result))


def _print(
    comparison: Comparison, checks: Sequence[Check], *, as_json: bool, as_markdown: bool
) -> None:
    from kvsim.report.compare_document import comparison_document
    from kvsim.report.compare_json import comparison_json
    from kvsim.report.compare_text import comparison_markdown, print_comparison

    if as_json:
        print_json(comparison_json(comparison, checks))
    elif as_markdown:
        sys.stdout.write(comparison_markdown(comparison_document(comparison, checks)))
    else:
        print_comparison(comparison_document(comparison, checks), stdout_console())


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot write the page: {error.strerror or type(error).__name__}",
            where=str(path),
            fix="Choose a file you can write to with --html",
        ) from error
    say(f"page: {path}")
