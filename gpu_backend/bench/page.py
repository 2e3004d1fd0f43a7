"""`python -m gpu_backend.bench.page DIR`: a run's folder as the Markdown of docs/gpu-results.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from gpu_backend.bench.results import Row, read_rows, say

Cell = str | float | int | None


class NotAResult(Exception):  # noqa: N818 - an answer to the caller
    """The folder holds no run on a GPU; the message says what is missing."""


def page(folder: Path) -> str:
    """The page. Raises `NotAResult` for anything but a full-size run on a GPU."""
    facts, summary = _read(folder, "machine"), _read(folder, "summary")
    if facts.get("device") != "cuda" or facts.get("tiny"):
        raise NotAResult(f"{folder} is a trial run: its times mean nothing")
    versions = ", ".join(
        f"{label} {facts[key]}"
        for label, key in (
            ("driver", "driver"), ("CUDA", "cuda"), ("torch", "torch"),
            ("Triton", "triton"), ("numpy", "numpy"),
        )
    )  # fmt: skip
    parts = [
        "# GPU results",
        f"One run of `python -m gpu_backend.bench` on **{facts['name']}** "
        f"({facts['sm_count']} multiprocessors, {facts['l2_bytes'] / 2**20:.0f} MiB L2, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB) on {facts['date']}, {facts['minutes']:g} "
        f"minutes; {versions}. Times are medians of replayed CUDA graphs on cold memory.",
        _sections(summary["sections"]),
        *(write(read_rows(folder, name)) for name, write in WRITERS.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sections(sections: Row) -> str:
    rows = [
        (name, entry["status"], entry.get("rows", 0), entry.get("why", ""))
        for name, entry in sections.items()
    ]
    return _table(("section", "outcome", "rows", "why"), rows)


def _correctness(rows: list[Row]) -> str:
    wrong = [row for row in rows if not row["correct"]]
    if not rows:
        return ""
    text = f"## Correctness\n\n{len(rows) - len(wrong)} of {len(rows)} cases agree with float64."
    if not wrong:
        return text
    cells = [(row["case"], row.get("max_error"), row.get("error", "")) for row in wrong]
    return f"{text} Wrong:\n\n{_table(('case', 'largest error', 'exception'), cells)}"


def _decode(rows: list[Row]) -> str:
    points = [row for row in rows if row["kind"] == "decode" and "share" in row]
    ceilings = [row["gb_per_s"] for row in rows if row["kind"] == "ceiling"]
    if not points:
        return ""
    cells = [
        (
            row["block_size"], row["batch"], row["context"], row["us"], row["gb_per_s"],
            _percent(row["share"]), _goal(row["goal_met"]),
        )
        for row in points
    ]  # fmt: skip
    head = ("block", "batch", "context", "us", "GB/s", "of the ceiling", "goal")
    return (
        f"## Decode\n\nOne layer, 32 query heads over 8 KV heads of 128, bfloat16. Read ceiling "
        f"{min(ceilings):.0f} to {max(ceilings):.0f} GB/s, measured before each group. The goal is "
        f"85 % of it from 0.5 GB of keys and values on, at block 16.\n\n{_table(head, cells)}"
    )


def _paging(rows: list[Row]) -> str:
    cells = [
        (
            row["block_size"], row["batch"], row["context"], row["contiguous_us"],
            _percent(row["table_cost"]), _percent(row["order_cost"]), _percent(row["paging_cost"]),
        )
        for row in rows
        if "paging_cost" in row
    ]  # fmt: skip
    head = ("block", "batch", "context", "contiguous us", "table", "order", "both")
    text = (
        "## What paging costs\n\nThe same kernel without a block table, with an ordered one "
        "(`table`: against none) and with a random one (`order`: against the ordered one)."
    )
    return f"{text}\n\n{_table(head, cells)}" if cells else ""


def _prefill(rows: list[Row]) -> str:
    cells = [
        (row["chunk"], row["prior"], row["us"], row["tflop_per_s"], _percent(row["share"]))
        for row in rows
        if row["kind"] == "prefill"
    ]
    head = ("chunk", "prior tokens", "us", "TFLOP/s", "of a matrix product")
    return f"## Prefill\n\n{_table(head, cells)}" if cells else ""


def _peers(rows: list[Row]) -> str:
    cells = [
        (
            row["peer"], row["block_size"] if row["paged"] else "-", row["batch"], row["context"],
            row["status"], row.get("us"), row.get("ours_us"), row.get("factor"),
            row.get("why", ""),
        )
        for row in rows
    ]  # fmt: skip
    head = ("peer", "block", "batch", "context", "outcome", "us", "ours us", "factor", "why")
    text = "## Other kernels\n\nA factor above 1: the other one is faster than our paged decode."
    return f"{text}\n\n{_table(head, cells)}" if cells else ""


def _cache_ops(rows: list[Row]) -> str:
    cells = [
        (row["operation"], row["block_size"], row["count"], row["us"], row["gb_per_s"])
        for row in rows
        if "gb_per_s" in row
    ]
    head = ("operation", "block", "tokens or blocks", "us", "GB/s")
    return f"## Cache operations\n\n{_table(head, cells)}" if cells else ""


def _framework(rows: list[Row]) -> str:
    cells = []
    for row in rows:
        limit = "none" if row["limit_bytes"] is None else f"{row['limit_bytes'] / 2**20:.0f} MiB"
        for name in ("framework", "simulated"):
            if (found := row[name]) is not None:
                cells.append(
                    (
                        row["policy"], limit, name, found["peak_allocated_bytes"] / 2**20,
                        found["peak_reserved_bytes"] / 2**20, _percent(found["mean_idle_share"]),
                        found["retries"], found["refused"],
                    )
                )  # fmt: skip
    head = ("tensors", "limit", "memory", "peak MiB", "reserved MiB", "idle", "retries", "refused")
    text = (
        "## Framework fragmentation\n\nPer-request tensors in PyTorch's caching allocator and in "
        "a simulated arena, on the same events. `idle`: reserved and not allocated, mean."
    )
    return f"{text}\n\n{_table(head, cells)}" if cells else ""


WRITERS: dict[str, Callable[[list[Row]], str]] = {
    "correctness": _correctness,
    "decode": _decode,
    "paging": _paging,
    "prefill": _prefill,
    "peers": _peers,
    "cache_ops": _cache_ops,
    "framework": _framework,
}


def _table(head: tuple[str, ...], rows: Iterable[tuple[Cell, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        digits = 3 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
        return f"{value:.{digits}f}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _goal(met: bool | None) -> str:
    return "" if met is None else "met" if met else "missed"


def _read(folder: Path, name: str) -> Row:
    try:
        found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise NotAResult(f"{folder} is not the folder of a run: {problem}") from None
    if not isinstance(found, dict):
        raise NotAResult(f"{folder / name}.json holds no object")
    return found


def main(arguments: list[str]) -> int:
    """Prints the page; 2 with a message where the folder holds none."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m gpu_backend.bench.page DIR\n")
        return 2
    try:
        say(page(Path(arguments[0])).rstrip("\n"))
    except NotAResult as problem:
        sys.stderr.write(f"gpu_backend.bench.page: {problem}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
