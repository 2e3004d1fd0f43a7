"""`kvsim prefix`: what a prefix cache would find again, at every size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvsim.cli.console import print_json, printable, stdout_console
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.workload import TraceWorkload

DEFAULT_ROWS = 12
MAX_ROWS = 10_000
MAX_BLOCKS = 10**15
MAX_IN_FLIGHT = 100_000
_CAPACITY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(k|M|G|blocks)?")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}

Trace = Annotated[
    str, typer.Argument(help="A trace file, or the name of a published one (kvsim traces).")
]
BlockSize = Annotated[int, typer.Option(help="Tokens of a block of the cache.")]
Capacities = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Capacities to show, in tokens (48000, 48k, 3M) or blocks (3000blocks), separated by"
        " commas. Default: from the largest request to where nothing is evicted.",
    ),
]
Belady = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Show N capacities more, evenly in logarithm, and for all of them the most that any"
        " eviction rule could find.",
    ),
]
InFlight = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Also run vLLM's scheduler with N requests at once at every capacity, and show what"
        " it finds less (seconds per capacity).",
    ),
]
FormatName = Annotated[
    str, typer.Option(help="The trace's format; auto tells it from the columns.")
]
ChunkTokens = Annotated[
    int | None,
    typer.Option(help="Tokens of a chunk under hash_ids, where the trace does not say it."),
]
ChunkLengths = Annotated[
    Path | None, typer.Option(help="RAGPulse: the CSV file chunk_id,token_length.")
]
OnBadRow = Annotated[
    str, typer.Option(metavar="error|drop", help="Stop at a bad row, or count it.")
]
Model = Annotated[
    str | None,
    typer.Option(help="Show capacities also in GiB of this model's KV cache (on one GPU)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show what every figure means.")]


def prefix_command(
    trace: Trace,
    block_size: BlockSize = 16,
    capacities: Capacities = None,
    belady: Belady = 0,
    in_flight: InFlight = 0,
    format: FormatName = "auto",
    chunk_tokens: ChunkTokens = None,
    chunk_lengths: ChunkLengths = None,
    on_bad_row: OnBadRow = "error",
    model: Model = None,
    as_json: AsJson = False,
    explain: Explain = False,
) -> None:
    """Show how much of a trace's prompts a prefix cache finds, by its capacity."""
    from kvsim.cli.progress import ConsoleWatcher
    from kvsim.workload.checks import check_integer
    from kvsim.workload.prefix import (
        MAX_BLOCK_SIZE,
        PREFIX_DEFINITIONS,
        PrefixAnalysis,
        prefix_document,
    )

    check_integer(belady, "--belady", 0, MAX_ROWS)
    check_integer(in_flight, "--in-flight", 0, MAX_IN_FLIGHT)
    check_integer(block_size, "--block-size", 1, MAX_BLOCK_SIZE)
    asked = None if capacities is None else _capacities(capacities, block_size)
    bytes_per_token = None if model is None else _bytes_per_token(model)
    workload = _workload(trace, format, chunk_tokens, chunk_lengths, on_bad_row)
    analysis = PrefixAnalysis(workload, block_size)
    if asked is None or belady:
        asked = [*(asked or []), *analysis.capacities(belady or DEFAULT_ROWS)]
    with ConsoleWatcher() as watcher:
        watcher.start("capacities", len(set(asked)))
        document = prefix_document(
            workload,
            analysis,
            sorted(set(asked)),
            best=belady > 0,
            in_flight=in_flight,
            bytes_per_token=bytes_per_token,
            advance=watcher.advance,
        )
    if as_json:
        print_json(document | ({"definitions": dict(PREFIX_DEFINITIONS)} if explain else {}))
        return
    console = stdout_console()
    for line in _lines(document):
        console.print(line)
    if explain:
        console.print(_explained(PREFIX_DEFINITIONS))


def _workload(
    trace: str, kind: str, chunk: int | None, lengths: Path | None, on_bad_row: str
) -> TraceWorkload:
    from kvsim.workload import KNOWN_TRACES, ReadRules, TraceWorkload, find_trace
    from kvsim.workload.store import TRACES_VARIABLE

    path: Path | None = Path(trace)
    if trace in KNOWN_TRACES:
        path = find_trace(trace)
        if path is None:
            raise InputError(
                f"the published trace {trace} is not in ${TRACES_VARIABLE}",
                where="trace",
                fix=f"{KNOWN_TRACES[trace].how_to_get} into a folder and set ${TRACES_VARIABLE}",
            )
    if on_bad_row not in ("error", "drop"):
        raise InputError(
            f"must be error or drop, got {on_bad_row!r}", where="--on-bad-row", fix="Use one"
        )
    rule: Literal["error", "drop"] = "drop" if on_bad_row == "drop" else "error"
    rules = ReadRules(on_bad_row=rule, way_to_drop="--on-bad-row drop")
    assert path is not None
    return TraceWorkload(path, format=kind, rules=rules, chunk_tokens=chunk, chunk_lengths=lengths)


