"""Columns of a plain table that say what branches: parallel samples, beams, trees of requests."""

from __future__ import annotations

from typing import Any

from kvsim.core.request import Branching, Fork
from kvsim.workload.fields import BadRowError, Record, bad_value, identifier, optional_integer

BRANCH_COLUMNS = ("n", "beam_width", "beam_parents", "parent_id", "fork_at_token")
MAX_BRANCHES = 64
"""Most parallel samples or beams of a request."""
MAX_PARENTS = 1_000_000
"""Most integers under `beam_parents` in one row."""


class BranchColumns:
    """Reads the columns that the file has, spelled as there: None stands for one it has not."""

    def __init__(self, spelled: tuple[str | None, ...], max_tokens: int) -> None:
        """`spelled` are the names of `BRANCH_COLUMNS`, in that order."""
        self._n, self._width, self._parents, self._parent, self._at = spelled
        self._names = frozenset(name for name in spelled if name)
        self._max = max_tokens

    def any_in(self, record: Record) -> bool:
        """Whether the row has any of the columns."""
        return not self._names.isdisjoint(record)

    def branches(self, record: Record, output: int) -> Branching | None:
        """The branches of a request with `output` tokens; None for one. Raises `BadRowError`."""
        samples = _integer(record, self._n, MAX_BRANCHES)
        width = _integer(record, self._width, MAX_BRANCHES)
        parents = record.get(self._parents) if self._parents else None
        if samples is not None and width is not None:
            raise BadRowError(
                "bad_value",
                f"columns {self._n} and {self._width}: a request has parallel samples or beams,"
                " not both",
            )
        if parents is not None and parents != "":
            if width is None:
                raise BadRowError("bad_value", f"column {self._parents}: needs a beam_width")
            rows = _parent_rows(parents, str(self._parents), width, output)
            return Branching("beam", width, "trace", rows) if width > 1 else None
        if width is not None:
            return Branching("beam", width) if width > 1 else None
        return Branching("parallel", samples) if samples is not None and samples > 1 else None

    def fork(self, record: Record, prompt: int) -> Fork | None:
        """Where a prompt of `prompt` tokens leaves its parent; None without. As `branches`."""
        parent = None
        if self._parent and record.get(self._parent) not in (None, ""):
            parent = identifier(record, self._parent)
        at = _integer(record, self._at, self._max)
        if parent is None and at is None:
            return None
        if parent is None:
            raise BadRowError("bad_value", f"column {self._at}: needs a parent_id")
        if at is None:
            raise BadRowError("bad_value", f"column {self._parent}: needs a fork_at_token")
        if at > prompt:
            raise BadRowError(
                "bad_fork", f"column {self._at}: {at:,} is more than the prompt, {prompt:,} tokens"
            )
        return Fork(parent, at)


def _integer(record: Record, column: str | None, high: int) -> int | None:
    return optional_integer(record, column, 1, high) if column else None


def _parent_rows(value: Any, column: str, width: int, output: int) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list):
        raise bad_value(column, value, "a list of lists, which CSV cannot hold: use JSON lines")
    if len(value) * width > MAX_PARENTS:
        raise BadRowError(
            "bad_value",
            f"column {column}: {len(value):,} rows of {width} are more than {MAX_PARENTS:,}"
            " integers",
        )
    if len(value) < output - 2:
        raise BadRowError(
            "bad_value",
            f"column {column}: {len(value):,} rows, but {output:,} output tokens need"
            f" {output - 2:,}",
        )
    for row in value:
        if not _is_choice(row, width):
            raise bad_value(column, row, f"a list of {width} integers from 0 to {width - 1}")
    return tuple(map(tuple, value))


def _is_choice(row: Any, width: int) -> bool:
    """Whether it names a beam for each beam."""
    if not isinstance(row, list) or len(row) != width or set(map(type, row)) != {int}:
        return False
    return all(0 <= beam < width for beam in row)
