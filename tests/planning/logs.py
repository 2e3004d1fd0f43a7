"""Rows of start-up logs of real servers (public reports; each has its source)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "memory_logs.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]


def row(log_id: str) -> dict[str, Any]:
    """The row with this id."""
    return next(one for one in ROWS if one["id"] == log_id)
