"""The tables of the page: the result block, where the memory goes, what binds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kvsim.report.bounds import BUDGET, MEMORY, SEQUENCES
from kvsim.report.definitions import DEFINITIONS
from kvsim.report.html_data import VariantData
from kvsim.report.html_rows import (
    BY_ITERATION_ROWS,
    BY_ITERATION_TITLE,
    MORE_MEMORY_ROWS,
    PAPER_ROWS,
    PAPER_TITLE,
    WHOLE_RUN_ROWS,
)
from kvsim.report.text import OPTIONAL_PATHS, TABLE_ROWS, Row, figure, shown

COLUMNS = 6
"""Variants side by side in one table: what fits a sheet of paper."""
MAX_VARIANTS = 60
_NONE = "-"
_MEMORY_PATHS = ("memory.", "batch.", "preemptions", "held_up_steps", "requests.held_up")

MORE_DEFINITIONS: Mapping[str, str] = {
    "requests.failed": "Requests of the whole run that were rejected, aborted or left unfinished"
    " (count).",
    "setup.num_blocks_80_percent": "Interval that holds the capacity of a real server with this"
    " set-up with 80 % probability: weights and activations are estimated beforehand. A dash where"
    " the scenario gives the number of blocks (slots).",
    "setup.clock_relative_error": "Relative error to expect of a step's duration. TPOT and ITL"
    " carry it as it is; queueing, and with it TTFT and end-to-end latency, can amplify it. Given:"
    " the scenario states the times (%).",
    "bound.queue_share": "Steps in which a request still waited after scheduling, over all steps"
    " (%).",
    "bound.memory": "Steps with a queue whose head lacked memory: held up or short of memory (% of"
    " the steps with a queue; the reasons may overlap).",
    "bound.max_num_seqs": "Steps with a queue in which max_num_seqs requests ran (% of the steps"
    " with a queue).",
    "bound.budget": "Steps with a queue in which max_num_batched_tokens tokens were computed (% of"
    " the steps with a queue).",
    "bound.memory_allows": "Requests that would fill the memory at the slots that each held on"
    " average: mean batch by time over the share of the memory that was allocated (requests).",
    "bound.compute_allows": "Requests that compute would let decode at once, whatever the memory"
    " holds; the rule is stated below the table. In parentheses: with steps slower and faster by"
    " the clock's relative error (requests).",
    "bound.with_prefills": "The largest batch whose step meets the TPOT objective on average when"
    " it also computes the prefills that replace the requests that end: prompt tokens over"
    " decodes, from the finished requests (requests).",
    "bound.binds": "What stopped the batch from growing, by the rules below the table.",
}
"""Figures that are not in a summary."""


class Line(NamedTuple):
    """A row of a table."""

    label: str
    cells: list[str]
    anchor: str = ""
    definition: str = ""
    part: bool = False


class Chunk(NamedTuple):
    """A table of at most `COLUMNS` variants."""

    head: list[str]
    groups: list[tuple[str, list[Line]]]


def anchor(key: str) -> str:
    """The place of a definition in the page."""
    return "def-" + re.sub(r"[^a-zA-Z0-9]+", "-", key)


def all_definitions(variants: Sequence[VariantData]) -> list[tuple[str, str, str]]:
    """Figure, anchor and definition of everything the page shows."""
    known = {**DEFINITIONS, **MORE_DEFINITIONS}
    return [
        (key, anchor(key), text)
        for key, text in known.items()
        if not key.startswith(OPTIONAL_PATHS)
        or any(key.split(".")[0] in one.entry for one in variants)
    ]


def fragmentation_tables(variants: Sequence[VariantData]) -> list[Chunk]:
    """Memory terms (% of capacity), batch, what fragmentation did, and other ways to average."""
    rows = [row for row in TABLE_ROWS if row.path.startswith(_MEMORY_PATHS)]
    rows += MORE_MEMORY_ROWS
    return [_fragmentation(list(chunk), rows) for chunk in _chunks(variants)]


def _fragmentation(variants: list[VariantData], rows: Sequence[Row]) -> Chunk:
    lines = []
    for row in rows:
        lines.append(_line(row, variants))
        if row.path == "memory.capacity_slots":
            cells = [_capacity_interval(one.entry) for one in variants]
            lines.append(
                _defined("80 % interval (slots)", cells, "setup.num_blocks_80_percent", True)
            )
    groups = [("", lines)]
    for title, others in ((BY_ITERATION_TITLE, BY_ITERATION_ROWS), (PAPER_TITLE, PAPER_ROWS)):
        groups.append((title, [_line(row, variants) for row in others]))
    return Chunk([one.label for one in variants], groups)


def whole_run_tables(variants: Sequence[VariantData]) -> list[Chunk]:
    """Counts of requests, tokens and steps."""
    return [
        Chunk(
            [one.label for one in chunk],
            [
                (title, [_line(row, chunk) for row in rows])
                for title, rows in WHOLE_RUN_ROWS
                if any(figure(one.entry, row.path) is not None for one in chunk for row in rows)
            ],
        )
        for chunk in _chunks(variants)
    ]


def serving_tables(variants: Sequence[VariantData]) -> list[Chunk]:
    """The block that `vllm bench serve` prints, its figures linked to their definitions."""
    return [_serving(list(chunk)) for chunk in _chunks(variants)]


def _serving(variants: list[VariantData]) -> Chunk:
    groups: list[tuple[str, list[Line]]] = []
    for title, rows in _serving_rows(variants):
        lines = [_line(row, variants) for row in rows]
        if not groups:
            failed = [_failed(one.entry) for one in variants]
            lines.insert(1, _defined("Failed requests", failed, "requests.failed"))
            error = [_clock_error(one.entry) for one in variants]
            path = "setup.clock_relative_error"
            lines.append(_defined("Expected error of step times (%)", error, path))
        groups.append((title, lines))
    return Chunk([one.label for one in variants], groups)


def _serving_rows(variants: list[VariantData]) -> Iterator[tuple[str, list[Row]]]:
    rates = [Row("Request throughput (req/s)", "throughput.requests_per_s", 1, 2)]
    goodput = "throughput.goodput_rps"
    if any(figure(one.entry, goodput) is not None for one in variants):
        rates.append(Row("Request goodput (req/s)", goodput, 1, 2))
    yield (
        "",
        [
            Row("Successful requests", "measured.finished"),
            Row("Benchmark duration (s)", "measured.duration_s", 1, 2),
            Row("Total input tokens", "measured.prompt_tokens"),
            Row("Total generated tokens", "measured.output_tokens"),
            *rates,
            Row("Output token throughput (tok/s)", "throughput.output_tokens_per_s", 1, 2),
            Row("Total token throughput (tok/s)", "throughput.total_tokens_per_s", 1, 2),
        ],
    )
    for title, label, name in (
        ("Time to First Token", "TTFT", "ttft_s"),
        ("Time per Output Token (excl. 1st token)", "TPOT", "tpot_s"),
        ("Inter-token Latency", "ITL", "itl_s"),
        ("End-to-end Latency", "E2EL", "e2e_s"),
        ("Queueing (part of TTFT)", "queueing", "queue_s"),
    ):
        words = (("Mean", "mean"), ("Median", "p50"), ("P90", "p90"), ("P99", "p99"))
        yield title, [Row(f"{word} {label} (ms)", f"{name}.{key}", 1000, 2) for word, key in words]
    name = "normalized_latency_s_per_token"
    yield (
        "Normalized Latency",
        [Row(f"{word} normalized (ms/token)", f"{name}.{key}", 1000, 2) for word, key in words],
    )


def bound_tables(variants: Sequence[VariantData]) -> list[Chunk]:
    """What binds each variant."""
    return [_bounds(list(chunk)) for chunk in _chunks(variants)]


def _bounds(variants: list[VariantData]) -> Chunk:
    def share(label: str, name: str, key: str) -> Line:
        cells = [_percent(one.bound.shares.get(name)) for one in variants]
        return _defined(label, cells, key, True)

    lines = [
        _line(Row("batch, mean (requests)", "batch.mean", 1, 2), variants),
        _defined(
            "steps with a queue (%)",
            [_percent(one.bound.queue_share) for one in variants],
            "bound.queue_share",
        ),
        share("head of the queue lacks memory (%)", MEMORY, "bound.memory"),
        share("max_num_seqs reached (%)", SEQUENCES, "bound.max_num_seqs"),
        share("token budget used up (%)", BUDGET, "bound.budget"),
        _defined(
            "memory allows (requests)",
            [_whole(one.bound.memory_allows) for one in variants],
            "bound.memory_allows",
        ),
        _defined(
            "compute would allow (decodes)",
            [one.limit_text for one in variants],
            "bound.compute_allows",
        ),
        _defined(
            "with the prefills of this traffic",
            [_count(one.limit.with_prefills) for one in variants],
            "bound.with_prefills",
            True,
        ),
        _defined("binds", [one.bound.binds for one in variants], "bound.binds"),
    ]
    return Chunk([one.label for one in variants], [("", lines)])


def _chunks(variants: Sequence[VariantData]) -> Iterator[Sequence[VariantData]]:
    """As few tables as the width allows, of about equal width."""
    kept = variants[:MAX_VARIANTS]
    width = -(-len(kept) // -(-len(kept) // COLUMNS)) if kept else 1
    return (kept[start : start + width] for start in range(0, len(kept), width))


def _line(row: Row, variants: Sequence[VariantData]) -> Line:
    key = row.path if row.path in DEFINITIONS else row.path.rpartition(".")[0]
    return Line(
        row.label.strip(),
        [_cell(one.entry, row) for one in variants],
        anchor(key),
        DEFINITIONS.get(key, ""),
        row.label.startswith(" "),
    )


def _cell(entry: Mapping[str, Any], row: Row) -> str:
    """A reason that no request met is not in the summary: its count is 0."""
    parent, _, _ = row.path.rpartition(".")
    if parent == "requests.rejected_by_reason" and figure(entry, "requests.rejected") is not None:
        return shown(entry, row.path) if figure(entry, row.path) is not None else "0"
    return shown(entry, row.path, row.scale, row.digits)


def _defined(label: str, cells: list[str], key: str, part: bool = False) -> Line:
    return Line(label, cells, anchor(key), MORE_DEFINITIONS[key], part)


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.1f}"


def _count(value: int | None) -> str:
    return _NONE if value is None else f"{value:,}"


def _whole(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.1f}"


def _failed(entry: Mapping[str, Any]) -> str:
    names = ("rejected", "aborted", "unfinished")
    total = sum(figure(entry, f"requests.{name}") or 0 for name in names)
    return f"{total:,.0f}"


def _clock_error(entry: Mapping[str, Any]) -> str:
    error = figure(entry, "setup.clock_relative_error")
    return "given" if error is None else f"± {100 * error:.0f}"


def _capacity_interval(entry: Mapping[str, Any]) -> str:
    setup = entry.get("setup")
    ends = setup.get("num_blocks_80_percent") if isinstance(setup, Mapping) else None
    blocks, capacity = figure(entry, "setup.num_blocks"), figure(entry, "memory.capacity_slots")
    if not (isinstance(ends, list) and len(ends) == 2 and blocks and capacity):
        return _NONE
    if not all(type(end) in (int, float) for end in ends):
        return _NONE
    low, high = (capacity * end / blocks for end in ends)
    return f"{low:,.0f} to {high:,.0f}"
