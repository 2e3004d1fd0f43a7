"""`kvsim schema`: the scenario format for editors and people."""

from __future__ import annotations

from kvsim.cli.console import print_json


def schema_command() -> None:
    """Print the JSON Schema of a scenario file: every setting, its meaning, limits and default."""
    from kvsim.scenario.schema import scenario_schema

    print_json(scenario_schema())
