"""Where the simulated times and the memory size of a run come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from kvsim.catalog import Fact, explain_budget
from kvsim.cli.facts import facts_table
from kvsim.core.vmm import VmmAllocator
from kvsim.scenario import Server


def clock_lines(summary: Mapping[str, Any]) -> list[str]:
    """How far the times may be off, once for each clock in use."""
    notes = dict.fromkeys(entry["setup"]["clock_note"] for entry in summary["variants"].values())
    lines = [f"Step times: {note}." for note in notes]
    return [*lines, "Percentiles are within 0.1 % of the simulated times."]


def setup_lines(summary: Mapping[str, Any]) -> list[str]:
    """What was simulated, once for each set-up, with the interval of a computed memory size."""
    lines: dict[str, list[str]] = {}
    for name, entry in summary["variants"].items():
        lines.setdefault(_setup(entry["setup"]), []).append(name)
    if len(lines) == 1:
        return list(lines)
    return [f"{', '.join(names)}: {line}" for line, names in lines.items()]


def _setup(setup: Mapping[str, Any]) -> str:
    parts = [
        setup["model"] or "no model",
        f"{setup['gpu_count']:g} x {setup['gpu']}" if setup["gpu"] else "no GPU",
        f"scheduler {setup['scheduler']}",
        f"max_model_len {setup['max_model_len']:,.0f}",
    ]
    what = "page sets" if setup["memory"] == "vmm" else "KV blocks"
    blocks = f"{setup['num_blocks']:,.0f} {what} of {setup['block_size']:g}"
    if setup["num_blocks_80_percent"]:
        low, high = setup["num_blocks_80_percent"]
        blocks += f" (80 % interval {low:,.0f} to {high:,.0f})"
    return ", ".join([*parts, blocks])


def explain_tables(servers: Mapping[str, Server]) -> list[Table]:
    """How memory size and step times of each variant come about; equal ones are shown once."""
    tables: dict[tuple[Fact, ...], Table] = {}
    for name, server in servers.items():
        budget = server.sizing.budget
        groups = {
            f"{name}: step times": server.sizing.clock.explain(),
            f"{name}: KV blocks": explain_budget(budget) if budget else [],
            f"{name}: pages": _pages(server),
        }
        for title, facts in groups.items():
            if facts and tuple(facts) not in tables:
                tables[tuple(facts)] = facts_table(title, facts)
    return list(tables.values())


def _pages(server: Server) -> list[Fact]:
    """What a page holds, for memory over virtual addresses."""
    if not isinstance(server.allocator, VmmAllocator):
        return []
    formula = "page bytes / (max(1, KV heads / GPUs) * head size * bytes), K and V apart"
    return [Fact("tokens_per_page", server.allocator.block_size, "token", formula)]
