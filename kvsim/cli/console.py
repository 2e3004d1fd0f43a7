"""Where output goes: results to stdout, everything said about them to stderr."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

from kvsim.errors import InputError

PIPE_WIDTH = 160
"""Columns of tables when stdout is not a terminal, where nothing says how wide it is."""


class LostOutputError(Exception):
    """Standard output takes no more. No `OSError`: libraries answer a broken pipe on their own."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.reader_left = error.errno == errno.EPIPE


class _Output:
    """Standard output whose errors are `LostOutputError`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._errors():
            return int(self._stream.write(text))

    def writelines(self, lines: Any) -> None:
        with self._errors():
            self._stream.writelines(lines)

    def flush(self) -> None:
        with self._errors():
            self._stream.flush()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LostOutputError(error) from None


@contextmanager
def command_streams() -> Iterator[None]:
    """Around a command: stdout is flushed before it ends, and SIGTERM unwinds with status 143.

    Raises `LostOutputError` where stdout cannot take everything, `InputError` where it is closed.
    """
    stream = sys.stdout
    if sys.stderr is None:
        sys.stderr = io.StringIO()
    if stream is None:
        raise InputError("is closed", where="stdout", fix="Open it, for example > /dev/null")
    sys.stdout = _Output(stream)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except LostOutputError:
        _discard_rest(stream)
        raise
    finally:
        sys.stdout = stream
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _discard_rest(stream: Any) -> None:
    """What is still buffered would fail again when the interpreter ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def stdout_console() -> Console:
    """For tables. Text is never read as markup."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


def print_json(value: Mapping[str, Any]) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def complain(error: InputError) -> None:
    """Write an input error to stderr: what is wrong, then the way out on a line of its own."""
    place = f"{error.where}: " if error.where else ""
    say(f"kvsim: {place}{error.problem}.")
    if error.fix:
        say(f"  Fix: {error.fix}")


def say(text: str) -> None:
    """Write a line to stderr; if that takes no more, the exit status has to say it."""
    with suppress(OSError):
        sys.stderr.write(printable(text) + "\n")


def printable(text: str) -> str:
    """`text` with control characters, which may come from a file, escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
