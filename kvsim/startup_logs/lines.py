"""Any log as clean lines: in bounded pieces, without escape codes, out of JSON wrappers."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path

from kvsim.errors import InputError

MAX_BYTES = 64 * 1024**2
"""A start-up log is kilobytes; what is behind this much is traffic."""
MAX_LINE = 64 * 1024
"""Characters kept of a line: the longest real one (all arguments of a server) has about 20,000."""

MAX_TEXTS = 600_000
"""Lines, and states of progress bars, that are looked at."""

_PIECE = 1024**2
# Each class excludes what starts the next match, so both scan a line once.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]?|\x1b\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?"
)
# Control characters, and the marks that reorder or hide text in a terminal.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_MESSAGE_KEYS = ("log", "message", "msg", "MESSAGE", "textPayload", "body")
_BOMS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}

Source = str | PathLike[str] | Iterable[str | bytes]


class LogLines:
    """Iterates over (line number from 1, text); `count` and `cut` are known at the end."""

    def __init__(self, source: Source, *, max_bytes: int = MAX_BYTES) -> None:
        self.count = 0
        self.cut = False
        self._max_bytes = max_bytes
        self._source = source

    def __iter__(self) -> Iterator[tuple[int, str]]:
        self.count, self.cut = 0, False
        left = MAX_TEXTS
        for line in self._physical(self._pieces()):
            self.count += 1
            for text in _messages(line):
                # A progress bar rewrites its line; each state of it is a text of its own.
                for part in text.split("\r") if "\r" in text else (text,):
                    if not left:
                        self.cut = True
                        return
                    left -= 1
                    yield self.count, clean(part)

    def _pieces(self) -> Iterator[str]:
        if isinstance(self._source, str | PathLike):
            return self._of_file(Path(self._source))
        return self._of_items(self._source)

    def _of_file(self, path: Path) -> Iterator[str]:
        where = str(path)
        try:
            if path.exists() and not path.is_file():
                raise InputError("is not a regular file", where=where, fix="Give a saved log")
            with path.open("rb") as file:
                left = self._max_bytes
                decode = codecs.getincrementaldecoder("utf-8")("replace").decode
                while data := file.read(min(_PIECE, left)):
                    if left == self._max_bytes:
                        _refuse_compressed(data, where)
                        encoding = _BOMS.get(data[:2], "utf-8")
                        decode = codecs.getincrementaldecoder(encoding)("replace").decode
                    left -= len(data)
                    yield decode(data)
                self.cut = left <= 0 and bool(file.read(1))
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
            raise InputError(problem, where=where, fix="Give the path of a saved log") from None
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError("is no path", where=ascii(where)[:120], fix="Give a path") from None

    def _of_items(self, items: Iterable[object]) -> Iterator[str]:
        left = self._max_bytes
        for item in items:
            if not isinstance(item, str | bytes):
                problem = f"lines must be text, got {type(item).__name__}"
                raise InputError(problem, where="log", fix="Give a path or an iterable of str")
            if left <= 0:
                self.cut = True
                return
            self.cut = self.cut or left < len(item)
            for begin in range(0, min(len(item), left), _PIECE):
                part = item[begin : min(begin + _PIECE, left)]
                yield part if isinstance(part, str) else part.decode("utf-8", "replace")
            left -= len(item) + 1
            if item[-1:] not in ("\n", b"\n"):
                yield "\n"

    def _physical(self, pieces: Iterator[str]) -> Iterator[str]:
        """Lines of at most `MAX_LINE` characters; what a longer one has behind is dropped."""
        begun = ""
        for piece in pieces:
            parts = piece.split("\n")
            for part in parts[:-1]:
                yield (begun + part[: MAX_LINE - len(begun)]).rstrip("\r")
                begun = ""
            begun += parts[-1][: MAX_LINE - len(begun)]
        if begun:
            yield begun.rstrip("\r")


def clean(text: str) -> str:
    """`text` without escape codes and characters that a terminal would obey."""
    if text.isprintable():
        return text
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPES.sub("", text)
    return _HIDDEN.sub("", text.replace("\t", " "))


def _messages(line: str) -> Iterator[str]:
    """The lines inside a JSON line of a container's log; any other line as it is."""
    if not line.lstrip(" \ufeff").startswith("{") or '"' not in line:
        yield line
        return
    try:
        row = json.loads(line.strip(" \ufeff"))
    except (ValueError, RecursionError):
        row = None
    text = (
        next((row[key] for key in _MESSAGE_KEYS if isinstance(row.get(key), str)), None)
        if isinstance(row, dict)
        else None
    )
    yield from (line,) if text is None else text.split("\n")


def _refuse_compressed(data: bytes, where: str) -> None:
    for magic, name in _COMPRESSED.items():
        if data.startswith(magic):
            raise InputError(f"is compressed ({name})", where=where, fix="Unpack it first")
