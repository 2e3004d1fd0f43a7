"""CSV tables that a spreadsheet may open: text that it would run as a formula is disarmed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kvsim.report.export_source import Export, Source, sources, unrecorded
from kvsim.report.export_summary import SummaryRow, summary_rows
from kvsim.results.read_run import Run

_FORMULA = frozenset("=+-@'＝＋－＠")
"""First characters of a formula, full-width ones too, and the mark that disarms one."""
_ACTIVE = frozenset("\t\r\n")
_NUMBER = re.compile(r"[-+]?\d{1,40}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,4})?", re.ASCII)
_QUOTED = re.compile(r'[,;"\t\r\n]|^\s|\s\Z')
"""Quoted where RFC 4180 demands it, and where another separator would break a line up."""
_BATCH_ROWS = 50_000


def csv_export(run: Run, variants: Sequence[str]) -> Export:
    """`summary.csv`, and `steps.csv` and `requests.csv` of each variant as in the run folder.

    UTF-8 with LF line ends and RFC 4180 quotes. Numbers are the shortest that read back equal, no
    value and NaN are empty cells.
    """

    def files() -> Iterator[tuple[str, Iterable[bytes]]]:
        yield "summary.csv", csv_lines(SummaryRow._fields, summary_rows(run.summary, variants))
        for source in sources(run, variants):
            yield from _tables(source)

    return Export(files(), unrecorded(run, variants, "steps.csv and requests.csv"))


def _tables(source: Source) -> Iterator[tuple[str, Iterable[bytes]]]:
    for name, table in (("steps", source.steps), ("requests", source.requests)):
        if table is not None:
            yield str(source.folder / f"{name}.csv"), table_csv(table)


def table_csv(table: Any) -> Iterator[bytes]:
    """A `pyarrow.Table` as CSV, header first."""
    yield _line(table.column_names)
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        columns = [_cells(column) for column in batch.columns]
        text = "".join([",".join(row) + "\n" for row in zip(*columns, strict=True)])
        yield text.encode("utf-8", "backslashreplace")


def _cells(column: Any) -> list[str]:
    import pyarrow as pa

    values = column.to_pylist()
    if pa.types.is_integer(column.type) and not column.null_count:
        return [str(value) for value in values]
    return [cell(value) for value in values]


def csv_lines(names: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """A header and rows as CSV."""
    yield _line(names)
    for row in rows:
        yield _line(row)


def _line(values: Sequence[object]) -> bytes:
    text = ",".join([cell(value) for value in values]) + "\n"
    return text.encode("utf-8", "backslashreplace")


def cell(value: object) -> str:
    """One cell, quoted where needed. Text is disarmed, numbers never are."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = disarmed(str(value))
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def disarmed(text: str) -> str:
    """Text with an apostrophe before it if a spreadsheet could take it for a formula.

    That is a text whose first visible character begins a formula, or that begins with a tab or a
    line end; a plain number is left alone. A leading apostrophe gets another, so dropping the first
    apostrophe of a cell that has one gives the text back.
    """
    if _NUMBER.fullmatch(text):
        return text
    visible = (char for char in text if not _is_blank(char))
    if text[:1] in _ACTIVE or next(visible, "") in _FORMULA:
        return "'" + text
    return text


def _is_blank(char: str) -> bool:
    return char.isspace() or unicodedata.category(char)[0] in "CZ"
