"""`kvsim scenarios` and `kvsim traces`: what there is to run, and where it is."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvsim.cli.console import print_json, printable, stdout_console
from kvsim.errors import InputError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def scenarios_command(as_json: AsJson = False) -> None:
    """List the scenarios that ship with kvsim."""
    from kvsim.scenario import load_scenario, shipped_scenarios

    descriptions = {name: load_scenario(name).description for name in shipped_scenarios()}
    if as_json:
        print_json({"scenarios": descriptions})
        return
    table = _table("name", "what it shows")
    for name, description in descriptions.items():
        table.add_row(name, description)
    stdout_console().print(table)


def traces_command(as_json: AsJson = False) -> None:
    """List the published traces and presets that scenarios can name, and where each is."""
    from kvsim.workload import KNOWN_TRACES, list_length_presets, list_presets
    from kvsim.workload.store import TRACES_VARIABLE

    folder = os.environ.get(TRACES_VARIABLE) or None
    traces = {name: _trace(name) for name in KNOWN_TRACES}
    if as_json:
        presets = {"presets": list_presets(), "length_presets": list_length_presets()}
        print_json({"folder": folder, "traces": traces, **presets})
        return
    console = stdout_console()
    table = _table("trace", "rows", "where it is")
    for name, trace in traces.items():
        place = trace["path"] or trace["problem"] or trace["how_to_get"]
        table.add_row(name, f"{trace['rows']:,}", printable(place))
    console.print(table)
    state = printable(folder) if folder else f"${TRACES_VARIABLE} is not set"
    console.print(f"Folder of traces: {state}")
    console.print(f"Presets, part of kvsim: {', '.join(list_presets())}")
    console.print(f"Presets of lengths, part of kvsim: {', '.join(list_length_presets())}")


def _trace(name: str) -> dict[str, Any]:
    from kvsim.workload import KNOWN_TRACES, find_trace

    known = KNOWN_TRACES[name]
    path = problem = None
    try:
        path = find_trace(name)
    except InputError as error:
        problem = str(error)
    return {
        "file_name": known.file_name,
        "rows": known.rows,
        "licence": known.licence,
        "url": known.url,
        "how_to_get": known.how_to_get,
        "path": None if path is None else str(path),
        "problem": problem,
    }


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for title in others:
        table.add_column(title, overflow="fold")
    return table
