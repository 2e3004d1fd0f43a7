"""Where the simulated times and the memory size of a run come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from kvsim.catalog import Fact, explain_budget
from kvsim.cli.facts import facts_table
from kvsim.scenario import Server


def clock_lines(summary: Mapping[str, Any]) -> list[str]:
    """How far the times may be off, once for each clock in use."""
    notes = dict.fromkeys(entry["setup"]["clock_note"] for entry in summary["variants"].values())
    lines = [f"Step times: {note}." for note in notes]
    return [*lines, "Percentiles are within 0.1 % of the simulated times."]


def explain_tables(servers: Mapping[str, Server]) -> list[Table]:
    """How memory size and step times of each variant come about; equal ones are shown once."""
    tables: dict[tuple[Fact, ...], Table] = {}
    for name, server in servers.items():
        budget = server.sizing.budget
        groups = {
            f"{name}: step times": server.sizing.clock.explain(),
            f"{name}: KV blocks": explain_budget(budget) if budget else [],
        }
        for title, facts in groups.items():
            if facts and tuple(facts) not in tables:
                tables[tuple(facts)] = facts_table(title, facts)
    return list(tables.values())
