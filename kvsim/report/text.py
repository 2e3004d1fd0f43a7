"""The report on a terminal: the result block, the fragmentation table, a sentence each."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvsim.report.definitions import DEFINITIONS
from kvsim.report.remarks import remarks
from kvsim.report.tier_figures import TIER_FIGURES

Variants = Mapping[str, Mapping[str, Any]]
"""The `variants` of a summary, by name; figures may be None or missing."""

_LABEL_WIDTH = 40
_NONE = "-"


class Row(NamedTuple):
    """A line of a table: the figure at `path`, times `scale`, with so many decimal places."""

    label: str
    path: str
    scale: float = 1
    digits: int = 0


def _share(label: str, path: str) -> Row:
    return Row(f"{label} (%)", f"memory.by_time.{path}", 100, 2)


def tier_rows(tier: str) -> tuple[Row, ...]:
    """The figures of one tier of `memory.offload`."""
    return tuple(
        Row(f"{tier}, {one.label} ({one.unit})", f"offload.{tier}.{one.name}", 1, one.digits)
        for one in TIER_FIGURES
    )


def _latency_rows(name: str, label: str) -> tuple[Row, ...]:
    return (
        Row(f"{label} p50 (ms)", f"{name}.p50", 1000, 1),
        Row(f"{label} p99 (ms)", f"{name}.p99", 1000, 1),
    )


TABLE_ROWS: tuple[Row, ...] = (
    Row("capacity (slots)", "memory.capacity_slots"),
    _share("live", "live"),
    _share("reservation", "reservation"),
    _share("  tail", "detail.reservation.tail"),
    _share("  ahead", "detail.reservation.ahead"),
    _share("internal", "internal"),
    _share("  tail", "detail.internal.tail"),
    _share("  over_reservation", "detail.internal.over_reservation"),
    _share("  roundup", "detail.internal.roundup"),
    _share("external", "external"),
    Row("free fragmentation (% of free)", "memory.free_fragmentation", 100, 2),
    _share("usable free", "usable_free"),
    _share("  cached", "detail.usable_free.cached"),
    Row("empty tail (slots/request)", "memory.empty_tail_slots_per_sequence", 1, 2),
    Row("largest free extent (tokens)", "memory.largest_free_extent_tokens.mean"),
    Row("batch, mean (requests)", "batch.mean", 1, 2),
    Row("batch, max (requests)", "batch.max"),
    Row("prefix cache hit rate (%)", "prefix_cache.hit_rate", 100, 2),
    Row("  never seen (tokens)", "prefix_cache.never_seen_tokens"),
    Row("  evicted (tokens)", "prefix_cache.evicted_tokens"),
    Row("  block rounding (tokens)", "prefix_cache.block_rounding_tokens"),
    Row("  last-token rule (tokens)", "prefix_cache.last_token_tokens"),
    Row("accepted drafts (%)", "speculation.acceptance_rate", 100, 2),
    Row("tokens per decode", "speculation.tokens_per_decode", 1, 3),
    Row("mapped (page sets)", "mapping.mapped_page_sets"),
    Row("  found mapped (page sets)", "mapping.reused_page_sets"),
    Row("padding layers (%)", "layer_groups.padding", 100, 2),
    Row("out of the window (%)", "layer_groups.out_of_window", 100, 2),
    *tier_rows("host"),
    *tier_rows("disk"),
    Row("page sets", "pages.page_sets"),
    Row("  each (MiB)", "pages.page_set_bytes", 2**-20, 1),
    Row("  pinned by held blocks", "pages.held_page_sets", 1, 1),
    Row("  pinned by cached blocks only", "pages.cached_page_sets", 1, 1),
    Row("  pinned and not filled (%)", "pages.unfilled", 100, 2),
    Row("  freed by half of the cache", "pages.freed_by_half_page_sets"),
    Row("logical blocks", "sharing.logical_blocks", 1, 1),
    Row("  physical blocks", "sharing.physical_blocks", 1, 1),
    Row("  saved by sharing (%)", "sharing.saving", 100, 2),
    Row("  copies", "sharing.copies"),
    Row("  copied (MB)", "sharing.copied_bytes", 1e-6, 1),
    Row("preemptions", "preemptions"),
    Row("  swapped out", "swap.swapped_out_groups"),
    Row("  swapped both ways (MB)", "swap.swapped_bytes", 1e-6, 1),
    Row("  steps waited for it (s)", "swap.swap_s", 1, 3),
    Row("held up (requests)", "requests.held_up_by_fragmentation"),
    Row("held up (steps)", "held_up_steps"),
    Row("head short of memory (steps)", "short_of_memory_steps"),
    Row("all steps", "steps"),
    Row("rejected (requests)", "requests.rejected"),
    Row("unfinished (requests)", "requests.unfinished"),
    Row("cut at max_model_len (requests)", "requests.truncated"),
    Row("throughput (requests/s)", "throughput.requests_per_s", 1, 3),
    Row("output throughput (tokens/s)", "throughput.output_tokens_per_s", 1, 1),
    *_latency_rows("queue_s", "queue"),
    *_latency_rows("ttft_s", "TTFT"),
    *_latency_rows("tpot_s", "TPOT"),
)

OPTIONAL_PATHS = (
    "prefix_cache.",
    "speculation.",
    "mapping.",
    "layer_groups.",
    "offload.",
    "pages.",
    "sharing.",
    "swap.",
)
"""Figures of mechanisms that a variant may not use at all."""

_BLOCK_LATENCIES = (
    ("Time to First Token", "TTFT", "ttft_s"),
    ("Time per Output Token (excl. 1st token)", "TPOT", "tpot_s"),
    ("Inter-token Latency", "ITL", "itl_s"),
    ("End-to-end Latency", "E2EL", "e2e_s"),
    ("Queueing (part of TTFT)", "queueing", "queue_s"),
)


def plain(text: object, limit: int = 80) -> str:
    """Untrusted text made safe for a terminal: control and format characters go, length is capped.

    Rich markup is left alone: show the result as `rich.text.Text`, which reads none.
    """
    raw = str(text)
    kept = "".join(
        char
        for char in raw[: 4 * limit]
        if unicodedata.category(char)[0] not in "CZ" or char == " "
    )
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def figure(entry: Mapping[str, Any], path: str) -> float | int | None:
    """The number at a dotted path of a variant's entry; None where there is none."""
    value: object = entry
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def half_width(entry: Mapping[str, Any], path: str) -> float | None:
    """Half the width of the 95 % interval around the figure at a path; None where there is none.

    Only runs with several seeds have intervals.
    """
    intervals = entry.get("intervals")
    ends = intervals.get(path) if isinstance(intervals, Mapping) else None
    if not isinstance(ends, Sequence) or len(ends) != 2:
        return None
    return float(ends[1] - ends[0]) / 2


