"""`kvsim run`: replay a scenario and show where memory and time went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.console import print_json, printable, say, stdout_console

if TYPE_CHECKING:
    from kvsim.scenario.run import RunResult


def run_command(
    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or the name of one that ships with kvsim.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, e.g. --set engine.max_num_seqs=64. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the run folder here: settings, summary, rows. Must not exist."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout.")
    ] = False,
    strict_traces: Annotated[
        bool, typer.Option("--strict-traces", help="Never replace a missing trace by its fallback.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            help="Run every step on this device (cpu or cuda) and take its measured time, instead"
            " of the scenario's clock."
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show where memory size and step times come from.")
    ] = False,
) -> None:
    """Replay the traffic of a scenario through every variant of the server."""
    from kvsim.cli.device import device_clocks
    from kvsim.cli.progress import ConsoleWatcher
    from kvsim.scenario.loader import load_scenario
    from kvsim.scenario.run import run_scenario

    loaded = load_scenario(scenario, overrides or [])
    with ConsoleWatcher() as watcher:
        result = run_scenario(
            loaded,
            out=out,
            strict_traces=strict_traces,
            watcher=watcher,
            make_clock=device_clocks(loaded, device) if device else None,
        )
    if as_json:
        print_json(result.summary)
    else:
        _show(result, explain)
    _warn(result)
    if out is not None:
        say(f"run folder: {out}")


def _show(result: RunResult, explain: bool) -> None:
    from kvsim.cli.provenance import clock_lines, explain_tables, setup_lines
    from kvsim.report import definitions_table, print_report

    console = stdout_console()
    workload = result.summary["workload"]
    rows = workload["rows"]
    dropped = ", ".join(f"{count} {reason}" for reason, count in rows["dropped"].items())
    console.print(
        f"{result.summary['scenario']}: {printable(workload['source'])}, {rows['kept']:,} requests"
        + (f" ({rows['read']:,} rows read, dropped: {dropped})" if dropped else "")
    )
    for line in setup_lines(result.summary):
        console.print(line)
    print_report(result.summary["variants"], console)
    if "seeds" in result.summary:
        console.print(
            f"{len(result.summary['seeds'])} seeds: a figure is the mean over them ± half of its"
            " 95 % interval (Student's t); latencies are of the requests of all seeds together."
        )
    for line in clock_lines(result.summary):
        console.print(line)
    if explain:
        for table in [*explain_tables(result.servers), definitions_table()]:
            console.print(table)


def _warn(result: RunResult) -> None:
    for name, entry in result.summary["variants"].items():
        stuck = entry["stuck"]
        if stuck:
            say(
                f"kvsim: {name}: the run cannot advance any more since {stuck['at_s']:g} s:"
                f" {stuck['reason']}. {stuck['waiting']} requests wait, {stuck['running']} run;"
                f" the first is {stuck['head_request_id']}."
            )
    for line, names in _oddities(result).items():
        everyone = len(names) == len(result.summary["variants"]) > 1
        whose = "every variant" if everyone else ", ".join(names)
        say(f"kvsim: {whose}: {line}")


def _oddities(result: RunResult) -> dict[str, list[str]]:
    """What the reader must not overlook -> the variants it is true of."""
    lines: dict[str, list[str]] = {}
    for name, entry in result.summary["variants"].items():
        requests, measured = entry["requests"], entry["measured"]
        for reason, count in requests["rejected_by_reason"].items():
            lines.setdefault(f"rejected {count:g}: {reason}", []).append(name)
        if requests["truncated"]:
            line = f"cut the output of {requests['truncated']:g} requests at max_model_len"
            lines.setdefault(line, []).append(name)
        if not measured["duration_s"]:
            line = (
                f"the measured time begins at {measured['from_s']:g} s, when the run was over"
                f" (after {entry['duration_s']:g} s)"
            )
            lines.setdefault(line, []).append(name)
    return lines
