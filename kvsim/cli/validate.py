"""`kvsim validate`: run a scenario on a device and judge the clock that predicts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvsim.cli.console import print_json, printable, say, stdout_console


def validate_command(
    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or the name of one that ships with kvsim.")
    ],
    profile: Annotated[Path, typer.Option(help="What `kvsim calibrate` wrote.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Judge the lockstep steps that `python -m gpu_backend.bench --plan` ran; runs"
            " nothing.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting. Repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the HTML report here.")] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json-out", help="Write everything as JSON here.")
    ] = None,
    strict_traces: Annotated[
        bool, typer.Option("--strict-traces", help="Never replace a missing trace by its fallback.")
    ] = False,
    fixed_speed: Annotated[
        bool,
        typer.Option(
            "--fixed-speed",
            help="Do not scale the clock by the device's speed during each run against its speed"
            " when the profile was measured.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Compare a simulation with real steps on a device.

    Lockstep: the simulation's steps are run one for one and their times compared. Free: both sides
    run on their own clocks, below, at and above saturation. Negative controls: wrong simulations
    must fail. Exit status 1 if a bound of the scenario's section `validation` is exceeded, or a
    control passes.
    """
    from kvsim.results.files import write_whole

    speed = {"strict_traces": strict_traces, "follow_speed": not (fixed_speed or folder)}
    document = _run(scenario, overrides or [], profile, folder, {"device": device, **speed})
    if json_out is not None:
        write_whole(json_out, (json.dumps(document, indent=1) + "\n").encode(), "JSON")
    if out is not None:
        from gpu_backend.validate.page import validation_page

        write_whole(out, validation_page(document).encode(), "report")
    _tell(document, out, as_json)
    if document["failures"]:
        raise typer.Exit(1)


def _tell(document: dict[str, Any], out: Path | None, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        _show(document)
    for line in document["failures"]:
        say(f"kvsim: {printable(line)}")
    if out is not None:
        say(f"report: {out}")


def _run(
    scenario: str,
    overrides: list[str],
    profile: Path,
    folder: Path | None,
    settings: dict[str, Any],
) -> dict[str, Any]:
    from kvsim.cli.device import backend, share_bar
    from kvsim.cost import read_profile
    from kvsim.scenario.loader import load_scenario

    loaded = load_scenario(scenario, overrides)
    measured = read_profile(profile)
    with backend():
        from gpu_backend.validate.document import validate
        from gpu_backend.validate.run import Validation

        with share_bar("running") as progress:
            return validate(Validation(loaded, measured, progress=progress, **settings), folder)


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = stdout_console()
    console.print(
        f"{document['scenario']} on {document['device']['name']}, {document['device']['mode']}; "
        f"profile {document['profile']['sha256'][:12]}"
    )
    table = Table(title="simulated against measured (relative error; bound)")
    for column in ("variant", "figure", "error", "bound", ""):
        table.add_column(column, justify="right" if column in ("error", "bound") else "left")
    for check in document["checks"]:
        counts = check["name"] == "counts"
        table.add_row(
            check["variant"],
            "steps taken" if counts else check["name"],
            ("equal" if check["ok"] else "differ") if counts else f"{check['value']:.1%}",
            "" if counts else f"{check['bound']:.1%}",
            "ok" if check["ok"] else "FAILED",
        )
    console.print(table)
    for control in document["controls"]:
        state = f"noticed by {len(control['broken'])} bounds" if control["noticed"] else "PASSED"
        console.print(f"negative control, {control['name']} ({control['what']}): {state}")
    failed = len(document["failures"])
    verdict = f"not validated: {failed} failures" if failed else "validated"
    if not all(one["free"] for one in document["variants"].values()):
        verdict += f" (step times of {', '.join(document['variants'])} only: nothing ran free)"
    console.print(verdict)
