"""Tells a file's format from its column names."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from kvsim.errors import InputError
from kvsim.workload.formats import FORMATS
from kvsim.workload.records import open_records
from kvsim.workload.row_format import Format, FormatOptions
from kvsim.workload.source import ReadRules

_UNREAD = {
    "request tokens": "BurstGPT",
    "sub_requests": "LLMServingSim",
    "arrival_time_ns": "LLMServingSim",
    "input_tokens_total": "TraceLab",
    "requests": "session (WEKA)",
    "schema": "Dynamo",
    "input_lens": "vLLM benchmark",
}
"""Columns that only formats of others have, which must not be taken for one of ours."""

_FLATTEN = (
    "Write one request a line with jq -c '. as $s | .requests[]"
    " | {id: $s.id, t, in, out, hash_ids, block_size: $s.block_size}'"
)
_FIX = "Give a file with arrival_s, prompt_tokens and output_tokens, or name the format"


def choose_format(
    kind: str, columns: tuple[str, ...], path: Path, *, objects: frozenset[str] = frozenset()
) -> str:
    """`kind` itself, or for "auto" the first format that knows the columns.

    `objects` are the columns whose values are objects of their own.
    """
    if kind != "auto":
        if kind in FORMATS:
            return kind
        known = ", ".join(["auto", *FORMATS])
        raise InputError(f"{kind!r} is no trace format", where="format", fix=f"Use one of: {known}")
    lower = frozenset(name.lower() for name in columns)
    for column, owner in _UNREAD.items():
        if column in lower:
            problem = f"looks like a {owner} file, which is not read yet (column {column})"
            raise InputError(
                problem, where=str(path), fix=_FLATTEN if column == "requests" else _FIX
            )
    if "hash_ids" in objects and "input_length" in lower:
        return "ragpulse"
    for name, chosen in FORMATS.items():
        if chosen.matches(lower):
            return name
    raise InputError(
        f"no known format has the columns {_listed(columns)}", where=str(path), fix=_FIX
    )


def trace_kind(path: Path, kind: str, rules: ReadRules) -> str:
    """The key of `FORMATS` that a file would be read as. Raises `InputError` as reading it does."""
    with closing(open_records(path, rules)) as records:
        return choose_format(kind, records.columns, path, objects=records.objects)


def make_format(
    kind: str, columns: tuple[str, ...], options: FormatOptions, path: Path, *, ragged: bool
) -> Format:
    """A reader for the columns of this file; raises `InputError` if one is missing.

    `kind` is a key of `FORMATS`. In a `ragged` file any row may have the optional columns.
    """
    chosen = FORMATS[kind]
    more = [name for name in chosen.optional if ragged and name not in columns]
    try:
        return chosen((*columns, *more), options)
    except LookupError as error:
        problem = f"has no column {error.args[0]}, only {_listed(columns)}"
        raise InputError(problem, where=str(path), fix=_FIX) from None


def _listed(columns: tuple[str, ...]) -> str:
    names = [name if name.isprintable() else repr(name) for name in columns[:12]]
    names = [name if len(name) <= 40 else name[:37] + "..." for name in names]
    return ", ".join(names) + (", ..." if len(columns) > 12 else "")
