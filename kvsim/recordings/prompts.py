"""How a recorded request shares its prompt, as segments of named streams."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kvsim.errors import InputError

MAX_PARTS = 1_000_000
FIX = "segments: [[stream, length], ...]; hash_ids: [id, ...]; prefix_group with prefix_tokens"

Segments = tuple[tuple[Hashable, int], ...]


def segments_of(request: dict[str, Any], hash_id_tokens: int, where: str) -> Segments | None:
    """Segments that sum to the prompt; None when it is shared with nobody.

    A description longer than the prompt is cut, a shorter one is followed by tokens of its own.
    """
    parts: list[tuple[Hashable, int]] = []
    if request.get("segments") is not None:
        parts = [_segment(item, where) for item in _list(request["segments"], where)]
    elif request.get("hash_ids") is not None:
        parts = [(("hash", _name(item, where)), hash_id_tokens) for item in _ids(request, where)]
    elif request.get("prefix_group") is not None:
        group = ("group", _name(request["prefix_group"], where))
        parts = [(group, _length(request.get("prefix_tokens"), where))]
    else:
        return None
    return _cut(parts, request["prompt_tokens"], ("own", request["id"]))


def _cut(parts: list[tuple[Hashable, int]], prompt: int, own: Hashable) -> Segments:
    cut: list[tuple[Hashable, int]] = []
    left = prompt
    for stream, length in parts:
        if left and length:
            cut.append((stream, min(length, left)))
            left -= cut[-1][1]
    if left:
        cut.append((own, left))
    return tuple(cut)


def _ids(request: dict[str, Any], where: str) -> list[Any]:
    return _list(request["hash_ids"], where)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        raise InputError(
            f"the prompt's parts must be a list of at most {MAX_PARTS}", where=where, fix=FIX
        )
    return value


def _segment(value: Any, where: str) -> tuple[Hashable, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(
            f"a segment must be [stream, length], got {value!r:.80}", where=where, fix=FIX
        )
    return _name(value[0], where), _length(value[1], where)


def _name(value: Any, where: str) -> Hashable:
    if isinstance(value, str | int):
        return value
    raise InputError(f"a stream must be text or a number, got {value!r:.80}", where=where, fix=FIX)


def _length(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100_000_000:
        return value
    raise InputError(f"a length must be >= 0 tokens, got {value!r:.80}", where=where, fix=FIX)
