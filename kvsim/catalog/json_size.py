"""Bounds what a JSON text holds before it is parsed: its values take far more memory than it."""

from __future__ import annotations

from kvsim.errors import InputError


def check_json_size(
    content: bytes, where: str, *, max_lists: int, max_values: int, fix: str
) -> None:
    """Raise `InputError` above `max_lists` lists and objects, or `max_values` values and keys.

    Counted by their marks, those inside of texts too.
    """
    lists = content.count(b"[") + content.count(b"{")
    if lists > max_lists or content.count(b",") + content.count(b":") > max_values:
        raise InputError(
            f"holds more than {max_lists:,} lists or {max_values:,} values, the limits",
            where=where,
            fix=fix,
        )
