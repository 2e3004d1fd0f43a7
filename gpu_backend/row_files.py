"""Files of rows that a prepared run wrote, line by line, until it ended or was cut off."""

from __future__ import annotations

from pathlib import Path

from kvsim.errors import InputError

MAX_BYTES = 500_000_000


def whole_lines(path: Path) -> list[str]:
    """The lines that have an end. Raises `InputError` for a file that is not there or too large."""
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= MAX_BYTES else ""
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}",
            where=str(path),
            fix="Name the folder that `python -m gpu_backend.bench --out` wrote",
        ) from None
    except ValueError:  # a NUL in the name, or bytes that are no text
        raise InputError("is not a file of UTF-8 text", where=str(path)) from None
    if size > MAX_BYTES:
        raise InputError(f"is larger than {MAX_BYTES} bytes", where=str(path))
    return text.split("\n")[:-1]
