"""Rows of a run read back from Parquet. The file is untrusted: caps first, then every column."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from kvsim.errors import InputError

MAX_ROWS = 10_000_000
"""Most rows of one file; a step's row takes 176 bytes of memory."""
_MAX_BYTES = 2 * 1024**3
_MAX_TEXT_BYTES = 100_000
_MAX_ALL_TEXT_BYTES = 1024**3
_MAX_NUMBER = 1e15
_MAX_SECONDS = 9e9
"""Nanoseconds of a time fit 64 bits."""
_OUTCOMES = ("finished", "rejected", "aborted", "unfinished")
_TEXTS = ("request_id", "outcome", "reason")
_OPTIONAL = ("reason", "queue_s", "first_token_s", "finish_s")
"""Columns that may hold no value."""
_FIX = "Give a run folder written by `kvsim run --out`, unchanged."


def read_rows(path: Path, columns: tuple[str, ...]) -> Any:
    """The `pyarrow.Table` of `columns`, in that order; None when there is no such file.

    Other columns are left out. Raises `InputError` for a link, for more than `MAX_ROWS` rows or
    2 GiB, for a missing column, a wrong type, no value where one must be, a negative or unbounded
    number (averages of a time series may be NaN), and for times out of order.
    """
    import pyarrow as pa  # slow to import: only readers of rows need it

    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise _bad(path, "it must be a regular file")
        if status.st_size > _MAX_BYTES:
            raise _bad(path, f"it may have at most {_MAX_BYTES} bytes, got {status.st_size}")
        table = _read(path, columns)
    except FileNotFoundError:
        return None
    except pa.ArrowException as error:
        raise _bad(path, f"not a readable Parquet file: {str(error)[:200]}") from error
    except OSError as error:
        text = error.strerror or str(error)[:200] or type(error).__name__
        raise _bad(path, f"cannot read the rows: {text}") from error
    for name in columns:
        problem = _problem(name, table.column(name))
        if problem:
            raise _bad(path, f"column {name} {problem}")
    problem = _order_problem(table)
    if problem:
        raise _bad(path, problem)
    return table


def _read(path: Path, columns: tuple[str, ...]) -> Any:
    import pyarrow.parquet as pq

    # Texts stay dictionaries until their lengths are checked: a few bytes can stand for many.
    texts = [name for name in columns if name in _TEXTS]
    with pq.ParquetFile(path, read_dictionary=texts, memory_map=False) as file:
        rows = file.metadata.num_rows
        if rows > MAX_ROWS:
            raise _bad(path, f"it may have at most {MAX_ROWS} rows, got {rows}")
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise _bad(path, f"the columns {', '.join(missing)} are missing")
        table = file.read(columns=list(columns), use_threads=False).select(list(columns))
    for name in texts:
        table = table.set_column(
            table.column_names.index(name), name, _plain_text(path, name, table.column(name))
        )
    return table


def _plain_text(path: Path, name: str, column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if not pa.types.is_dictionary(kind) or not pa.types.is_string(kind.value_type):
        raise _bad(path, f"column {name} must hold text, got {kind}")
    total = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary)
        longest = pc.max(lengths).as_py() or 0
        if longest > _MAX_TEXT_BYTES:
            raise _bad(
                path, f"a text in column {name} may have {_MAX_TEXT_BYTES} bytes, got {longest}"
            )
        total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
        if total > _MAX_ALL_TEXT_BYTES:
            raise _bad(path, f"column {name} may have {_MAX_ALL_TEXT_BYTES} bytes of text")
    return column.cast(pa.string())


def _problem(name: str, column: Any) -> str | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count and name not in _OPTIONAL:
        return f"must have a value in every row, {column.null_count} have none"
    kind = column.type
    if name == "outcome":
        odd = pc.invert(pc.is_in(column, value_set=pa.array(_OUTCOMES)))
        found = column.filter(odd)
        return f"must be one of {', '.join(_OUTCOMES)}" if len(found) else None
    if name in _TEXTS:
        return None
    if name == "held_up_by_fragmentation":
        return None if pa.types.is_boolean(kind) else f"must hold true or false, got {kind}"
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return f"must hold numbers, got {kind}"
    bounds = pc.min_max(column.filter(pc.is_finite(column)))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if pa.types.is_floating(kind) and pc.any(pc.is_inf(column)).as_py():
        return "must hold finite numbers, got infinity"
    limit = _MAX_SECONDS if name.endswith("_s") else _MAX_NUMBER
    if low is not None and (low < 0 or high > limit):
        return f"must hold numbers from 0 to {limit:g}, got {low:g} to {high:g}"
    return None


def _order_problem(table: Any) -> str | None:
    """What contradicts the order of things; times are equal within a microsecond."""
    import pyarrow.compute as pc

    if "time_s" in table.column_names:
        times = table.column("time_s")
        backwards = pc.less(times.slice(1), times.slice(0, max(0, len(times) - 1)))
        return "rows must be in the order of time_s" if pc.any(backwards).as_py() else None
    arrival, first, finish = (
        table.column(name) for name in ("arrival_s", "first_token_s", "finish_s")
    )
    scheduled = pc.add(arrival, table.column("queue_s"))
    finished = table.filter(pc.equal(table.column("outcome"), "finished"))
    if any(finished.column(name).null_count for name in ("queue_s", "first_token_s", "finish_s")):
        return "a finished request must have all its times"
    for earlier, later in ((scheduled, first), (first, finish), (arrival, finish)):
        if pc.any(pc.greater(earlier, pc.add(later, 1e-6))).as_py():
            return "a request must be scheduled, get its first token and finish in this order"
    return None


def _bad(path: Path, problem: str) -> InputError:
    return InputError(problem, where=str(path), fix=_FIX)
