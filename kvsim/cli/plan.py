"""`kvsim plan`: the steps of a simulation as a file that a bare GPU machine can run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.console import print_json, say


def plan_command(
    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or the name of one that ships with kvsim.")
    ],
    out: Annotated[Path, typer.Option(help="Write the plan file here.")] = Path("plan.json"),
    variant: Annotated[
        str | None, typer.Option(help="Whose steps; left out, those of the first variant.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where they will be run: cpu or cuda.")] = "cuda",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Write the steps of a closed loop for a machine that has only torch, Triton and numpy.

    There `python -m gpu_backend.bench --plan FILE --out DIR` runs them; `kvsim validate SCENARIO
    --from DIR --profile FILE` compares their times with a clock.
    """
    from kvsim.cli.device import backend
    from kvsim.results.files import write_whole
    from kvsim.scenario.loader import load_scenario

    loaded = load_scenario(scenario, overrides or [])
    with backend():
        from gpu_backend.validate.replayed import export_plan

        plan_file = export_plan(loaded, variant, device)
    document = plan_file.as_dict()
    write_whole(out, json.dumps(document).encode() + b"\n", "plan")
    if as_json:
        keys = ("variant", "model", "layers", "measured_layers", "sha256")
        print_json({**{key: document[key] for key in keys}, "steps": len(document["steps"])})
    say(f"plan: {out} ({len(plan_file.steps)} steps of {plan_file.variant})")
