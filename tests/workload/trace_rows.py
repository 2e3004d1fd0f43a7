"""Rows of a plain table, written as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def row(arrival: float, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"arrival_s": arrival, "prompt_tokens": prompt, "output_tokens": output, **more}


def write(folder: Path, rows: list[dict[str, Any]], name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path
