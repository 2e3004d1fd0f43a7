"""`kvsim models` and `kvsim gpus`: what the catalogue knows, with sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

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
from kvsim.cli.facts import fact_json, facts_table

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


class _Column(NamedTuple):
    """A column of an overview: the fact it shows, divided by `per`."""

    fact: str
    title: str
    per: float = 1
    digits: int = 0


_MODEL_COLUMNS = (
    _Column("parameters", "parameters\n(B)", 1e9, 1),
    _Column("weights", "weights\n(GB)", 1e9, 1),
    _Column("kv_bytes_per_token", "KV\n(B/token)"),
    _Column("max_position", "context\n(tokens)"),
    _Column("naive_kv_bytes_per_token", "naive KV\n(B/token)"),
    _Column("layers", "layers"),
)
_GPU_COLUMNS = (
    _Column("memory", "memory\n(GB)", 1e9, 1),
    _Column("memory_bw", "bandwidth\n(GB/s)", 1e9),
    _Column("flops.bf16", "bf16\n(TFLOP/s)", 1e12, 1),
    _Column("flops.fp16", "fp16\n(TFLOP/s)", 1e12, 1),
    _Column("measured", "clock\nmeasured"),
    _Column("reported_memory", "CUDA reports\n(GiB)", 1, 2),
)
"""Most important first: the last ones are left out where the terminal is too narrow."""


def _show(name: str, facts: Sequence[Fact], explain: bool, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "facts": [fact_json(fact, source=explain) for fact in facts]})
        return
    stdout_console().print(facts_table(name, facts, sources=explain))


def _list(
    what: str,
    entries: Mapping[str, Sequence[Fact]],
    columns: Sequence[_Column],
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
        _print_overview(entries, columns)


def _print_overview(entries: Mapping[str, Sequence[Fact]], columns: Sequence[_Column]) -> None:
    """As many columns as fit, never a cut figure, and the names of those left out."""
    console = stdout_console()
    shown = len(columns)
    while shown > 1:
        table = _overview(entries, columns[:shown])
        if console.measure(table, options=console.options.update(width=1000)).maximum <= (
            console.width
        ):
            break
        shown -= 1
    console.print(_overview(entries, columns[:shown]))
    if shown < len(columns):
        left_out = ", ".join(column.title.split("\n")[0] for column in columns[shown:])
        console.print(f"Left out, for want of width: {left_out}. One entry alone shows everything.")


def _overview(entries: Mapping[str, Sequence[Fact]], columns: Sequence[_Column]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("name", no_wrap=True, overflow="fold")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True, overflow="fold")
    for name, facts in entries.items():
        values = {fact.name: fact.value for fact in facts}
        table.add_row(name, *(_figure(values.get(column.fact), column) for column in columns))
    return table


def _figure(value: float | str | None, column: _Column) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value / column.per:,.{column.digits}f}"
