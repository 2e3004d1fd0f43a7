"""The side file that says how many tokens each chunk of a trace has (RAGPulse)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from kvsim.errors import InputError
from kvsim.workload.fields import BadRowError, Record, optional_integer, present, tokens
from kvsim.workload.records import open_records
from kvsim.workload.source import ReadRules

MAX_CHUNKS = 20_000_000
_ID, _LENGTH = "chunk_id", "token_length"


class ChunkLengths(NamedTuple):
    """Tokens by chunk id, and the SHA-256 of the file's uncompressed content."""

    tokens: Mapping[int, int]
    sha256: str


def read_chunk_lengths(path: str | Path, rules: ReadRules) -> ChunkLengths:
    """Read a table `chunk_id,token_length`. Raises `InputError` at the first bad row."""
    known: dict[int, int] = {}
    with closing(open_records(Path(path), rules)) as records:
        lower = {name.lower(): name for name in records.columns}
        if not lower.keys() >= {_ID, _LENGTH}:
            raise InputError(
                f"has no columns {_ID} and {_LENGTH}",
                where=str(path),
                fix="Write one line per chunk under the header chunk_id,token_length",
            )
        names = (lower[_ID], lower[_LENGTH])
        for entry in records.rows(names):
            if entry is None:
                continue
            try:
                if isinstance(entry, BadRowError):
                    raise entry
                _add(known, entry, names, rules)
            except BadRowError as bad:
                raise InputError(
                    bad.problem, where=records.where(), fix="Correct the row"
                ) from None
            if len(known) > MAX_CHUNKS:
                raise rules.too_many_rows(records.where())
        return ChunkLengths(known, records.sha256())


def _add(known: dict[int, int], entry: Record, names: tuple[str, str], rules: ReadRules) -> None:
    present(entry, names[0])
    number = optional_integer(entry, names[0], 0, 2**63 - 1)
    length = tokens(entry, names[1], rules.max_tokens)
    assert number is not None
    if not length or known.setdefault(number, length) != length:
        raise BadRowError(
            "bad_value", f"column {names[1]}: chunk {number} must have one length >= 1 token"
        )
