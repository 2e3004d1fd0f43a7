"""Chunk ids of a trace row: read, checked against the prompt's length, cut into segments."""

from __future__ import annotations

from typing import Any

from kvsim.workload.fields import BadRowError, Record, bad_value

UNIQUE = -(2**63)
"""The stream of tokens that no other prompt shares."""
_MAX_PLAIN = 2**63 - 1
_MAX_UNSIGNED = 2**64 - 1
PER_SCOPE = 2**32
"""Ids of scope n are n * PER_SCOPE and up."""
_MAX_CHUNK = 100_000_000


class ChunkIds:
    """Chunk ids as 64-bit integers: equal ids stay equal, different ones stay different.

    Integers below 2^63 are themselves; greater ones (hashes are often unsigned) and text are
    numbered -1, -2, ... in order of first sight. Ids with a scope, such as a session, are numbers
    of their own in each scope.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._odd: dict[int | str, int] = {}
        self._scopes: dict[str, int] = {}

    def read(self, values: Any, column: str) -> list[int]:
        """The ids of a list of integers and text. Raises `BadRowError`."""
        if not isinstance(values, list):
            raise bad_value(column, values, "a list of block ids")
        if len(values) > self._most:
            raise BadRowError(
                "bad_value", f"column {column}: {len(values):,} ids are more than {self._most:,}"
            )
        if not values:
            return []
        if set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= _MAX_PLAIN:
            return values
        return [self._number(value, column) for value in values]

    def read_scoped(self, values: Any, column: str, scope: str) -> list[int]:
        """As `read`, for ids below 2^32 that mean something only within `scope`."""
        ids = self.read(values, column)
        if ids and not 0 <= min(ids) <= max(ids) < PER_SCOPE:
            raise bad_value(column, values, f"a list of ids from 0 to {PER_SCOPE - 1}")
        first = self._scopes.setdefault(scope, len(self._scopes)) * PER_SCOPE
        return [first + number for number in ids]

    def _number(self, value: Any, column: str) -> int:
        if type(value) is int and 0 <= value <= _MAX_UNSIGNED:
            if value <= _MAX_PLAIN:
                return value
        elif not isinstance(value, str):
            raise bad_value(column, value, "a block id: text, or an integer from 0 to 2^64 - 1")
        return self._odd.setdefault(value, -1 - len(self._odd))


def same_size(record: Record, column: str, chosen: int | None, before: int | None) -> int | None:
    """The chunk size a row states, in tokens, or else `chosen`.

    Raises `BadRowError` where it differs from `chosen` or from the rows `before`.
    """
    stated = record.get(column)
    if stated is None:
        return chosen
    if type(stated) is not int or not 1 <= stated <= _MAX_CHUNK:
        raise bad_value(column, stated, f"a number of tokens from 1 to {_MAX_CHUNK:,}")
    expected = chosen or before
    if expected is not None and stated != expected:
        raise BadRowError(
            "other_block_size",
            f"column {column}: {stated} differs from {expected}, which "
            + ("was asked for" if chosen else "rows above have"),
        )
    return stated


def cut_last(ids: list[int], prompt: int, chunk: int, column: str) -> tuple[list[int], list[int]]:
    """Segments of a prompt whose last chunk may be partial: ceil(prompt / chunk) ids."""
    wanted = -(-prompt // chunk)
    if len(ids) != wanted:
        raise _wrong_count(column, ids, wanted, prompt, chunk)
    return ids, _lengths(prompt, chunk)


def full_only(ids: list[int], prompt: int, chunk: int, column: str) -> tuple[list[int], list[int]]:
    """Segments of a prompt with ids for its full chunks only: floor(prompt / chunk) ids."""
    wanted = prompt // chunk
    if len(ids) != wanted:
        raise _wrong_count(column, ids, wanted, prompt, chunk)
    return with_rest(ids, prompt, chunk, column)


def with_rest(ids: list[int], prompt: int, chunk: int, column: str) -> tuple[list[int], list[int]]:
    """Segments of a prompt with ids for as many chunks as there are; the rest is unique."""
    most = -(-prompt // chunk)
    if len(ids) > most:
        raise _wrong_count(column, ids, most, prompt, chunk)
    rest = prompt - len(ids) * chunk
    if rest <= 0:
        return ids, _lengths(prompt, chunk)
    return [*ids, UNIQUE], [chunk] * len(ids) + [rest]


def _lengths(prompt: int, chunk: int) -> list[int]:
    full, rest = divmod(prompt, chunk)
    return [chunk] * full + [rest] * bool(rest)


def _wrong_count(column: str, ids: list[int], wanted: int, prompt: int, chunk: int) -> BadRowError:
    return BadRowError(
        "wrong_chunks",
        f"column {column}: {len(ids):,} ids, but a prompt of {prompt:,} tokens has {wanted:,}"
        f" chunks of {chunk:,}",
    )
