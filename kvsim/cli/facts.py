"""Facts of the catalogue as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvsim.catalog import Fact


def facts_table(title: str, facts: Sequence[Fact], *, sources: bool = True) -> Table:
    """Name, value, unit and, on request, the source of each fact."""
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("unit")
    if sources:
        table.add_column("source")
    for fact in facts:
        table.add_row(*([fact.name, number(fact.value), fact.unit] + [fact.source] * sources))
    return table


def fact_json(fact: Fact, *, source: bool = True) -> dict[str, Any]:
    """A fact as plain data."""
    shown = {"name": fact.name, "value": fact.value, "unit": fact.unit}
    return {**shown, "source": fact.source} if source else shown


def number(value: float | str) -> str:
    """Whole numbers with thousands separators, others with six digits; text as it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:.6g}"
