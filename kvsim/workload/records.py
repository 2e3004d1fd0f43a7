"""The three kinds of file that hold rows: CSV, JSON lines, Parquet. All give rows by name."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar, Protocol

from kvsim.errors import InputError
from kvsim.workload.fields import BadRowError, Record
from kvsim.workload.source import ReadRules, Source, content_sha256, is_parquet

LISTS = frozenset({"hash_ids", "beam_parents"})
"""Columns, in lower case, that formats read lists or objects from; all others hold one value."""
_VALUE_BYTES = 8
_PART_BYTES = 4 * 2**20
Entry = Record | BadRowError | None
"""A row, a row that could not be split into columns, or a blank line."""


class Records(Protocol):
    """One pass over a file's rows."""

    columns: tuple[str, ...]
    """As in the header, the first JSON object, the Parquet schema."""
    objects: frozenset[str]
    """Columns that hold an object in the first row."""
    ragged: ClassVar[bool]
    """Whether a row may have columns that `columns` does not name."""

    def close(self) -> None:
        """Close the file."""

    def rows(self, wanted: Sequence[str]) -> Iterator[Entry]:
        """Every row; columns that are not wanted may be left out."""

    def where(self) -> str:
        """The place of the row given last."""

    def sha256(self) -> str:
        """Digest of the uncompressed content; reads what is left of it."""


def open_records(path: Path, rules: ReadRules) -> Records:
    """Open a file by what it holds, never by its name."""
    if is_parquet(path):
        return ParquetRecords(path, rules)
    source = Source(path, rules)
    try:
        lines = source.lines()
        blank = 0
        for line in lines:
            if line.strip():
                break
            blank += 1
            if blank > rules.max_rows:
                raise rules.too_many_rows(source.where)
        else:
            raise InputError("only blank lines", where=str(path), fix="Give a trace with rows")
        if line.lstrip()[0] == "{":
            return JsonRecords(source, blank, line, lines)
        if line.lstrip()[0] == "[":
            raise InputError(
                "a JSON array, not JSON lines",
                where=source.where,
                fix="Write one object per line, for example with `jq -c '.[]'`",
            )
        return CsvRecords(source, blank, line, lines)
    except BaseException:
        source.close()
        raise


class CsvRecords:
    """Comma-separated values with a header line; `blank` lines came before it."""

    ragged: ClassVar[bool] = False
    objects: frozenset[str] = frozenset()

    def __init__(self, source: Source, blank: int, header: str, lines: Iterator[str]) -> None:
        self._source = source
        self._blank = blank
        self._reader = csv.reader(chain([header], lines), strict=True)
        try:
            names = [name.strip() for name in next(self._reader)]
        except csv.Error as error:
            raise _bad_csv(source, error) from None
        while names and not names[-1]:
            names.pop()
        if len(names) < 2 or "" in names or not _all_distinct(names):
            raise InputError(
                f"the header {header.strip()[:80]!r} does not name distinct columns, by commas",
                where=source.where,
                fix="Start the file with a line like arrival_s,prompt_tokens,output_tokens",
            )
        self.columns = tuple(names)

    def close(self) -> None:
        """See `Records`."""
        self._source.close()

    def rows(self, wanted: Sequence[str]) -> Iterator[Entry]:
        """See `Records`."""
        yield from repeat(None, self._blank)
        columns = self.columns
        width = len(columns)
        try:
            for values in self._reader:
                if len(values) != width:
                    while len(values) > width and not values[-1].strip():
                        values.pop()
                    if not any(map(str.strip, values)):
                        yield None
                        continue
                    if len(values) != width:
                        yield BadRowError(
                            "wrong_columns", f"{len(values)} values, the header names {width}"
                        )
                        continue
                yield dict(zip(columns, values, strict=True))
        except csv.Error as error:
            raise _bad_csv(self._source, error) from None

    def where(self) -> str:
        """See `Records`."""
        return self._source.where

    def sha256(self) -> str:
        """See `Records`."""
        return self._source.sha256()


