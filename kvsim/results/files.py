"""Files that are there as a whole or not at all."""

from __future__ import annotations

import secrets
from pathlib import Path

from kvsim.errors import InputError


def write_whole(path: Path, content: bytes, what: str) -> None:
    """Write a file beside its place, then rename it: a reader never sees half of it.

    An existing file is replaced. `what` is written, for the `InputError` if it cannot be.
    """
    partial = path.parent / f".{path.name[:100]}.{secrets.token_hex(4)}.partial"
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except (OSError, ValueError) as error:
        if not isinstance(error, ValueError):
            partial.unlink(missing_ok=True)
        raise InputError(
            f"cannot write the {what}: {getattr(error, 'strerror', None) or type(error).__name__}",
            where=str(path),
            fix="Name a file in a folder you can write to with --out.",
        ) from error
