"""Opens a file the user named: caps, gzip, byte-order mark, Git-LFS pointers, line by line."""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from kvsim.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"
_UTF8_BOM = b"\xef\xbb\xbf"
_REFUSED = {
    b"version https://git-lfs": (
        "is a Git-LFS pointer, not the data",
        "Fetch the file itself: `git lfs pull`, or download it from the repository's page",
    ),
    GZIP_MAGIC: ("is compressed twice", "Decompress it once with `gunzip`"),
    b"\x28\xb5\x2f\xfd": ("is compressed with zstd", "Decompress it with `zstd -d`"),
    b"PK\x03\x04": ("is a zip archive", "Unpack it and name the file inside"),
    b"\xff\xfe": ("is UTF-16 text", "Save it as UTF-8"),
    b"\xfe\xff": ("is UTF-16 text", "Save it as UTF-8"),
}


@dataclass(frozen=True)
class ReadRules:
    """How to treat bad rows, and how much a file may ask for.

    `on_bad_row` "error" stops at the first bad row; "drop" counts it by reason. A row without
    prompt or output tokens is no mistake of the file: it is always dropped and counted. Messages
    say `way_to_drop` where bad rows are an error, unless it is empty.
    """

    on_bad_row: Literal["error", "drop"] = "error"
    max_rows: int = 50_000_000
    max_bytes: int = 16 * 2**30
    """Most bytes of one file after decompression."""
    max_line_bytes: int = 2**20
    max_tokens: int = 100_000_000
    """Most tokens in one field."""
    max_chunks: int = 2**20
    """Most chunk ids in one row."""
    way_to_drop: str = "on_bad_row='drop'"

    def __post_init__(self) -> None:
        if self.on_bad_row not in ("error", "drop"):
            raise InputError(
                f"must be 'error' or 'drop', got {self.on_bad_row!r}",
                where="on_bad_row",
                fix="Use 'drop' to count bad rows instead of stopping",
            )

    def too_many_rows(self, where: str) -> InputError:
        """What to raise at the row after the last one allowed; blank lines are rows too."""
        return InputError(
            f"more than {self.max_rows:,} rows", where=where, fix="Set a limit, or cut the trace"
        )


MAX_BLANK_LINES = 10_000
"""In a row: more are no trace, and cost time without end in a small compressed file."""


class Source:
    """One pass over a file's uncompressed bytes, hashed on the way.

    `line` is the number of the line read last, from 1.
    """

    def __init__(self, path: Path, rules: ReadRules) -> None:
        self.path = path
        self.line = 0
        self._rules = rules
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._file = _open(path)
        self._stream: BinaryIO = self._file
        self.is_gzip = self._file.peek(2)[:2] == GZIP_MAGIC
        if self.is_gzip:
            unzipped = gzip.GzipFile(fileobj=self._file)
            self._stream = cast(BinaryIO, io.BufferedReader(unzipped, 2**17))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def where(self) -> str:
        """`file:line` of the line read last."""
        return f"{self.path}:{self.line}"

    def lines(self) -> Iterator[str]:
        """Every line with its end, decoded; the byte-order mark is stripped.

        Raises `InputError` for an empty file, a kind of file that is no text, a line that is too
        long, bytes that are not UTF-8, damaged gzip data.
        """
        limit = self._rules.max_line_bytes
        blank = 0
        while data := self._read_line(limit):
            self.line += 1
            blank = 0 if data.strip() else blank + 1
            if blank > MAX_BLANK_LINES:
                raise InputError(
                    f"more than {MAX_BLANK_LINES:,} blank lines in a row",
                    where=self.where,
                    fix="Check that the file is a trace with one request per line",
                )
            if self.line == 1:
                data = self._check_head(data)
            if len(data) > limit:
                raise InputError(
                    f"the line is longer than {limit:,} bytes",
                    where=self.where,
                    fix="Check that the file is a text file with one request per line",
                )
            try:
                yield data.decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"byte {data[error.start : error.start + 1]!r} at column {error.start + 1}"
                    " is not UTF-8",
                    where=self.where,
                    fix="Save the file as UTF-8",
                ) from None
        if not self.line:
            raise InputError(
                "the file is empty", where=str(self.path), fix="Give a trace with rows"
            )

    def sha256(self) -> str:
        """Digest of the whole uncompressed content; reads what is left of it."""
        while self._read(2**20):
            pass
        return self._hash.hexdigest()

    def _read_line(self, limit: int) -> bytes:
        try:
            return self._seen(self._stream.readline(limit + 1))
        except (OSError, EOFError, zlib.error) as error:
            raise _damaged(self.path, error) from None

    def _read(self, size: int) -> bytes:
        try:
            return self._seen(self._stream.read(size))
        except (OSError, EOFError, zlib.error) as error:
            raise _damaged(self.path, error) from None

    def _seen(self, data: bytes) -> bytes:
        self._hash.update(data)
        self._bytes += len(data)
        if self._bytes > self._rules.max_bytes:
            raise InputError(
                f"holds more than {self._rules.max_bytes:,} bytes after decompression",
                where=str(self.path),
                fix="Cut the trace into smaller files",
            )
        return data

    def _check_head(self, data: bytes) -> bytes:
        for magic, (problem, fix) in _REFUSED.items():
            if data.startswith(magic):
                raise InputError(problem, where=str(self.path), fix=fix)
        if data.startswith(PARQUET_MAGIC):
            raise InputError(
                "is Parquet inside gzip", where=str(self.path), fix="Decompress it with `gunzip`"
            )
        return data.removeprefix(_UTF8_BOM)


def is_parquet(path: Path) -> bool:
    """Whether the file starts as Parquet files do, whatever its name."""
    with _open(path) as file:
        return file.read(4) == PARQUET_MAGIC


def content_sha256(path: Path, rules: ReadRules) -> str:
    """SHA-256, in hex, of the uncompressed content."""
    with closing(Source(path, rules)) as source:
        return source.sha256()


def _open(path: Path) -> io.BufferedReader:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("is not a file", where=str(path), fix="Name the trace file itself")
        return path.open("rb")
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix="Check the path") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot be opened: {reason}", where=str(path), fix="Check path and permissions"
        ) from None


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"cannot be read to its end: {error}", where=str(path), fix="Fetch it again")