def _capacities(text: str, block_size: int) -> list[int]:
    """In blocks, rounded down."""
    found = []
    for part in text.split(","):
        match = _CAPACITY.fullmatch(part.strip())
        value, unit = (match[1], match[2] or "") if match else ("", "")
        if not match or (unit == "blocks" and "." in value):
            raise InputError(
                f"{part.strip()[:40]!r} is no capacity",
                where="--capacities",
                fix="Write tokens, like 48000, 48k or 3M, or blocks, like 3000blocks",
            )
        blocks = (
            int(value) if unit == "blocks" else int(Fraction(value) * _UNITS[unit]) // block_size
        )
        if not 1 <= blocks <= MAX_BLOCKS:
            raise InputError(
                f"{part.strip()} must be from 1 to {MAX_BLOCKS:,} blocks of {block_size} tokens",
                where="--capacities",
                fix="Give a capacity within these limits",
            )
        found.append(blocks)
    if len(found) > MAX_ROWS:
        raise InputError(
            f"{len(found):,} are more than {MAX_ROWS:,}", where="--capacities", fix="Give fewer"
        )
    return found


def _bytes_per_token(model: str) -> int:
    from kvsim.catalog import get_model
    from kvsim.catalog.kv import kv_bytes_per_token

    return kv_bytes_per_token(get_model(model))


def _lines(document: dict[str, Any]) -> Iterator[str | Table]:
    total, bound = document["prompt_tokens"], document["bound"]
    dropped = ", ".join(f"{n} {why}" for why, n in document["rows"]["dropped"].items())
    yield (
        f"{printable(document['trace'])}: {document['requests']:,} requests,"
        f" {total:,} prompt tokens" + (f" (dropped rows: {dropped})" if dropped else "")
    )
    yield (
        f"Blocks of {document['block_size']} tokens, one request in flight, prompt and generated"
        " tokens cached. Shares are of all prompt tokens."
    )
    yield _table(document)
    yield (
        f"Without eviction: {_percent(bound['hit_tokens'], total)} hit,"
        f" {_percent(bound['never_seen_tokens'], total)} never seen before,"
        f" {_percent(bound['rounding_tokens'], total)} lost to block rounding,"
        f" {_percent(bound['last_token_tokens'], total)} to the last-token rule."
    )
    chunks = document["chunks"]
    if chunks:
        yield (
            f"In the trace's chunks of {document['chunk_tokens']} tokens, all kept:"
            f" {chunks['chunks']:.2%} of the chunks are repeats,"
            f" {chunks['full_chunk_tokens']:.2%} of the tokens in full chunks;"
            f" the mean request repeats {chunks['mean_of_requests']:.2%}."
        )


def _explained(definitions: Mapping[str, str]) -> Table:
    table = Table(box=SIMPLE_HEAD, title="What the figures mean", title_justify="left")
    table.add_column("figure")
    table.add_column("definition", overflow="fold")
    for name, definition in definitions.items():
        table.add_row(name, definition)
    return table


def _table(document: dict[str, Any]) -> Table:
    rows, total = document["capacities"], document["prompt_tokens"]
    columns = {"capacity\n(tokens)": [f"{row['tokens']:,}" for row in rows]}
    columns["(blocks)"] = [f"{row['blocks']:,}" for row in rows]
    if any(row["gib"] is not None for row in rows):
        columns["(GiB)"] = [f"{row['gib']:,.1f}" for row in rows]
    columns["LRU\nhit"] = [_percent(row["lru"]["hit_tokens"], total) for row in rows]
    if any(row["best_hit_tokens"] is not None for row in rows):
        columns["best\nhit"] = [_percent(row["best_hit_tokens"], total) for row in rows]
    if rows and "in_flight" in rows[0]:
        busy = [row["in_flight"] for row in rows]
        columns[f"{busy[0]['requests']:,} at\nonce"] = [f"{one['hit_rate']:.2%}" for one in busy]
        columns["differ-\nence"] = [f"{one['difference']:+.2%}" for one in busy]
    columns["\nevicted"] = [_percent(row["lru"]["evicted_tokens"], total) for row in rows]
    if any(row["lru"]["rejected_tokens"] for row in rows):
        columns["\nrejected"] = [_percent(row["lru"]["rejected_tokens"], total) for row in rows]
    table = Table(box=SIMPLE_HEAD)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True, overflow="fold")
    for values in zip(*columns.values(), strict=True):
        table.add_row(*values)
    return table


def _percent(part: int, total: int) -> str:
    return f"{part / total:.2%}"