class JsonRecords:
    """One JSON object per line; numbers with a fraction become `Decimal`, exactly.

    Keys are compared, and given, in lower case: a row may spell them as it likes.
    """

    ragged: ClassVar[bool] = True

    def __init__(self, source: Source, blank: int, first: str, lines: Iterator[str]) -> None:
        self._source = source
        self._blank = blank
        self._lines = chain([first], lines)
        self._decoder = json.JSONDecoder(
            object_pairs_hook=_distinct, parse_float=_number, parse_constant=_no_constant
        )
        try:
            row = self._object(first)
        except BadRowError as bad:
            raise InputError(
                bad.problem, where=source.where, fix="Write one JSON object per line"
            ) from None
        self.columns = tuple(row)
        self.objects = frozenset(name for name, value in row.items() if isinstance(value, dict))

    def close(self) -> None:
        """See `Records`."""
        self._source.close()

    def rows(self, wanted: Sequence[str]) -> Iterator[Entry]:
        """See `Records`."""
        yield from repeat(None, self._blank)
        for line in self._lines:
            text = line.strip()
            if not text:
                yield None
                continue
            try:
                yield self._object(text)
            except BadRowError as bad:
                yield bad

    def where(self) -> str:
        """See `Records`."""
        return self._source.where

    def sha256(self) -> str:
        """See `Records`."""
        return self._source.sha256()

    def _object(self, text: str) -> dict[str, Any]:
        try:
            value = self._decoder.decode(text.strip())
        except RecursionError:
            raise BadRowError("bad_json", "the JSON value is nested too deeply") from None
        except ValueError as error:
            raise BadRowError("bad_json", f"not valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise BadRowError("bad_json", f"a JSON {type(value).__name__}, not an object")
        return value


class ParquetRecords:
    """Columns of numbers, text and lists of them. Places are rows, from 1. Needs pyarrow."""

    ragged: ClassVar[bool] = False
    objects: frozenset[str] = frozenset()

    def __init__(self, path: Path, rules: ReadRules) -> None:
        try:
            from pyarrow import parquet
        except ImportError:
            raise InputError(
                "reading Parquet needs pyarrow", where=str(path), fix="pip install pyarrow"
            ) from None
        self._path = path
        self._rules = rules
        self._row = 0
        try:
            self._file = parquet.ParquetFile(path)
            groups = self._file.metadata
            size = sum(groups.row_group(i).total_byte_size for i in range(groups.num_row_groups))
        except (OSError, ValueError) as error:
            raise self._damaged(error) from None
        self.columns = tuple(self._file.schema_arrow.names)
        if not _all_distinct(self.columns):
            raise InputError(
                "two columns have the same name", where=str(path), fix="Rename one of them"
            )
        if size > rules.max_bytes:
            raise InputError(
                f"holds {size:,} bytes, more than {rules.max_bytes:,}",
                where=str(path),
                fix="Cut the trace into smaller files",
            )

    def close(self) -> None:
        """See `Records`."""
        self._file.close()

    def rows(self, wanted: Sequence[str]) -> Iterator[Entry]:
        """See `Records`."""
        self._refuse_nested(wanted)
        self._refuse_many(wanted)
        try:
            batches = self._file.iter_batches(8_192, columns=list(wanted))
            for part in chain.from_iterable(map(self._parts, batches)):
                for record in part.to_pylist():
                    self._row += 1
                    yield {
                        name: Decimal(repr(value)) if isinstance(value, float) else value
                        for name, value in record.items()
                    }
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise self._damaged(error) from None

    def _refuse_nested(self, wanted: Sequence[str]) -> None:
        from pyarrow import types

        for name in wanted:
            kind = self._file.schema_arrow.field(name).type
            if types.is_nested(kind) and name.lower() not in LISTS:
                raise InputError(
                    f"column {name} holds lists or structures, not one value a row",
                    where=str(self._path),
                    fix="Write numbers into it",
                )

    def _refuse_many(self, wanted: Sequence[str]) -> None:
        """By values: repeated ones take next to no bytes in the file, but do in memory."""
        groups = self._file.metadata
        chunks = (
            groups.row_group(group).column(place)
            for group in range(groups.num_row_groups)
            for place in range(groups.num_columns)
        )
        asked = set(wanted)
        values = sum(
            one.num_values
            for one in chunks
            if one.path_in_schema in asked or one.path_in_schema.split(".")[0] in asked
        )
        if values * _VALUE_BYTES > self._rules.max_bytes:
            raise InputError(
                f"holds {values:,} values, more than {self._rules.max_bytes // _VALUE_BYTES:,}",
                where=str(self._path),
                fix="Cut the trace into smaller files",
            )

    def _parts(self, batch: Any) -> Iterator[Any]:
        """A batch in pieces of few bytes, since Python's own values take many more."""
        rows, size = batch.num_rows, batch.nbytes
        if size <= _PART_BYTES:
            yield batch
        elif rows > 1:
            half = rows // 2
            yield from self._parts(batch.slice(0, half))
            yield from self._parts(batch.slice(half))
        elif size > self._rules.max_line_bytes + self._rules.max_chunks * _VALUE_BYTES:
            raise InputError(
                f"a row holds {size:,} bytes",
                where=f"{self._path}: row {self._row + 1}",
                fix="Check that each row is one request",
            )
        else:
            yield batch

    def where(self) -> str:
        """See `Records`."""
        return f"{self._path}: row {self._row}"

    def sha256(self) -> str:
        """See `Records`."""
        return content_sha256(self._path, self._rules)

    def _damaged(self, error: Exception) -> InputError:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return InputError(
            f"is not a readable Parquet file: {text}", where=str(self._path), fix="Write it again"
        )


def _bad_csv(source: Source, error: csv.Error) -> InputError:
    return InputError(f"not valid CSV: {error}", where=source.where, fix="Check quotes and commas")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if not _all_distinct([name for name, _ in pairs]):
        raise ValueError("a key appears twice")
    return {name.lower(): value for name, value in pairs}


def _all_distinct(names: Sequence[str]) -> bool:
    """Also when upper and lower case are the same, as they are for formats."""
    return len({name.lower() for name in names}) == len(names)


def _number(text: str) -> Decimal | str:
    """Exactly; as its text, which no column of numbers takes, where `Decimal` cannot hold it."""
    try:
        return Decimal(text)
    except ArithmeticError:
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
