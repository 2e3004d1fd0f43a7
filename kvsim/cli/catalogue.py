"""`kvsim models` and `kvsim gpus`: what the catalogue knows, with sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvsim.catalog import (
    Fact,
    explain_gpu,
    explain_model,
    get_gpu,
    get_model,
    list_gpus,
    list_models,
)
from kvsim.cli.console import print_json, stdout_console
from kvsim.cli.facts import fact_json, facts_table, number

Explain = Annotated[bool, typer.Option("--explain", help="Show where every number comes from.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def models_command(
    name: Annotated[str | None, typer.Argument(help="One model; left out, all.")] = None,
    explain: Explain = False,
    as_json: AsJson = False,
) -> None:
    """List the models of the catalogue, or show one."""
    if name is not None:
        _show(get_model(name).name, explain_model(get_model(name)), explain, as_json)
        return
    _list(
        "models",
        {key: explain_model(get_model(key)) for key in list_models()},
        _MODEL_COLUMNS,
        explain=explain,
        as_json=as_json,
    )


def gpus_command(
    name: Annotated[str | None, typer.Argument(help="One GPU; left out, all.")] = None,
    explain: Explain = False,
    as_json: AsJson = False,
) -> None:
    """List the GPUs of the catalogue, or show one."""
    if name is not None:
        _show(get_gpu(name).name, explain_gpu(get_gpu(name)), explain, as_json)
        return
    _list(
        "gpus",
        {key: explain_gpu(get_gpu(key)) for key in list_gpus()},
        _GPU_COLUMNS,
        explain=explain,
        as_json=as_json,
    )


_MODEL_COLUMNS = (
    "parameters",
    "layers",
    "weights",
    "kv_bytes_per_token",
    "naive_kv_bytes_per_token",
    "max_position",
)
_GPU_COLUMNS = ("memory", "reported_memory", "memory_bw", "flops.bf16", "flops.fp16", "measured")


def _show(name: str, facts: Sequence[Fact], explain: bool, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "facts": [fact_json(fact, source=explain) for fact in facts]})
        return
    stdout_console().print(facts_table(name, facts, sources=explain))


def _list(
    what: str,
    entries: Mapping[str, Sequence[Fact]],
    columns: Sequence[str],
    *,
    explain: bool,
    as_json: bool,
) -> None:
    if as_json:
        shown = {
            name: [fact_json(fact, source=explain) for fact in facts]
            for name, facts in entries.items()
        }
        print_json({what: shown})
    elif explain:
        for name, facts in entries.items():
            _show(name, facts, explain, as_json)
    else:
        stdout_console().print(_overview(entries, columns))


def _overview(entries: Mapping[str, Sequence[Fact]], columns: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("name")
    units = {fact.name: fact.unit for facts in entries.values() for fact in facts}
    for column in columns:
        unit = f"\n({units[column]})" if units.get(column) else ""
        table.add_column(column + unit, justify="right")
    for name, facts in entries.items():
        values = {fact.name: number(fact.value) for fact in facts}
        table.add_row(name, *(values.get(column, "-") for column in columns))
    return table
