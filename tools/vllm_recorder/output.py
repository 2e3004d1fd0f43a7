"""Writes a recording: whole or not at all, and the same bytes for the same input."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.vllm_recorder.errors import RecordError


def write_lines(path: Path, items: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line; gzip where the name ends with .gz."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    lines = (json.dumps(item, separators=(",", ":")).encode() + b"\n" for item in items)
    try:
        with draft.open("xb") as raw:
            if path.suffix == ".gz":
                # A name or a time in the gzip header would differ between equal recordings.
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                    packed.writelines(lines)
            else:
                raw.writelines(lines)
        draft.replace(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