def shown(entry: Mapping[str, Any], path: str, scale: float = 1, digits: int = 0) -> str:
    """The figure at a path as text, with `± half-width` where it has an interval.

    Then it is a mean over seeds and gets a decimal place even if each seed's is a whole number.
    """
    value, half = figure(entry, path), half_width(entry, path)
    if half is None:
        return _format(value, scale, digits)
    digits = max(digits, 1)
    return f"{_format(value, scale, digits)} ± {_format(half, scale, digits)}"


def _format(value: float | None, scale: float = 1, digits: int = 0) -> str:
    return _NONE if value is None else f"{value * scale:,.{digits}f}"


def result_block(variants: Variants) -> str:
    """The result in the layout of `vllm bench serve`, with one column per variant.

    A single variant is printed exactly as that tool does, 50 columns wide. Counts and rates are
    those of the measured time; failed requests are the rejected, aborted and unfinished ones of
    the whole run. Percentiles are nearest-rank. An undefined figure is a dash.
    """
    entries = list(variants.values())
    names = [plain(name, 40) for name in variants]
    rows = list(_block_rows(entries))
    columns = zip(names, *(cells for _, cells in rows if cells), strict=True)
    widths = [max(10, *map(len, column)) + 2 for column in columns]
    if len(names) == 1:
        widths = [10]
    width = _LABEL_WIDTH + sum(widths)
    lines = [f"{' Serving Benchmark Result ':=^{width}}"]
    if len(names) > 1:
        lines.append(f"{'':<40} {_columns(names, widths)}")
    for label, cells in rows:
        if cells:
            lines.append(f"{label:<40} {_columns(cells, widths)}")
        else:
            lines.append(f"{label:-^{width}}")
    lines.append("=" * width)
    return "\n".join(lines)


