"""`kvsim calibrate`: measure a device and write the profile of a clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvsim.cli.console import print_json, say, stdout_console


def calibrate_command(
    scenario: Annotated[
        str | None,
        typer.Argument(help="The scenario whose model, limits and memories are measured."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Write the profile here.")] = Path("profile.json"),
    minutes: Annotated[
        float, typer.Option(min=0.01, max=600.0, help="How long to measure, about.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of batches and their order.")] = 0,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Fit what `python -m gpu_backend.bench --out DIR` measured; measures nothing.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile on stdout.")] = False,
) -> None:
    """Measure steps on a device and fit the clock that predicts them.

    Batches of decodes, prefill chunks and both are run on the real kernels over every memory layout
    of the scenario; random batches that are not fitted say how far off the clock is. Scenarios name
    the profile with `clock: {kind: profile, path: FILE}`.
    """
    from kvsim.cli.device import backend, share_bar
    from kvsim.errors import InputError
    from kvsim.results.files import write_whole
    from kvsim.scenario.loader import load_scenario

    if (scenario is None) == (folder is None):
        raise InputError(
            "takes either a scenario or --from DIR",
            where="calibrate",
            fix="For example: kvsim calibrate validate-cpu --device cpu",
        )
    with backend():
        from gpu_backend.calibrate import calibrate, calibrate_from
        from gpu_backend.scenario_device import grid_of

        if folder is not None:
            document = calibrate_from(folder)
        else:
            assert scenario is not None
            spec = grid_of(load_scenario(scenario, overrides or []), device)
            with share_bar("measuring") as progress:
                document = calibrate(spec, budget_s=minutes * 60, seed=seed, progress=progress)
    write_whole(out, (json.dumps(document, indent=1) + "\n").encode(), "profile")
    if as_json:
        print_json(document)
    else:
        _show(document)
    say(f"profile: {out}")


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = stdout_console()
    model, device = document["model"], document["device"]
    depths = document["measured_layers"]
    ran = "" if depths == [model["layers"]] else f", run at {depths[0]} and {depths[1]} layers"
    console.print(
        f"{model['name']} ({model['layers']} layers{ran}) on {device['name']}, {device['mode']}, "
        f"{document['rounds']} rounds; noise of one run to the next: median "
        f"{document['noise']['median']:.1%}, 90th percentile {document['noise']['p90']:.1%}"
    )
    errors = document["errors"]
    table = Table(title="relative error of a step's time")
    for column in ("steps", "count", "median", "p90", "bias"):
        table.add_column(column, justify="left" if column == "steps" else "right")
    lines = {"fitted": errors["fitted"], "not fitted": errors["held_out"]}
    lines |= {f"not fitted, {kind}": row for kind, row in errors["held_out_by_kind"].items()}
    if errors["depth_check"]:
        lines[f"all {model['layers']} layers, not fitted"] = errors["depth_check"]
    for name, row in lines.items():
        table.add_row(
            name,
            str(row["points"]),
            f"{row['median']:.1%}",
            f"{row['p90']:.1%}",
            f"{row['bias']:+.1%}",
        )
    console.print(table)
    if depths != [model["layers"]] and not errors["depth_check"]:
        console.print("the extrapolation was not checked: the whole model does not fit")
