"""The summary as one long Parquet table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvsim.report.export_source import Export
from kvsim.report.export_summary import summary_rows
from kvsim.results.read_run import Run

COLUMNS = {
    "variant": "string",
    "metric": "string",
    "value": "float64",
    "unit": "string",
    "low": "float64",
    "high": "float64",
}


def parquet_export(run: Run, variants: Sequence[str]) -> Export:
    """A row per variant and metric; `low` and `high` are 95 % intervals over seeds, or null."""
    import pyarrow as pa

    rows = list(summary_rows(run.summary, variants))
    table = pa.table(
        {
            name: pa.array(
                [_number(value) for value in (getattr(row, name) for row in rows)],
                type=pa.type_for_alias(kind),
            )
            for name, kind in COLUMNS.items()
        }
    )
    return Export([("", [table_parquet(table)])])


def rows_parquet(columns: Mapping[str, str], rows: Iterable[Sequence[object]]) -> bytes:
    """Rows as a Parquet file of columns name -> type (`string`, `float64`, `int64`, `bool`).

    None and, but for texts, the empty text are null.
    """
    import pyarrow as pa

    found = list(rows)
    table = pa.table(
        {
            name: pa.array(
                [None if row[at] == "" and kind != "string" else row[at] for row in found],
                type=pa.type_for_alias(kind),
            )
            for at, (name, kind) in enumerate(columns.items())
        }
    )
    return table_parquet(table)


def table_parquet(table: Any) -> bytes:
    """A `pyarrow.Table` as the content of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = pa.BufferOutputStream()
    pq.write_table(table, stream, compression="zstd")
    content: bytes = stream.getvalue().to_pybytes()
    return content


def _number(value: float | str | None) -> float | str | None:
    return float(value) if isinstance(value, int) else value