def _block_rows(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Label and cells of each line; a title has no cells."""

    def row(label: str, path: str, scale: float = 1, digits: int = 2) -> tuple[str, list[str]]:
        return label, [shown(entry, path, scale, digits).replace(",", "") for entry in entries]

    yield row("Successful requests:", "measured.finished", digits=0)
    yield "Failed requests:", [f"{_failed(entry):.0f}" for entry in entries]
    yield row("Benchmark duration (s):", "measured.duration_s")
    yield row("Total input tokens:", "measured.prompt_tokens", digits=0)
    yield row("Total generated tokens:", "measured.output_tokens", digits=0)
    yield row("Request throughput (req/s):", "throughput.requests_per_s")
    if any(figure(entry, "throughput.goodput_rps") is not None for entry in entries):
        yield row("Request goodput (req/s):", "throughput.goodput_rps")
    yield row("Output token throughput (tok/s):", "throughput.output_tokens_per_s")
    yield row("Total token throughput (tok/s):", "throughput.total_tokens_per_s")
    for title, label, name in _BLOCK_LATENCIES:
        yield title, []
        for word, key in (("Mean", "mean"), ("Median", "p50"), ("P99", "p99")):
            yield row(f"{word} {label} (ms):", f"{name}.{key}", scale=1000)


def _columns(cells: Iterable[str], widths: list[int]) -> str:
    padded = zip(cells, widths, strict=True)
    if len(widths) == 1:
        return "".join(f"{cell:<{width}}" for cell, width in padded)
    return "".join(f"{cell:>{width}}" for cell, width in padded)


def _failed(entry: Mapping[str, Any]) -> float:
    return sum(
        figure(entry, f"requests.{name}") or 0 for name in ("rejected", "aborted", "unfinished")
    )


def fragmentation_table(variants: Variants) -> Table:
    """One column per variant; memory terms are averages over time."""
    table = Table(
        title="KV memory (% of its capacity, averaged over time) and what it costs",
        title_justify="left",
    )
    table.add_column("")
    for name in variants:
        table.add_column(Text(plain(name)), justify="right", overflow="fold")
    for row in TABLE_ROWS:
        optional = row.path.startswith(OPTIONAL_PATHS)
        if optional and all(figure(entry, row.path) is None for entry in variants.values()):
            continue
        cells = (Text(shown(entry, row.path, row.scale, row.digits)) for entry in variants.values())
        table.add_row(Text(row.label), *cells)
    return table


def definitions_table() -> Table:
    """What every figure of a summary means, with its unit."""
    table = Table(title="What the figures mean", title_justify="left")
    table.add_column("figure", overflow="fold")
    table.add_column("definition")
    for path, definition in DEFINITIONS.items():
        table.add_row(Text(path), Text(definition))
    return table


def summary_sentences(variants: Variants) -> list[str]:
    """One sentence per variant; from the second on, compared with the first."""
    sentences = []
    base: Mapping[str, Any] | None = None
    base_name = ""
    for name, entry in variants.items():
        sentence = f"{plain(name)}: {_memory_clause(entry)}; {_service_clause(entry)}"
        if base is None:
            base, base_name = entry, plain(name)
        else:
            sentence += _comparison(entry, base, base_name)
        sentences.append(sentence + ".")
    return sentences


def _memory_clause(entry: Mapping[str, Any]) -> str:
    terms = {
        name: figure(entry, f"memory.by_time.{name}")
        for name in ("live", "reservation", "internal", "external")
    }
    values = [value for value in terms.values() if value is not None]
    if len(values) < len(terms):
        return "no time was measured"
    live = values[0]
    empty = sum(values[1:])
    parts = ", ".join(
        f"{name} {100 * value:.1f}%"
        for name, value in zip(list(terms)[1:], values[1:], strict=True)
    )
    share = f"{100 * live / (live + empty):.1f}%" if live + empty else "nothing"
    return (
        f"live KV fills {100 * live:.1f}% of the memory and {share} of what is taken up "
        f"({parts} of the memory stay empty)"
    )


def _service_clause(entry: Mapping[str, Any]) -> str:
    return (
        f"mean batch {shown(entry, 'batch.mean', 1, 1)}, "
        f"{shown(entry, 'throughput.requests_per_s', 1, 2)} requests/s, "
        f"median queueing {shown(entry, 'queue_s.p50', 1, 3)} s, "
        f"p99 TTFT {shown(entry, 'ttft_s.p99', 1, 3)} s"
    )


def _comparison(entry: Mapping[str, Any], base: Mapping[str, Any], base_name: str) -> str:
    parts = []
    for label, path in (("batch", "batch.mean"), ("throughput", "throughput.requests_per_s")):
        ours, theirs = figure(entry, path), figure(base, path)
        if ours is not None and theirs:
            parts.append(f"{label} {ours / theirs:.2f} x")
    return f" ({' and '.join(parts)} that of {base_name})" if parts else ""


def print_report(variants: Variants, console: Console) -> None:
    """Print the result block, the fragmentation table and a sentence per variant."""
    console.print(Text(result_block(variants)), soft_wrap=True)
    console.print(fragmentation_table(variants))
    for sentence in [*summary_sentences(variants), *remarks(variants.values())]:
        console.print(Text(sentence))
